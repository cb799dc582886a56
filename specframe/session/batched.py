"""Many answers at once through transformers' `generate`, for work that no one waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from specframe.kernel.onednn import OneDNN
from specframe.kernel.packed_linear import is_plain

_PREFILL_ROWS = 2048  # of one pass over prompts: larger activations cost page faults on a CPU
_SEGMENT = 32  # tokens between two looks for finished rows, which then leave the batch


class Batched:
    """Answers batches of prompts with one model.

    options: of `generate`, on top of plain greedy decoding; nothing of the model's own generation
    settings is used. eos: ids that end an answer and are kept as its last token.
    """

    def __init__(
        self, model: Any, *, eos: Sequence[int], max_new_tokens: int, options: dict[str, Any]
    ) -> None:
        self.model = model
        self.eos = frozenset(eos)
        self.max_new_tokens = max_new_tokens
        self._config = type(model.generation_config)(
            eos_token_id=list(eos) or None,
            pad_token_id=min(eos, default=0),
            use_cache=True,
            return_dict_in_generate=True,
            **{"do_sample": False, **options},
        )

    def answer(
        self, prompts: Sequence[Sequence[int]], *, seed: int, tick: Callable[[int], None]
    ) -> list[list[int]]:
        """Token ids of each prompt's answer. tick: called with every few tokens made.

        seed: of the batch's noise, if there is any; torch's own generators are left as they were.
        """
        device = self.model.device
        made: list[list[int]] = [[] for _ in prompts]
        alive = list(range(len(prompts)))
        ids, mask = _left_padded(prompts, device)
        state: dict[str, Any] = {"prefill_chunk_size": -(-_PREFILL_ROWS // len(prompts))}
        gpus = [device] if device.type == "cuda" else []
        with torch.inference_mode(), torch.random.fork_rng(gpus), _settings_of(self):
            torch.manual_seed(seed)
            for start in range(0, self.max_new_tokens, _SEGMENT):
                count = min(_SEGMENT, self.max_new_tokens - start)
                out = self.model.generate(ids, attention_mask=mask, max_new_tokens=count, **state)
                new = out.sequences[:, ids.shape[1] :]
                rows = self._take(new.tolist(), alive, made, tick)
                if not rows:
                    break
                alive = [alive[row] for row in rows]
                kept = torch.tensor(rows, device=device)
                state = _cache_of(out)
                if len(rows) < len(ids):
                    next(iter(state.values())).batch_select_indices(kept)
                ids = out.sequences[kept]
                mask = torch.cat([mask[kept], torch.ones_like(new[kept])], dim=1)
        return made

    def _take(
        self,
        new: Sequence[Sequence[int]],
        alive: Sequence[int],
        made: list[list[int]],
        tick: Callable[[int], None],
    ) -> list[int]:
        """Append a segment to its answers, up to their ends; the rows that go on."""
        rows, count = [], 0
        for row, tokens in enumerate(new):
            end = next((i for i, token in enumerate(tokens, start=1) if token in self.eos), None)
            made[alive[row]] += tokens[:end]
            count += len(tokens[:end])
            if end is None:
                rows.append(row)
        tick(count)
        return rows


@contextmanager
def packed(model: nn.Module, *, rows: int) -> Iterator[None]:
    """Linear layers of a float32 model on a CPU run in oneDNN, on weights laid out for `rows` rows.

    The plain product of a CPU build of torch is MKL's, which keeps to narrow vectors on AMD: 109
    against 254 GFLOP/s on one core at 128 rows. Costs as much memory as those weights have; other
    models are left as they are.
    """
    plain = [one for one in model.modules() if is_plain(one)]
    changed = plain if OneDNN.available() else []
    for layer in changed:
        laid_out = OneDNN(layer.weight, layer.bias, rows=rows)
        layer.forward = laid_out  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        for layer in changed:
            del layer.forward


@contextmanager
def _settings_of(batched: Batched) -> Iterator[None]:
    """What is unset in a call is taken from the model's own settings: have ours there meanwhile."""
    held = batched.model.generation_config
    batched.model.generation_config = batched._config
    try:
        yield
    finally:
        batched.model.generation_config = held


def _cache_of(out: Any) -> dict[str, Any]:
    """The keyword argument that lets `generate` go on: its name depends on transformers."""
    name = "cache" if "cache" in out else "past_key_values"
    return {name: out[name]}


def _left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and attention mask [B, longest], prompts to the right."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.zeros((len(prompts), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return ids.to(device), mask.to(device)
