"""Any causal language model of transformers, driven row by row through our own caches."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from specframe.cache.base import CacheManager, Opened
from specframe.errors import IncompatibleComponents
from specframe.models.tokenizer import HFTokenizer
from specframe.runtime.base import Runtime
from specframe.target.base import TARGETS, Forward, Target, Tokenizer
from specframe.target.hf.blocks import Blocks
from specframe.target.hf.captured_pass import PassKey
from specframe.target.hf.loading import Dtype, dtype_of, load, refuse_recurrent
from specframe.target.hf.probe import check_tree
from specframe.target.hf.rotary_tables import RotaryTables, longest_text
from specframe.types import Gives, Rows

_MASKED = ("sdpa", "eager")  # attention implementations that honour a 4-D mask


@TARGETS.register("hf")
class HF(Target):
    """path: hub name, folder, `.gguf` file or package:// name; the rest is transformers' own.

    Rows, masks and positions are ours, so that one forward can score a tree; the model's code is
    not touched. Models with recurrent state are refused: they cannot be rolled back.
    """

    gives: Gives = Gives(taps=frozenset({"*"}), partial_layers=True)

    def __init__(
        self,
        *,
        path: str,
        dtype: Dtype,
        device_map: str | dict[str, Any] | None,
        revision: str | None,
        attn_implementation: str,
        quantization: dict[str, Any] | None,
        trust_remote_code: bool,
        draft: str | None,
        device: torch.device,
        runtime: Runtime,
    ) -> None:
        if attn_implementation not in _MASKED:
            raise IncompatibleComponents(
                f"target.attn_implementation={attn_implementation} takes no 4-D mask, which every "
                "verify pass needs; use sdpa or eager"
            )
        options: dict[str, Any] = {
            "revision": revision,
            "trust_remote_code": trust_remote_code,
        }
        model, tokenizer = load(
            path,
            options,
            {
                "attn_implementation": attn_implementation,
                "dtype": dtype_of(dtype, device),
                "device_map": device_map,
                "quantization_config": quantization,
            },
        )
        if device_map is None and quantization is None:
            model = model.to(device)
        self.draft = draft
        self._adopt(model, HFTokenizer.of(tokenizer), path, runtime)

    @classmethod
    def of(cls, model: nn.Module, *, runtime: Runtime, tokenizer: Any = None) -> HF:
        """Wrap a model that is already loaded (for notebooks and tests)."""
        self = cls.__new__(cls)
        self.draft = None
        self._adopt(model, HFTokenizer.of(tokenizer), type(model).__name__, runtime)
        return self

    def _adopt(self, model: Any, tokenizer: Tokenizer | None, name: str, runtime: Runtime) -> None:
        refuse_recurrent(model.config, type(model))
        self.model = model.eval()
        text = model.config.get_text_config()
        self.tokenizer = tokenizer
        self._launch = runtime.launch
        self.name = name
        self.dtype = model.dtype
        self.device = model.get_input_embeddings().weight.device
        head = model.get_output_embeddings()
        if head is None:
            raise IncompatibleComponents(
                f"target: {type(model).__name__} has no output head; use a causal language model"
            )
        self.vocab_size = head.weight.shape[0]
        self.num_layers = text.num_hidden_layers
        self.eos_ids = _eos_ids(model, tokenizer)
        self._rotary = RotaryTables(model)
        self._trunk = runtime.weights.adopt(model)
        self._blocks = Blocks(model, self.num_layers)
        self._windows = _windows(text)
        self._builds_causal = text._attn_implementation == "sdpa"
        self._softcap = getattr(text, "final_logit_softcapping", None)
        # Cohere multiplies its logits, Granite divides them.
        scale = getattr(text, "logit_scale", None) or 1.0
        self._scale = scale / (getattr(text, "logits_scaling", None) or 1.0)
        self.gives = Gives(
            taps=frozenset(
                ["embed", "final_prenorm", "final_postnorm"]
                + [f"resid:{i}" for i in range(self.num_layers + 1)]
            ),
            partial_layers=True,
            max_positions=longest_text(text),
        )
        check_tree(self)

    @torch.inference_mode()
    def forward(
        self,
        rows: Rows,
        cache: CacheManager,
        *,
        layers: tuple[int, int] | None = None,
        skip: frozenset[str] = frozenset(),
        taps: Sequence[str] = (),
        want: Tensor | None = None,
    ) -> Forward:
        self._check_taps(taps)
        with self._rotary.of_text(_reach(cache, rows)) if self._rotary else nullcontext():
            return self._pass(rows, cache, layers or (0, self.num_layers), skip, taps, want)

    def _pass(
        self,
        rows: Rows,
        cache: CacheManager,
        span: tuple[int, int],
        skip: frozenset[str],
        taps: Sequence[str],
        want: Tensor | None,
    ) -> Forward:
        opened = cache.opened(rows)
        if self._trunk is not None:
            fused = self._fused(rows, opened, span, skip, taps, want)
            if fused is not None:
                return fused
        entering = rows.hidden if rows.tokens is None else rows.tokens
        assert entering is not None
        given = (entering,) if want is None else (entering, want)
        form = opened.form(range(*span), list(self._windows.values()))
        key = PassKey(
            blocks=self._blocks,
            rows=len(rows.positions),
            span=span,
            skip=skip,
            taps=tuple(taps),
            embedded=rows.tokens is None,
            windows=tuple(self._windows.items()),
            own_mask=self._builds_causal,
            dtype=self.dtype,
            wanted=None if want is None else len(want),
            table=self._rotary.key(_reach(cache, rows)) if self._rotary else None,
            form=None if form is None else form.key,
        )
        if form is None:
            return key.unpack(key.compute(given, opened))
        run = self._launch.wrap(key.over(form), key)
        return key.unpack(run((*given, *form.inputs), form.buffers))

    def _fused(
        self,
        rows: Rows,
        opened: Opened,
        span: tuple[int, int],
        skip: frozenset[str],
        taps: Sequence[str],
        want: Tensor | None,
    ) -> Forward | None:
        """The same by the runtime's own blocks; None where they cannot read this cache."""
        assert self._trunk is not None
        entering = rows.hidden if rows.tokens is None else self.embed(rows.tokens)
        assert entering is not None
        output = self._trunk(entering, opened, layers=span, skip=skip, taps=taps)
        if output is None:
            return None
        hidden, found = output
        if "embed" in taps:
            found["embed"] = entering
        if "final_prenorm" in taps:
            found["final_prenorm"] = hidden
        if "final_postnorm" in taps:
            found["final_postnorm"] = self._blocks.norm(hidden)
            normed = found["final_postnorm"] if want is None else found["final_postnorm"][want]
        elif want is not None:
            normed = self._blocks.norm(hidden[want])
        return Forward(
            logits=None if want is None else self.head(normed), hidden=hidden, taps=found
        )

    def embed(self, tokens: Tensor) -> Tensor:
        return self.model.get_input_embeddings()(tokens)

    def head(self, hidden: Tensor) -> Tensor:
        logits = self._scale * self.model.get_output_embeddings()(hidden)
        return logits if self._softcap is None else self._softcap * (logits / self._softcap).tanh()

    def table_key(self, reach: int) -> Hashable:
        """Equal for texts of which a row is computed alike; see `DependsOnReach`."""
        return self._rotary.key(reach)

    def _check_taps(self, taps: Sequence[str]) -> None:
        unknown = [tap for tap in taps if tap not in self.gives.taps]
        if unknown:
            raise ValueError(
                f"no tap {unknown[0]!r} in {self.name}: it has embed, final_prenorm, "
                f"final_postnorm and resid:0 .. resid:{self.num_layers}"
            )


def _reach(cache: CacheManager, rows: Rows) -> int:
    """Positions that the texts of a pass may reach, as they were said or as its first pass
    decides; lanes of one pass are computed by the same tables."""
    lane = rows.lanes[0]
    reach = cache.reach[lane]
    if reach is None:
        reach = cache.extents[lane]
        cache.alone(lane).reach[0] = reach
    return reach


def _windows(config: Any) -> dict[str, int | None]:
    """Attention window (tokens) by layer type; None sees everything."""
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    if types:
        sliding = "sliding_attention"
        return {kind: window if kind == sliding else None for kind in sorted(set(types))}
    return {"sliding_attention": window} if window else {"full_attention": None}


def _eos_ids(model: Any, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    generation = getattr(model, "generation_config", None)
    for source in (generation, model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return tuple(ids) if isinstance(ids, (list, tuple)) else (int(ids),)
    return ()
