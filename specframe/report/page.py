"""One HTML file that needs nothing else: template, style, script and data put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import specframe
from specframe.errors import MissingResource
from specframe.report import charts, tables
from specframe.report.cells import counted, plainly
from specframe.report.groups import Group
from specframe.report.paired import MIN_PROMPTS, PairedComparison
from specframe.report.reasons import why
from specframe.report.runs import FinishedRun, RunList, flattened
from specframe.report.traces import TraceReader, script_json

_SCRIPTS = ("page.js", "tree.js", "text.js", "viewer.js")
_STYLES = ("page.css", "viewer.css")


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a report is made of."""

    title: str
    listed: RunList  # the runs, and the points of sweeps without numbers
    groups: Sequence[Group]
    comparisons: Sequence[PairedComparison]
    confidence: float  # level of the intervals
    traces: dict[str, TraceReader]  # name of a run -> its trace


def render(content: Content) -> str:
    """The page. Raises MissingResource where jinja2 or matplotlib is not installed."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise MissingResource(
            "task=report fills its page with jinja2, which is not installed; pip install jinja2"
        ) from None
    environment = Environment(
        loader=PackageLoader("specframe.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["plainly"] = plainly
    ours = {name: Markup(text) for name, text in _ours(content).items()}
    return environment.get_template("page.html").render(**ours, **_facts(content))


def _ours(content: Content) -> dict[str, str]:
    """What needs no escaping: our style and script, the pictures, and the traces as JSON."""
    groups = content.groups
    called = {run.name: f"{group.number} {group.label}" for group in groups for run in group.runs}
    traces = [
        reader.as_dict(f"{called[name]}  ({name})") for name, reader in content.traces.items()
    ]
    return {
        "style": "\n".join(_asset(name) for name in _STYLES),
        "script": "\n".join(_asset(name) for name in _SCRIPTS),
        "speed": charts.speed_by_acceptance(groups),
        "cost": charts.token_cost(groups),
        "depth": charts.acceptance_by_depth(groups),
        "quality_plot": charts.quality_by_speed(groups),
        "traces": script_json(traces),
    }


def _facts(content: Content) -> dict[str, Any]:
    groups, runs = content.groups, content.listed.runs
    return {
        "title": content.title,
        "version": specframe.__version__,
        "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "confidence": f"{100 * content.confidence:g} %",
        "groups": groups,
        "reasons": {group.number: why(group) for group in groups},
        "summary": _summary(content),
        "warnings": _warnings(content),
        "configurations": tables.configurations(groups),
        "categories": tables.categories(groups),
        "comparisons": tables.comparisons(content.comparisons) if content.comparisons else None,
        "quality": tables.quality(groups),
        "seeds": tables.seeds(groups),
        "spreads": [(group, spread) for group in groups if (spread := _spread(group))],
        "differences": tables.manifest_differences(runs) if len(runs) > 1 else None,
        "manifests": [(run, flattened(run.manifest)) for run in runs],
        "missing": content.listed.missing,
        "num_steps": sum(reader.num_steps for reader in content.traces.values()),
        "machine": _machine(runs),
    }


def _summary(content: Content) -> list[str]:
    """The sentences at the top: which configuration is fastest, and by how much over the next."""
    timed = [group for group in content.groups if group.speed is not None]
    if not timed:
        return ["Nothing was timed."]
    # A speed over plain decoding is a ratio; seconds of different runs are no order.
    timed = [group for group in timed if group.numbers.speedup is not None] or timed
    best = max(timed, key=lambda group: group.speed or 0.0)
    sentences = [f"{best.label}: {why(best)[0]}"]
    pairs = [pair for pair in content.comparisons if pair.faster is best]
    if pairs:
        closest = min(pairs, key=lambda pair: pair.ratio)
        sentences.append(
            f"Over the next, {closest.slower.label}, it is {closest.ratio:.2f} times as fast"
            f"{_significance(closest, content.confidence)}: {closest.reason}"
        )
    return sentences


def _significance(pair: PairedComparison, confidence: float) -> str:
    """How sure the difference of the two is, in brackets; "" where nothing can be said."""
    p_value = pair.p_adjusted
    if p_value is None:
        return " (too few prompts for a test)" if pair.num_prompts < MIN_PROMPTS else ""
    doubt = "" if p_value <= 1 - confidence else ", so it may be chance"
    return f" (p {tables.p_text(p_value)} over prompts{doubt})"


def _warnings(content: Content) -> list[str]:
    """What a reader has to know before relying on the numbers."""
    warnings = []
    groups = content.groups
    if len({group.facts["prompts"] for group in groups}) > 1:
        warnings.append(
            "Not every run answered the same prompts. Tests between two are over those they share; "
            "compare the other numbers with care."
        )
    if any(group.numbers.speedup is None and not group.is_plain for group in groups):
        warnings.append(
            "Where no speed over plain decoding stands, it was not measured in the same run: "
            "seconds of runs at different times compare machines as well as methods. "
            "task=benchmark measures both at once."
        )
    whole = sum(not group.numbers.shares and not group.is_plain for group in groups)
    if whole:
        warnings.append(
            f"What makes a pass dear, drafting or verifying, was not measured for {whole} of "
            f"{counted(len(groups), 'configuration')}: task.split=true does."
        )
    if any(
        (run.summary.get("overall") or {}).get("method", run.summary).get("synthetic")
        for run in content.listed.runs
    ):
        warnings.append(
            "A drafter here was told the text (synthetic): its numbers are no method's."
        )
    return [*warnings, *_incomplete(content)]


def _incomplete(content: Content) -> Iterator[str]:
    """What is missing of runs and of traces."""
    for run in content.listed.runs:
        done = len(run.answers) + run.num_errors
        if run.num_planned and done < run.num_planned:
            yield f"{run.name} answered {done} of {run.num_planned} prompts so far."
        if run.num_errors:
            yield f"{run.name}: {run.num_errors} prompts could not be answered."
        yield from (f"{run.name}: {failure}" for failure in run.summary.get("failures") or [])
    for name, reader in content.traces.items():
        if reader.num_left_out:
            yield (
                f"{name}: the trees of {reader.num_left_out} later steps are left out "
                f"(task.max_steps={reader.max_steps})."
            )


def _spread(group: Group) -> dict[str, tuple[float, float]]:
    names = {
        "acceptance_length": "tokens a pass",
        "speedup": "speed over plain decoding",
        "tokens_per_s": "tokens/s",
    }
    spreads = {heading: group.spread(name) for name, heading in names.items()}
    return {heading: ends for heading, ends in spreads.items() if ends is not None}


def _machine(runs: Sequence[FinishedRun]) -> str:
    hardware = [run.manifest.get("hardware") or {} for run in runs]
    machines = {
        (entry.get("cuda") or {}).get("device")
        or f"{entry['cpu']}, {counted(entry.get('torch_threads'), 'thread')}"
        for entry in hardware
        if entry.get("cpu")
    }
    return "; ".join(sorted(machines))


def _asset(name: str) -> str:
    return (resources.files("specframe.report") / "assets" / name).read_text(encoding="utf-8")
