"""The tables of the report, of configurations, pairs, seeds and runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specframe.report.cells import (
    Cell,
    Column,
    Table,
    count,
    make_table,
    number,
    of_numbers,
    share,
)
from specframe.report.groups import Group
from specframe.report.lossiness import logprob_gap
from specframe.report.paired import PairedComparison
from specframe.report.runs import FinishedRun, flattened

_COMMON = ("command", "started", "ended", "overrides", "config", "state", "error", "seed")


def configurations(groups: Sequence[Group]) -> Table:
    """A row for each configuration."""
    return make_table(
        "configurations",
        [
            Column("#", "its number in the pictures", lambda group: count(group.number)),
            Column("configuration", "its words, and the keys that differ", _called, number=False),
            of_numbers("tokens/pass", "acceptance_length, bonus included", "acceptance_length", 2),
            of_numbers("pass cost", "of a pass, in steps of plain decoding", "pass_cost", 2),
            of_numbers("speed", "over plain decoding, in the same process", "speedup", 2),
            of_numbers("efficiency", "speed / tokens a pass", "efficiency", 2),
            of_numbers("tokens/s", "decoding only", "tokens_per_s", 1),
            of_numbers("ms/pass", "of a verify pass with its draft", "pass_ms", 1),
            of_numbers("rows", "verified rows a pass, root included", "rows", 1),
            of_numbers("kept", "drafted tokens a pass that were accepted", "accepted", 2),
            Column("p95 ms", "between tokens, 95th percentile", _p95),
            Column("memory MB", "peak of the process or the device", _memory),
            Column("prompts", "answered", lambda group: count(group.numbers.num_prompts)),
            Column("seeds", "runs of this configuration", lambda group: count(len(group.runs))),
        ],
        groups,
    )


def categories(groups: Sequence[Group]) -> Table | None:
    """Speed by category, or tokens a pass where no baseline was timed; None for one category."""
    names = list(dict.fromkeys(name for group in groups for name in group.categories))
    if len(names) < 2:
        return None

    def column(name: str) -> Column:
        def cell(group: Group) -> Cell:
            numbers = group.categories.get(name)
            if numbers is None or numbers.acceptance_length is None:
                return Cell(text="")
            length = f"{numbers.acceptance_length:.2f}"
            if numbers.speedup is None:
                return Cell(text=length, value=numbers.acceptance_length)
            return Cell(text=f"{numbers.speedup:.2f}", value=numbers.speedup, note=length)

        return Column(name.replace("_", " "), f"prompts of {name}", cell)

    first = [
        Column("#", "its number in the pictures", lambda group: count(group.number)),
        Column("configuration", "its words, and the keys that differ", _called, number=False),
    ]
    return make_table("categories", [*first, *map(column, names)], groups)


def comparisons(pairs: Sequence[PairedComparison]) -> Table:
    """A row for each pair, with the faster one first."""
    return make_table(
        "comparisons",
        [
            Column("faster", "", lambda pair: _numbered(pair.faster), number=False),
            Column("than", "", lambda pair: _numbered(pair.slower), number=False),
            Column("times as fast", "geometric mean over prompts", _ratio),
            Column("p", "Wilcoxon's signed-rank test, two-sided", lambda pair: _p(pair.p_value)),
            Column("p, Holm", "for all pairs here", lambda pair: _p(pair.p_adjusted)),
            Column(
                "wins",
                "prompts on which it is faster",
                lambda pair: Cell(
                    text=f"{pair.num_wins}/{pair.num_prompts}",
                    value=pair.num_wins / pair.num_prompts,
                ),
            ),
            Column("why", "", lambda pair: Cell(text=pair.reason, value=pair.reason), number=False),
        ],
        pairs,
    )


def quality(groups: Sequence[Group]) -> Table | None:
    """What lossy rules cost; None if every rule is exact."""
    if all(group.lossless is not False for group in groups):
        return None
    scores = list(dict.fromkeys(name for group in groups for name in _scores(group)))
    return make_table(
        "quality",
        [
            Column("#", "its number in the pictures", lambda group: count(group.number)),
            Column("configuration", "", _called, number=False),
            Column("rule", "", _rule, number=False),
            of_numbers("speed", "over plain decoding", "speedup", 2),
            share("same texts", "answers equal to plain decoding's", _same),
            share(
                "tokens alike", "place by place", lambda group: group.quality("agreement_tokens")
            ),
            share(
                "before the first difference", "", lambda group: group.quality("agreement_prefix")
            ),
            Column(
                "log-probability",
                "mean under the target, nats a token",
                lambda group: number(group.quality("target_logprob", "method"), 3),
            ),
            Column("less plain's", "", lambda group: number(logprob_gap(group), 3, sign=True)),
            *(_score(name) for name in scores),
        ],
        groups,
    )


def seeds(groups: Sequence[Group]) -> Table | None:
    """A row for each run of the configurations with several seeds; None if there are none."""
    several = [(group, run) for group in groups if len(group.runs) > 1 for run in group.runs]
    if not several:
        return None
    return make_table(
        "seeds",
        [
            Column("#", "", lambda pair: count(pair[0].number)),
            Column("configuration", "", lambda pair: _called(pair[0]), number=False),
            Column("seed", "", lambda pair: Cell(text=str(pair[1].seed), value=pair[1].seed)),
            Column("tokens/pass", "", lambda pair: _run(pair[1], "acceptance_length")),
            Column("speed", "", lambda pair: _run(pair[1], "speedup")),
            Column("tokens/s", "", lambda pair: _run(pair[1], "tokens_per_s")),
        ],
        several,
    )


def manifest_differences(runs: Sequence[FinishedRun]) -> Table | None:
    """The entries of manifests in which runs differ beside their words; None if there are none."""
    flat = [
        {key: value for key, value in flattened(run.manifest).items() if not _is_common(key)}
        for run in runs
    ]
    keys = dict.fromkeys(key for entries in flat for key in entries)
    differing = [key for key in keys if len({str(entries.get(key)) for entries in flat}) > 1]
    if not differing:
        return None
    columns = [
        Column("run", "", lambda pair: Cell(text=pair[0].name), number=False),
        *map(_entry, differing),
    ]
    return make_table("differences", columns, list(zip(runs, flat, strict=True)))


def _entry(key: str) -> Column:
    """A column of one key of flattened manifests."""

    def cell(pair: tuple[FinishedRun, dict[str, Any]]) -> Cell:
        return Cell(text=str(pair[1].get(key, "")))

    return Column(key, "", cell, number=False)


def _is_common(key: str) -> bool:
    return key.partition(".")[0] in _COMMON or key.startswith("hardware.memory")


def _called(group: Group) -> Cell:
    return Cell(text=group.label, value=group.label)


def _numbered(group: Group) -> Cell:
    return Cell(text=f"{group.number}  {group.label}", value=group.number)


def _ratio(pair: PairedComparison) -> Cell:
    note = f"{pair.ends[0]:.2f} to {pair.ends[1]:.2f}" if pair.ends else ""
    return Cell(text=f"{pair.ratio:.2f}", value=pair.ratio, note=note)


def p_text(value: float) -> str:
    """A p value as it is printed."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _p(value: float | None) -> Cell:
    if value is None:
        return Cell(text="")
    return Cell(text=p_text(value), value=value)


