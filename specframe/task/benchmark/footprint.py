"""What memory an engine takes alone, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from specframe.buffers.contiguous import Contiguous
from specframe.cache.base import CacheManager
from specframe.kernel.packed_linear import weight_bytes
from specframe.kernel.reordered_linear import ReorderedLinear
from specframe.measure.metrics import peak_memory_bytes
from specframe.prompts.reader import first_prompt
from specframe.target.base import Target

_SMALL = ("target=random", "drafter=none", "tree=chain")


def footprint(words: Sequence[str]) -> dict[str, Any]:
    """Bytes that the composition of these words takes to load and to answer a built-in prompt.

    peak_bytes: the most at any time (of the allocator on a CUDA device, else resident) without
    before_bytes, which the process had when it had decoded with a target of 15 MB: Python, torch,
    transformers; weights_bytes: one copy of the target's weights; cache_bytes: keys and values;
    ratio: the peak over those two together. {"error": text} where that failed.
    """
    command = [sys.executable, "-m", __name__, json.dumps(list(words))]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, text=True)
    try:
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": lines[-1]}
    return found


def _measured(words: Sequence[str]) -> dict[str, Any]:
    import specframe

    specframe.load(_SMALL).generate("Which modules are loaded late?", max_new_tokens=4)
    before = peak_memory_bytes(torch.device("cpu")) or 0
    engine = specframe.load(words)
    target = engine.parts.target
    engine.generate(first_prompt().turns[0])
    cuda = target.device.type == "cuda"
    peak = (peak_memory_bytes(target.device) or 0) - (0 if cuda else before)
    weights, cache = weights_bytes(target), cache_bytes(engine.parts.cache, target)
    return {
        "peak_bytes": peak,
        "before_bytes": before,
        "weights_bytes": weights,
        "cache_bytes": cache,
        "ratio": peak / (weights + cache) if weights else None,
    }


def weights_bytes(target: Target) -> int:
    """One copy of a target's weights, packed ones as they are kept; a head that is tied to the
    embedding counts once. 0 for a target that is no model."""
    if not isinstance(getattr(target, "model", None), nn.Module):
        return 0
    model: Any = target.model  # type: ignore[attr-defined]
    held = sum(one.nbytes for one in model.parameters())
    packed = {one: weight_bytes(one) for one in model.modules() if isinstance(one, ReorderedLinear)}
    if getattr(model.config.get_text_config(), "tie_word_embeddings", False):
        packed.pop(model.get_output_embeddings(), None)
    return int(held + sum(packed.values()))


def cache_bytes(cache: CacheManager, target: Target) -> int:
    """Of all slots that are allocated; 0 for a cache that cannot be looked into."""
    if not isinstance(cache, Contiguous):
        return 0
    pairs = (cache.committed(layer) for layer in range(target.num_layers))
    return sum(buffer.untyped_storage().nbytes() for pair in pairs for buffer in pair)


if __name__ == "__main__":
    print(json.dumps(_measured(json.loads(sys.argv[1]))))
