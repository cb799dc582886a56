"""Times of several answers at once, which are those of all lanes together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(kw_only=True)
class BatchTimes:
    """Where the time of a batch went. A prefill stops all lanes, so it counts in `wall_s`."""

    batch_size: int  # lanes
    num_tokens: int = 0  # emitted by all answers
    wall_s: float = 0.0  # from the first prompt to the last token
    num_steps: int = 0  # verify passes, each of all lanes that were under way
    num_lane_steps: int = 0  # the same, counted once a lane
    full_tokens: int = 0  # emitted by steps in which every lane was under way
    full_s: float = 0.0  # time of those steps

    def add_prefill(self, *, num_tokens: int, spent_s: float) -> None:
        """Add the prefill of one prompt."""
        self.num_tokens += num_tokens
        self.wall_s += spent_s

    def add_step(self, *, num_tokens: int, num_lanes: int, spent_s: float) -> None:
        """Add a step of so many lanes."""
        self.num_tokens += num_tokens
        self.wall_s += spent_s
        self.num_steps += 1
        self.num_lane_steps += num_lanes
        if num_lanes == self.batch_size:
            self.full_tokens += num_tokens
            self.full_s += spent_s

    @property
    def throughput(self) -> float | None:
        """Tokens of all lanes a second, prefills and the last answers' empty lanes included."""
        return self.num_tokens / self.wall_s if self.wall_s else None

    @property
    def full_throughput(self) -> float | None:
        """Tokens a second of steps in which every lane was under way; prefills are left out."""
        return self.full_tokens / self.full_s if self.full_s else None

    @property
    def mean_lanes(self) -> float | None:
        """Lanes that were under way, in the mean over steps."""
        return self.num_lane_steps / self.num_steps if self.num_steps else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values under the names above."""
        return {
            "batch_size": self.batch_size,
            "throughput": self.throughput,
            "full_throughput": self.full_throughput,
            "mean_lanes": self.mean_lanes,
            "wall_s": self.wall_s,
        }
