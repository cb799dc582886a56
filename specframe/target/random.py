"""A Llama of any shape with random weights: what a pass costs, where no checkpoint is at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch

from specframe.registry import Range
from specframe.runtime.base import Runtime
from specframe.target.base import TARGETS
from specframe.target.hf import HF
from specframe.target.hf.loading import Dtype, dtype_of

_BYTES = 256
Count = Annotated[int, Range(1, None)]


class Bytes:
    """Token i is byte i of a text in UTF-8; a smaller vocabulary folds them, other tokens are
    written as <id>."""

    chat_template = None

    def __init__(self, vocab_size: int) -> None:
        self._size = vocab_size

    def encode(self, text: str) -> list[int]:
        return [byte % self._size for byte in text.encode()]

    def encode_plain(self, text: str) -> list[int]:
        return self.encode(text)

    def encode_chat(self, messages: Sequence[dict[str, str]], /, **template_args: Any) -> list[int]:
        return self.encode(messages[-1]["content"])

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._piece(token) for token in ids)

    def decoder(self) -> Callable[[int], str]:
        return self._piece

    def vocabulary(self) -> dict[str, int]:
        return {self._piece(token): token for token in range(self._size)}

    def _piece(self, token: int) -> str:
        printable = token < _BYTES // 2 and chr(token).isprintable()
        return chr(token) if printable else f"<{token}>"


@TARGETS.register("random")
class Random(HF):
    """A Llama (arXiv 2302.13971) of this shape, made on the device; the same seed on the same sort
    of device makes the same weights.

    Its costs are those of a trained model of the shape, its text means nothing: the output row of a
    token is the embedding of the one before it, so that texts count upwards with wide margins, and
    no rounding of another kernel makes another text. Needs a drafter without a head; `oracle` is
    for that. Reads bytes.
    """

    def __init__(
        self,
        *,
        layers: Count,
        hidden: Count,
        intermediate: Count,
        heads: Count,
        kv_heads: Count,
        vocab_size: Annotated[int, Range(2, None)],
        max_positions: Annotated[int, Range(2, None)],
        dtype: Dtype,
        seed: Annotated[int, Range(0, 2**63 - 1)],
        device: torch.device,
        runtime: Runtime,
    ) -> None:
        if hidden % (2 * heads) or heads % kv_heads:
            raise ValueError(
                f"target.heads={heads} must divide target.hidden={hidden} into even sizes, and "
                f"target.kv_heads={kv_heads} must divide the heads"
            )
        shape: dict[str, Any] = {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "vocab_size": vocab_size,
            "max_position_embeddings": max_positions,
        }
        kind = torch.bfloat16 if dtype == "auto" and device.type != "cpu" else None
        model = _made(shape, kind or dtype_of(dtype, device), device, seed)
        self.draft = None
        name = f"random-{layers}x{hidden}x{intermediate}-{heads}:{kv_heads}-{vocab_size}-{seed}"
        self._adopt(model, Bytes(vocab_size), name, runtime)


@torch.no_grad()
def _made(shape: dict[str, Any], dtype: torch.dtype, device: torch.device, seed: int) -> Any:
    """The model, made where it will run: 7B of random numbers take a CPU minutes."""
    import transformers

    no_ids: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = transformers.LlamaConfig(**shape, **no_ids, tie_word_embeddings=False)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), device:
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation="sdpa"
        )
        # A stream that the embedding leads, however many blocks add to it.
        table = model.get_input_embeddings().weight.normal_()
        scale = (2 * shape["num_hidden_layers"]) ** -0.5
        for block in model.model.layers:
            block.self_attn.o_proj.weight.mul_(scale)
            block.mlp.down_proj.weight.mul_(scale)
        model.get_output_embeddings().weight.copy_(table.roll(1, 0)).mul_(
            shape["hidden_size"] ** -0.5
        )
    return model