def _p95(group: Group) -> Cell:
    return number(group.quality("between_tokens_p95_ms", "method"), 0)


def _memory(group: Group) -> Cell:
    peaks = [run.summary.get("peak_memory_bytes") for run in group.runs]
    known = [peak for peak in peaks if peak is not None]
    return number(max(known) / 1e6 if known else None, 0)


def _rule(group: Group) -> Cell:
    kind = {True: "exact", False: "lossy", None: "unknown"}[group.lossless]
    return Cell(text=f"{group.facts.get('accept.name', 'match')}, {kind}", value=kind)


def _same(group: Group) -> float | None:
    same, count = group.quality("num_same_text"), group.quality("num_compared")
    return same / count if same is not None and count else None


def _scores(group: Group) -> dict[str, Any]:
    return group.runs[0].overall.get("scores") or {}


def _score(name: str) -> Column:
    def cell(group: Group) -> Cell:
        right = _scores(group).get(name)
        if right is None or "method" not in right:
            return Cell(text="")
        plain = f"plain {100 * right['baseline']:.0f} %" if "baseline" in right else ""
        return Cell(text=f"{100 * right['method']:.0f} %", value=right["method"], note=plain)

    return Column(f"{name} right", "share of the suite's questions", cell)


def _run(run: FinishedRun, name: str) -> Cell:
    return number(getattr(run.numbers, name), 3 if name != "tokens_per_s" else 1)
