"""Streams that refuse to give the same coin or draw twice in one sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.law.streams import Stream, Streams


class ReusedDraw(ValueError):
    """A coin or a draw was asked for that has already decided something in this sequence."""


class UsedCounters:
    """The counters under which a sequence has asked for coins and draws."""

    def __init__(self) -> None:
        self._used: set[tuple[int | str, ...]] = set()

    def use(self, stream: Stream, counters: tuple[int | Tensor, ...], where: Tensor) -> None:
        """Note the counters of the rows [F] that matter. Raises ReusedDraw if they came before."""
        columns = [_column(counter, where) for counter in counters]
        for matters, *row in zip(where.reshape(-1).tolist(), *columns, strict=True):
            key = (stream, *row)
            if matters and key in self._used:
                raise ReusedDraw(
                    f"the {stream} stream was asked twice for what it gives at the counters "
                    f"{tuple(row)}; every coin and draw that decides emitted text needs counters "
                    "of its own, such as the position at which the step begins and the level"
                )
            if matters:
                self._used.add(key)

    def use_noise(self, position: int | Tensor, where: Tensor) -> None:
        """Note the target noise of a position; rows of one call share it, as one is on the path."""
        self.use("target", (position,), where.any().reshape(1))

    def clear(self) -> None:
        """Forget them: what was decoded is decoded again, with the same coins on purpose."""
        self._used.clear()


def _column(counter: int | Tensor, where: Tensor) -> list[int]:
    values = torch.as_tensor(counter, device=where.device)
    column: list[int] = values.expand(where.shape).reshape(-1).tolist()
    return column


class CheckedStreams(Streams):
    """Streams for a loop that checks its rule and its tree: a repeated coin raises ReusedDraw.

    They give what `Streams` of the same seed give. Coupled draws share the target's noise on
    purpose, and raw uniforms, with which a rule explains a verdict, decide nothing: both may
    repeat. Every call reads its counters on the host.
    """

    def __init__(self, *, seed: int, sequence: int | Tensor = 0) -> None:
        super().__init__(seed=seed, sequence=sequence)
        self._used = UsedCounters()

    def roll_back(self) -> None:
        self._used.clear()

    def target(self, probs: Tensor, position: int | Tensor, where: Tensor) -> Tensor:
        self._used.use_noise(position, where)
        return super().target(probs, position, where)

    def categorical(
        self, stream: Stream, probs: Tensor, counters: tuple[int | Tensor, ...], where: Tensor
    ) -> Tensor:
        self._used.use(stream, counters, where)
        return super().categorical(stream, probs, counters, where)

    def coin(
        self, probability: Tensor, counters: tuple[int | Tensor, ...], where: Tensor
    ) -> Tensor:
        self._used.use("accept", counters, where)
        return super().coin(probability, counters, where)
