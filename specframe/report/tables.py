"""The tables of the report: cells with what they say and what they sort by."""

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
from specframe.report.charts import logprob_gap
from specframe.report.groups import Group
from specframe.report.paired import Comparison
from specframe.report.runs import FinishedRun, flattened

_COMMON = ("command", "started", "ended", "overrides", "config", "state", "error", "seed")


def configurations(groups: Sequence[Group]) -> Table:
    """One row a configuration."""
    return make_table(
        "configurations",
        [
            Column("#", "its number in the pictures", lambda one: count(one.number)),
            Column("configuration", "its words, and the keys that differ", _called, number=False),
            of_numbers("tokens/pass", "acceptance_length, bonus included", "acceptance_length", 2),
            of_numbers("pass cost", "of a pass, in steps of plain decoding", "pass_cost", 2),
            of_numbers("speed", "over plain decoding, in the same process", "speedup", 2),
            of_numbers("efficiency", "speed / tokens a pass", "efficiency", 2),
            of_numbers("tokens/s", "decoding only", "tokens_per_s", 1),
            of_numbers("ms/pass", "of a verify pass with its draft", "pass_ms", 1),
            of_numbers("rows", "verified rows a pass, root included", "rows", 1),
            of_numbers("kept", "drafted tokens a pass that were accepted", "kept", 2),
            Column("p95 ms", "between tokens, 95th percentile", _p95),
            Column("memory MB", "peak of the process or the device", _memory),
            Column("prompts", "answered", lambda one: count(one.numbers.num_prompts)),
            Column("seeds", "runs of this configuration", lambda one: count(len(one.runs))),
        ],
        groups,
    )


def categories(groups: Sequence[Group]) -> Table | None:
    """Speed (or tokens a pass, where nothing was timed beside) by category."""
    names = list(dict.fromkeys(name for one in groups for name in one.categories))
    if len(names) < 2:
        return None

    def column(name: str) -> Column:
        def cell(one: Group) -> Cell:
            found = one.categories.get(name)
            if found is None or found.acceptance_length is None:
                return Cell(text="")
            length = f"{found.acceptance_length:.2f}"
            if found.speedup is None:
                return Cell(text=length, value=found.acceptance_length)
            return Cell(text=f"{found.speedup:.2f}", value=found.speedup, note=length)

        return Column(name.replace("_", " "), f"prompts of {name}", cell)

    first = [
        Column("#", "its number in the pictures", lambda one: count(one.number)),
        Column("configuration", "its words, and the keys that differ", _called, number=False),
    ]
    return make_table("categories", [*first, *map(column, names)], groups)


def comparisons(made: Sequence[Comparison]) -> Table:
    """One row a pair, the faster first."""
    return make_table(
        "comparisons",
        [
            Column("faster", "", lambda one: _numbered(one.one), number=False),
            Column("than", "", lambda one: _numbered(one.other), number=False),
            Column("times as fast", "geometric mean over prompts", _ratio),
            Column("p", "Wilcoxon's signed-rank test, two-sided", lambda one: _p(one.p_value)),
            Column("p, Holm", "for all pairs here", lambda one: _p(one.p_adjusted)),
            Column(
                "wins",
                "prompts on which it is faster",
                lambda one: Cell(
                    text=f"{one.num_wins}/{one.num_prompts}", value=one.num_wins / one.num_prompts
                ),
            ),
            Column("why", "", lambda one: Cell(text=one.reason, value=one.reason), number=False),
        ],
        made,
    )


def quality(groups: Sequence[Group]) -> Table | None:
    """What lossy rules cost; None if every rule is exact."""
    if all(one.lossless is not False for one in groups):
        return None
    scores = list(dict.fromkeys(name for one in groups for name in _scores(one)))
    return make_table(
        "quality",
        [
            Column("#", "its number in the pictures", lambda one: count(one.number)),
            Column("configuration", "", _called, number=False),
            Column("rule", "", _rule, number=False),
            of_numbers("speed", "over plain decoding", "speedup", 2),
            share("same texts", "answers equal to plain decoding's", _same),
            share("tokens alike", "place by place", lambda one: one.quality("agreement_tokens")),
            share("before the first difference", "", lambda one: one.quality("agreement_prefix")),
            Column(
                "log-probability",
                "mean under the target, nats a token",
                lambda one: number(one.quality("target_logprob", "method"), 3),
            ),
            Column("less plain's", "", lambda one: number(logprob_gap(one), 3, sign=True)),
            *(_score(name) for name in scores),
        ],
        groups,
    )


def seeds(groups: Sequence[Group]) -> Table | None:
    """Every run of the configurations with several seeds; None if there are none."""
    several = [(one, run) for one in groups if len(one.runs) > 1 for run in one.runs]
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
    """The manifest's entries in which runs differ, apart from the words; None if none do."""
    flat = [
        {key: value for key, value in flattened(run.manifest).items() if not _is_common(key)}
        for run in runs
    ]
    keys = dict.fromkeys(key for one in flat for key in one)
    differing = [key for key in keys if len({str(one.get(key)) for one in flat}) > 1]
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


def _called(one: Group) -> Cell:
    return Cell(text=one.label, value=one.label)


def _numbered(one: Group) -> Cell:
    return Cell(text=f"{one.number}  {one.label}", value=one.number)


def _ratio(one: Comparison) -> Cell:
    note = f"{one.ends[0]:.2f} to {one.ends[1]:.2f}" if one.ends else ""
    return Cell(text=f"{one.ratio:.2f}", value=one.ratio, note=note)


def p_text(value: float) -> str:
    """A p value as it is printed."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _p(value: float | None) -> Cell:
    if value is None:
        return Cell(text="")
    return Cell(text=p_text(value), value=value)


def _p95(one: Group) -> Cell:
    return number(one.quality("between_tokens_p95_ms", "method"), 0)


def _memory(one: Group) -> Cell:
    held = [run.summary.get("peak_memory_bytes") for run in one.runs]
    known = [each for each in held if each is not None]
    return number(max(known) / 1e6 if known else None, 0)


def _rule(one: Group) -> Cell:
    kind = {True: "exact", False: "lossy", None: "unknown"}[one.lossless]
    return Cell(text=f"{one.facts.get('accept.name', 'match')}, {kind}", value=kind)


def _same(one: Group) -> float | None:
    same, count = one.quality("num_same_text"), one.quality("num_compared")
    return same / count if same is not None and count else None


def _scores(one: Group) -> dict[str, Any]:
    return one.runs[0].overall.get("scores") or {}


def _score(name: str) -> Column:
    def cell(one: Group) -> Cell:
        held = _scores(one).get(name)
        if held is None or "method" not in held:
            return Cell(text="")
        plain = f"plain {100 * held['baseline']:.0f} %" if "baseline" in held else ""
        return Cell(text=f"{100 * held['method']:.0f} %", value=held["method"], note=plain)

    return Column(f"{name} right", "share of the suite's questions", cell)


def _run(run: FinishedRun, name: str) -> Cell:
    return number(getattr(run.numbers, name), 3 if name != "tokens_per_s" else 1)
