"""The numbers of a run, each under one name and with its unit.

acceptance_length is the number of tokens that verify steps emitted, after the cut of stop
conditions and bonus included, over the number of verify passes; prefill's first token is on neither
side. num_accepted excludes the bonus. Over several answers all steps are pooled; the mean over
prompts has a name of its own, since the two can order methods differently.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from specframe.measure.batch_times import BatchTimes
from specframe.measure.clock import PHASES

_STATUS = Path("/proc/self/status")


@dataclass(kw_only=True)
class DepthCount:
    """Numbers of steps at one depth of the drafts, after the cut."""

    drafted: int = 0  # some live node was this deep
    reached: int = 0  # the path came one level above, to a node with a live child
    accepted: int = 0  # a token of this depth was emitted

    @property
    def marginal_rate(self) -> float | None:
        """accepted / drafted, None where nothing was drafted."""
        return _ratio(self.accepted, self.drafted)

    @property
    def conditional_rate(self) -> float | None:
        """accepted / reached: how often this depth was accepted once the path had come above it."""
        return _ratio(self.accepted, self.reached)


@dataclass(kw_only=True)
class Metrics:
    """Counts and times of one answer, or the sum over several answers."""

    num_tokens: int = 0  # all emitted tokens, prefill's first one included
    num_step_tokens: int = 0  # tokens emitted by verify steps
    num_steps: int = 0  # verify passes
    num_target_forwards: int = 0  # verify passes, plus one prefill an answer in however many pieces
    num_accepted: int = 0  # drafted tokens that were emitted
    num_drafted: int = 0  # live drafted nodes
    num_draft_rows: int = 0  # rows that were verified: root, dead and auxiliary ones included
    num_cut: int = 0  # steps that end with a drafted token, because a stop cut there
    only_chains: bool = True  # every draft was a chain
    synthetic: bool = False  # some draft was made by a drafter that knows the text: no real method
    prefill_s: float = 0.0  # from the prompt's text to the first verify step
    decode_s: float = 0.0  # from there to the end of the last step
    total_s: float = 0.0  # everything
    # decode_s by phase, in ms. What lies between two steps (decoding text, printing) is host.
    phase_ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    depths: list[DepthCount] = field(default_factory=list)  # depth 1 first

    @property
    def acceptance_length(self) -> float | None:
        """Tokens of verify steps a verify pass; None without any pass."""
        return _ratio(self.num_step_tokens, self.num_steps)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted of chains; None for trees (see `depths`) and without a draft."""
        return _ratio(self.num_accepted, self.num_drafted) if self.only_chains else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of verify steps / decode_s: decoding only."""
        return _ratio(self.num_step_tokens, self.decode_s)

    @property
    def tokens_per_s_end_to_end(self) -> float | None:
        """All tokens / total_s: prefill included."""
        return _ratio(self.num_tokens, self.total_s)

    def check(self) -> None:
        """Assert the identity of the counts: emitted = accepted + passes - passes that were cut."""
        expected = self.num_accepted + self.num_steps - self.num_cut
        assert self.num_step_tokens == expected, (
            f"verify steps emitted {self.num_step_tokens} tokens, but {self.num_accepted} accepted "
            f"+ {self.num_steps} passes - {self.num_cut} cut make {expected}"
        )

    def add(self, other: Metrics) -> None:
        """Add the counts and times of another answer."""
        self.only_chains &= other.only_chains
        self.synthetic |= other.synthetic
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            if isinstance(mine, bool):
                continue
            if isinstance(mine, int | float):
                setattr(self, each.name, mine + theirs)
        for phase, spent in other.phase_ms.items():
            self.phase_ms[phase] = self.phase_ms.get(phase, 0.0) + spent
        extend_depths(self.depths, len(other.depths))
        for total, more in zip(self.depths, other.depths, strict=False):
            total.drafted += more.drafted
            total.reached += more.reached
            total.accepted += more.accepted

    def as_dict(self) -> dict[str, Any]:
        """Plain values under the names above; the times of phases as `draft_ms` and so on."""
        counts = {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name.startswith("num_")
        }
        rates = {
            "acceptance_length": self.acceptance_length,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_by_depth": [
                _depth_dict(i, count) for i, count in enumerate(self.depths, 1)
            ],
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_end_to_end": self.tokens_per_s_end_to_end,
        }
        times = {name: getattr(self, name) for name in ("prefill_s", "decode_s", "total_s")}
        phases = {f"{name}_ms": ms for name, ms in self.phase_ms.items()}
        return {"synthetic": self.synthetic} | counts | rates | times | phases

    @classmethod
    def of(cls, values: dict[str, Any]) -> Metrics:
        """The numbers of one answer that `as_dict` gave these plain values of."""
        own = {each.name for each in fields(cls)} & values.keys()
        metrics = cls(**{name: values[name] for name in own})
        metrics.only_chains = values["acceptance_rate"] is not None or not metrics.num_drafted
        phases = {name: values[f"{name}_ms"] for name in PHASES if f"{name}_ms" in values}
        metrics.phase_ms.update(phases)
        metrics.depths = [
            DepthCount(
                drafted=depth["num_drafted"],
                reached=depth["num_opportunities"],
                accepted=depth["num_accepted"],
            )
            for depth in values["acceptance_by_depth"]
        ]
        return metrics


class RunSummary:
    """The metrics of all answers of a run, kept as sums."""

    def __init__(self, device: torch.device) -> None:
        self.total = Metrics()
        # Where the drafter remembers earlier sequences: the answers that began "cold" and those
        # that began "warm", each in a summary of its own. Else empty.
        self.starts: dict[str, RunSummary] = {}
        self.num_prompts = 0  # prompts that were answered
        self.num_errors = 0  # prompts that were not
        self.batch: BatchTimes | None = None  # where answers were decoded several at a time
        self._device = device
        self._lengths: list[float] = []

    def add(self, answer: Metrics, *, warm: bool | None = None) -> None:
        """Add an answer. warm: whether its drafter began warm; None for one that has no memory."""
        if warm is not None:
            name = "warm" if warm else "cold"
            self.starts.setdefault(name, RunSummary(self._device)).add(answer)
        self.total.add(answer)
        self.num_prompts += 1
        if answer.acceptance_length is not None:
            self._lengths.append(answer.acceptance_length)

    @property
    def acceptance_length_mean_over_prompts(self) -> float | None:
        """Mean of the answers' acceptance_length, without answers that had no verify pass."""
        return _ratio(sum(self._lengths), len(self._lengths))

    def as_dict(self) -> dict[str, Any]:
        """The plain values that metrics.json has."""
        mean = self.acceptance_length_mean_over_prompts
        return {
            "num_prompts": self.num_prompts,
            "num_errors": self.num_errors,
            **self.total.as_dict(),
            **self._together(),
            "acceptance_length_mean_over_prompts": mean,
            "peak_memory_bytes": peak_memory_bytes(self._device),
            **{name: start.as_dict() for name, start in self.starts.items()},
        }

    def _together(self) -> dict[str, Any]:
        """The times of a batch in place of those of one answer at a time: a step's time belongs to
        all its lanes, so a sum over answers would count it once a lane."""
        if self.batch is None:
            return {}
        alone = dict.fromkeys(("tokens_per_s", "tokens_per_s_end_to_end"))
        ms = _ratio(1e3 * self.total.decode_s, self.total.num_step_tokens)
        return {**alone, **self.batch.as_dict(), "ms_per_token": ms}


def number_names() -> frozenset[str]:
    """The first words of the numbers that `RunSummary.as_dict` may hold."""
    summary = RunSummary(torch.device("cpu"))
    summary.batch = BatchTimes(batch_size=1)
    return frozenset({*summary.as_dict(), "cold", "warm"})


def peak_memory_bytes(device: torch.device) -> int | None:
    """The most memory in use so far, of the CUDA allocator or of this process; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux has the peak of this process alone; the figure below includes that of its parent.
    with suppress(OSError):
        own = re.search(r"^VmHWM:\s+(\d+) kB", _STATUS.read_text(encoding="utf-8"), re.MULTILINE)
        if own is not None:
            return 1024 * int(own[1])
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None


def extend_depths(depths: list[DepthCount], size: int) -> None:
    """Make room for counts down to depth `size`."""
    depths.extend(DepthCount() for _ in range(size - len(depths)))


def _depth_dict(depth: int, count: DepthCount) -> dict[str, Any]:
    return {
        "depth": depth,
        "num_drafted": count.drafted,
        "num_opportunities": count.reached,
        "num_accepted": count.accepted,
        "marginal_rate": count.marginal_rate,
        "conditional_rate": count.conditional_rate,
    }
