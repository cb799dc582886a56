"""What an engine takes of the machine: memory in a process of its own, and a device's idle time.

The memory is measured by running this module, so that the peak is that of one composition.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import nn

from specframe.buffers.contiguous import Contiguous
from specframe.cache.base import CacheManager
from specframe.kernel.packed_linear import weight_bytes
from specframe.kernel.reordered_linear import ReorderedLinear
from specframe.measure.metrics import peak_memory_bytes
from specframe.prompts.reader import first_prompt
from specframe.session.engine import Engine
from specframe.target.base import Target

_SMALL = ("target=random", "drafter=none", "tree=chain")
_WARM_STEPS, _SEEN_STEPS = 4, 16  # steps before and while the device is looked at
_MAX_TOKENS = 160  # that those steps may emit; drafter=oracle decodes them all before


def footprint(overrides: Sequence[str]) -> dict[str, Any]:
    """Bytes that it takes to load the composition of these overrides and to answer a prompt.

    peak_bytes is the most at any time (of the allocator on a CUDA device, otherwise resident)
    without before_bytes, which the process held once it had decoded with a target of 15 MB: Python,
    torch and transformers. weights_bytes is one copy of the target's weights, cache_bytes the keys
    and values, and ratio is the peak over those two together. {"error": text} if that failed.
    """
    command = [sys.executable, "-m", __name__, json.dumps(list(overrides))]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, text=True)
    try:
        sizes: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": lines[-1]}
    return sizes


def memory_sentence(memory: dict[str, Any]) -> str:
    """The sizes of `footprint` in words."""
    if "error" in memory:
        return f"memory could not be measured: {memory['error']}"
    if memory["ratio"] is None:
        return "memory: this target has no weights"
    sizes = {key: memory[f"{key}_bytes"] / 1e6 for key in ("peak", "weights", "cache", "before")}
    return (
        f"memory of the composed method alone, loading included: peak {sizes['peak']:.0f} MB, "
        f"{memory['ratio']:.2f} of one copy of the target's weights ({sizes['weights']:.0f} MB) "
        f"and the cache ({sizes['cache']:.0f} MB); Python and its libraries hold "
        f"{sizes['before']:.0f} MB beside it"
    )


def _own_footprint(overrides: Sequence[str]) -> dict[str, Any]:
    """The same of this process."""
    import specframe

    specframe.load(_SMALL).generate("Which modules are loaded late?", max_new_tokens=4)
    before = peak_memory_bytes(torch.device("cpu")) or 0
    engine = specframe.load(overrides)
    target = engine.components.target
    engine.generate(first_prompt().turns[0])
    cuda = target.device.type == "cuda"
    peak = (peak_memory_bytes(target.device) or 0) - (0 if cuda else before)
    weights, cache = weights_bytes(target), cache_bytes(engine.components.cache, target)
    return {
        "peak_bytes": peak,
        "before_bytes": before,
        "weights_bytes": weights,
        "cache_bytes": cache,
        "ratio": peak / (weights + cache) if weights else None,
    }


def weights_bytes(target: Target) -> int:
    """Bytes of one copy of a target's weights, 0 for a target that is no model.

    Packed weights count as they are stored, a head that is tied to the embedding counts once.
    """
    if not isinstance(getattr(target, "model", None), nn.Module):
        return 0
    model: Any = target.model  # type: ignore[attr-defined]
    plain = sum(tensor.nbytes for tensor in model.parameters())
    packed = {
        layer: weight_bytes(layer)
        for layer in model.modules()
        if isinstance(layer, ReorderedLinear)
    }
    if getattr(model.config.get_text_config(), "tie_word_embeddings", False):
        packed.pop(model.get_output_embeddings(), None)
    return int(plain + sum(packed.values()))


def cache_bytes(cache: CacheManager, target: Target) -> int:
    """Bytes of all slots that the cache has allocated; 0 for one that shows no buffers."""
    if not isinstance(cache, Contiguous):
        return 0
    buffers = (part for layer in range(target.num_layers) for part in cache.committed(layer))
    return sum(buffer.untyped_storage().nbytes() for buffer in buffers)


def idle_share(spans: Iterable[tuple[float, float]]) -> float | None:
    """Share of the time from the first start to the last end in which no span was open.

    spans: (start, end) in one unit; they may overlap. None without any.
    """
    busy, first, last = 0.0, None, 0.0
    for start, end in sorted(spans):
        if first is None:
            first = last = start
        busy += max(end - max(start, last), 0.0)
        last = max(last, end)
    return None if first is None or last <= first else 1 - busy / (last - first)


def host_gaps(engine: Engine, prompt: Sequence[int]) -> float | None:
    """Share of the time of a few steps behind a prompt in which the device ran no kernel.

    None where there are no kernels: on a CPU, or where the text ends before.
    """
    device = engine.components.target.device
    if device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    steps = engine.decoding(max_new_tokens=_MAX_TOKENS).run(prompt)
    for _ in islice(steps, 1 + _WARM_STEPS):  # the first is the prefill
        pass
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in islice(steps, _SEEN_STEPS):
            pass
        torch.cuda.synchronize(device)
    kernels = [event for event in profiler.events() or () if event.device_type.name == "CUDA"]
    return idle_share((event.time_range.start, event.time_range.end) for event in kernels)


if __name__ == "__main__":
    print(json.dumps(_own_footprint(json.loads(sys.argv[1]))))
