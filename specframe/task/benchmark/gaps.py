"""How long a device waits for its host between two kernels of a decoding loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from specframe.session.engine import Engine

_WARM, _STEPS = 4, 16  # steps before the look, and of it
_TOKENS = 160  # that those may emit; an oracle decodes them all before


def idle_share(spans: Iterable[tuple[float, float]]) -> float | None:
    """Share of the time from the first start to the last end in which no span was open.

    spans: (start, end) in one unit; they may overlap. None without any.
    """
    busy, begun, done = 0.0, None, 0.0
    for start, end in sorted(spans):
        if begun is None:
            begun = done = start
        busy += max(end - max(start, done), 0.0)
        done = max(done, end)
    return None if begun is None or done <= begun else 1 - busy / (done - begun)


def host_gaps(engine: Engine, prompt: Sequence[int]) -> float | None:
    """`idle_share` of the kernels of a few steps behind a prompt; None where there are none: on a
    CPU, or where the text ends before."""
    device = engine.parts.target.device
    if device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    loop = engine.decoding(max_new_tokens=_TOKENS)
    loop.begin(prompt)
    for _ in range(_WARM):
        if loop.finish_reason is None:
            loop.step()
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(_STEPS):
            if loop.finish_reason is None:
                loop.step()
        torch.cuda.synchronize(device)
    kernels = [one for one in seen.events() or () if one.device_type.name == "CUDA"]
    return idle_share((one.time_range.start, one.time_range.end) for one in kernels)
