"""The numbers of a run, each under one name and with its unit.

acceptance_length is tokens emitted by verify steps / verify passes, after the cut of stop
conditions, bonus included; prefill's first token is on neither side. num_accepted excludes the
bonus. Over several answers it pools all steps; the mean over prompts has its own name, since the
two can order methods differently.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from specframe.measure.clock import PHASES

_STATUS = Path("/proc/self/status")


@dataclass(kw_only=True)
class DepthCount:
    """Steps (counts) at one depth of the drafts, after the cut.

    drafted: some live node was this deep. reached: the walk stood one level above and had a live
    child to take. accepted: a token of this depth was emitted.
    """

    drafted: int = 0
    reached: int = 0
    accepted: int = 0

    @property
    def marginal_rate(self) -> float | None:
        """accepted / drafted."""
        return _ratio(self.accepted, self.drafted)

    @property
    def conditional_rate(self) -> float | None:
        """accepted / reached: how often the next level was taken once the walk stood above it."""
        return _ratio(self.accepted, self.reached)


@dataclass(kw_only=True)
class Metrics:
    """Counts and times of one answer, or the sum of several.

    num_tokens: all emitted tokens, prefill's first included. num_step_tokens: of verify steps.
    num_steps: verify passes. num_target_forwards: verify passes plus one prefill an answer (in
    however many pieces). num_accepted: drafted tokens emitted. num_drafted: live drafted nodes.
    num_draft_rows: rows verified; root, dead and auxiliary ones included. num_cut: steps whose last
    token was drafted, because a stop cut there. only_chains: every draft was a chain. synthetic:
    some draft was made by one who was told the text, so these are no method's numbers.
    prefill_s: from the prompt's text to the first verify step. decode_s: from there to the end of
    the last step. total_s: everything. phase_ms: decode_s by phase; what lies between two steps
    (decoding text, printing) is counted under host.
    """

    num_tokens: int = 0
    num_step_tokens: int = 0
    num_steps: int = 0
    num_target_forwards: int = 0
    num_accepted: int = 0
    num_drafted: int = 0
    num_draft_rows: int = 0
    num_cut: int = 0
    only_chains: bool = True
    synthetic: bool = False
    prefill_s: float = 0.0
    decode_s: float = 0.0
    total_s: float = 0.0
    phase_ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    depths: list[DepthCount] = field(default_factory=list)  # depth 1 first

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per verify pass; None without any pass."""
        return _ratio(self.num_step_tokens, self.num_steps)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens, for chains; None for trees, see `depths`, and no draft."""
        return _ratio(self.num_accepted, self.num_drafted) if self.only_chains else None

    @property
    def tokens_per_s(self) -> float | None:
        """Decode only: tokens of verify steps / decode_s."""
        return _ratio(self.num_step_tokens, self.decode_s)

    @property
    def tokens_per_s_end_to_end(self) -> float | None:
        """All tokens / total_s, prefill included."""
        return _ratio(self.num_tokens, self.total_s)

    def check(self) -> None:
        """The identity of the counts: emitted = accepted + passes - passes that were cut."""
        expected = self.num_accepted + self.num_steps - self.num_cut
        assert self.num_step_tokens == expected, (
            f"verify steps emitted {self.num_step_tokens} tokens, but {self.num_accepted} accepted "
            f"+ {self.num_steps} passes - {self.num_cut} cut make {expected}"
        )

    def add(self, other: Metrics) -> None:
        """Count another answer in."""
        self.only_chains &= other.only_chains
        self.synthetic |= other.synthetic
        for one in fields(self):
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            if isinstance(mine, bool):
                continue
            if isinstance(mine, int | float):
                setattr(self, one.name, mine + theirs)
        for phase, spent in other.phase_ms.items():
            self.phase_ms[phase] = self.phase_ms.get(phase, 0.0) + spent
        extend_depths(self.depths, len(other.depths))
        for total, more in zip(self.depths, other.depths, strict=False):
            total.drafted += more.drafted
            total.reached += more.reached
            total.accepted += more.accepted

    def as_dict(self) -> dict[str, Any]:
        """Plain values under the names above; times of phases as `draft_ms` and so on."""
        counts = {
            one.name: getattr(self, one.name) for one in fields(self) if one.name.startswith("num_")
        }
        rates = {
            "acceptance_length": self.acceptance_length,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_by_depth": [_depth_dict(i, one) for i, one in enumerate(self.depths, 1)],
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_end_to_end": self.tokens_per_s_end_to_end,
        }
        times = {name: getattr(self, name) for name in ("prefill_s", "decode_s", "total_s")}
        phases = {f"{name}_ms": ms for name, ms in self.phase_ms.items()}
        return {"synthetic": self.synthetic} | counts | rates | times | phases


class RunSummary:
    """Metrics over the answers of a run, kept as sums.

    starts: where the drafter keeps what it learnt, the answers that began "cold" and those that
    began "warm", each in a summary of its own; else empty.
    """

    def __init__(self, device: torch.device) -> None:
        self.total = Metrics()
        self.starts: dict[str, RunSummary] = {}
        self.num_prompts = 0  # answered
        self.num_errors = 0
        self._device = device
        self._lengths: list[float] = []

    def add(self, answer: Metrics, *, warm: bool | None = None) -> None:
        """Count an answer; warm: `Drafter.warm` of its sequence."""
        if warm is not None:
            name = "warm" if warm else "cold"
            self.starts.setdefault(name, RunSummary(self._device)).add(answer)
        self.total.add(answer)
        self.num_prompts += 1
        if answer.acceptance_length is not None:
            self._lengths.append(answer.acceptance_length)

    @property
    def acceptance_length_mean_over_prompts(self) -> float | None:
        """Mean of each answer's acceptance_length, answers without a verify pass left out."""
        return _ratio(sum(self._lengths), len(self._lengths))

    def as_dict(self) -> dict[str, Any]:
        """What metrics.json holds."""
        mean = self.acceptance_length_mean_over_prompts
        return {
            "num_prompts": self.num_prompts,
            "num_errors": self.num_errors,
            **self.total.as_dict(),
            "acceptance_length_mean_over_prompts": mean,
            "peak_memory_bytes": peak_memory_bytes(self._device),
            **{name: start.as_dict() for name, start in self.starts.items()},
        }


def peak_memory_bytes(device: torch.device) -> int | None:
    """The most memory in use so far: of the allocator on a CUDA device, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):  # Linux; the figure below holds the peak of who started the process too
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
