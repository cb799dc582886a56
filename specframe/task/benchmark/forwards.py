"""How long the forwards of a model or a target take, while someone else calls them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from specframe.measure.clock import Clock


@dataclass
class Forwards:
    """The calls so far, by the clock of the loop: host time on a CPU, events on a CUDA device."""

    clock: Clock
    marks: list[list[tuple[str, object]]] = field(default_factory=list)

    def seconds(self) -> list[float]:
        """Of each call. Waits for the device; to be asked once everything is done."""
        return [1e-3 * sum(self.clock.durations_ms(one).values()) for one in self.marks]


@contextmanager
def forwards(owner: Any, device: torch.device) -> Iterator[Forwards]:
    """Watches `owner.forward` while it lasts."""
    spent = Forwards(Clock(device))
    forward = owner.forward
    hooked = vars(owner).get("forward")  # accelerate puts its own there

    def timed(*args: Any, **kwargs: Any) -> Any:
        clock = Clock(device)
        clock.start()
        try:
            return forward(*args, **kwargs)
        finally:
            clock.mark("verify")
            spent.marks.append(clock.marks)

    # generate() looks at the signature to know what the model takes.
    timed.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    owner.forward = timed
    try:
        yield spent
    finally:
        if hooked is None:
            del owner.forward
        else:
            owner.forward = hooked
