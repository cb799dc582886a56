"""One HTML file that needs nothing else: template, style, script and data put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import specframe
from specframe.errors import MissingResource
from specframe.report import charts, tables
from specframe.report.cells import counted, plainly
from specframe.report.groups import Group
from specframe.report.paired import MIN_PROMPTS, Comparison
from specframe.report.reasons import why
from specframe.report.runs import FinishedRun, RunList, flattened
from specframe.report.traces import TraceReader, script_json

_SCRIPTS = ("page.js", "tree.js", "text.js", "viewer.js")
_STYLES = ("page.css", "viewer.css")


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a report is made of. traces: by the run's name."""

    title: str
    found: RunList
    groups: Sequence[Group]
    comparisons: Sequence[Comparison]
    confidence: float
    traces: dict[str, TraceReader]


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
    """What is markup already: our style and script, the pictures, and the traces as JSON."""
    groups = content.groups
    called = {run.name: f"{one.number} {one.label}" for one in groups for run in one.runs}
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
    groups, runs = content.groups, content.found.runs
    return {
        "title": content.title,
        "version": specframe.__version__,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "confidence": f"{100 * content.confidence:g} %",
        "groups": groups,
        "reasons": {one.number: why(one) for one in groups},
        "summary": _summary(content),
        "warnings": _warnings(content),
        "configurations": tables.configurations(groups),
        "categories": tables.categories(groups),
        "comparisons": tables.comparisons(content.comparisons) if content.comparisons else None,
        "quality": tables.quality(groups),
        "seeds": tables.seeds(groups),
        "spreads": [(one, spread) for one in groups if (spread := _spread(one))],
        "differences": tables.manifest_differences(runs) if len(runs) > 1 else None,
        "manifests": [(run, flattened(run.manifest)) for run in runs],
        "missing": content.found.missing,
        "num_steps": sum(one.num_steps for one in content.traces.values()),
        "machine": _machine(runs),
    }


def _summary(content: Content) -> list[str]:
    """What to know first: the fastest, what it beats, and by what."""
    timed = [one for one in content.groups if one.speed is not None]
    if not timed:
        return ["Nothing was timed."]
    # A speed over plain decoding is a ratio; seconds of different runs are no order.
    timed = [one for one in timed if one.numbers.speedup is not None] or timed
    best = max(timed, key=lambda one: one.speed or 0.0)
    told = [f"{best.label}: {why(best)[0]}"]
    beaten = [one for one in content.comparisons if one.one is best]
    if beaten:
        other = min(beaten, key=lambda one: one.ratio)
        told.append(
            f"Over the next, {other.other.label}, it is {other.ratio:.2f} times as fast"
            f"{_sure(other, content.confidence)}: {other.reason}"
        )
    return told


def _sure(pair: Comparison, confidence: float) -> str:
    """How far the prompts tell the two apart."""
    p_value = pair.p_adjusted
    if p_value is None:
        return " (too few prompts for a test)" if pair.num_prompts < MIN_PROMPTS else ""
    doubt = "" if p_value <= 1 - confidence else ", so it may be chance"
    return f" (p {tables.p_text(p_value)} over prompts{doubt})"


def _warnings(content: Content) -> list[str]:
    """What a reader has to know before believing a number."""
    told = []
    groups = content.groups
    if len({one.facts["prompts"] for one in groups}) > 1:
        told.append(
            "Not every run answered the same prompts. Tests between two are over those they share; "
            "compare the other numbers with care."
        )
    if any(one.numbers.speedup is None and not one.is_plain for one in groups):
        told.append(
            "Where no speed over plain decoding stands, it was not measured beside: seconds of "
            "runs at different times compare machines as well as methods. task=benchmark measures "
            "both at once."
        )
    whole = sum(not one.numbers.shares and not one.is_plain for one in groups)
    if whole:
        told.append(
            f"What makes a pass dear, drafting or verifying, was not measured for {whole} of "
            f"{counted(len(groups), 'configuration')}: task.split=true does."
        )
    if any(
        (run.summary.get("overall") or {}).get("method", run.summary).get("synthetic")
        for run in content.found.runs
    ):
        told.append("A drafter here was told the text (synthetic): its numbers are no method's.")
    for run in content.found.runs:
        done = len(run.answers) + run.num_errors
        if run.num_planned and done < run.num_planned:
            told.append(f"{run.name} answered {done} of {run.num_planned} prompts so far.")
        if run.num_errors:
            told.append(f"{run.name}: {run.num_errors} prompts could not be answered.")
        told += [f"{run.name}: {one}" for one in run.summary.get("failures") or []]
    for name, reader in content.traces.items():
        if reader.num_left_out:
            told.append(
                f"{name}: the trees of {reader.num_left_out} later steps are left out "
                f"(task.max_steps={reader.max_steps})."
            )
    return told


def _spread(one: Group) -> dict[str, tuple[float, float]]:
    names = {
        "acceptance_length": "tokens a pass",
        "speedup": "speed over plain decoding",
        "tokens_per_s": "tokens/s",
    }
    held = {told: one.spread(name) for name, told in names.items()}
    return {told: ends for told, ends in held.items() if ends is not None}


def _machine(runs: Sequence[FinishedRun]) -> str:
    hardware = [run.manifest.get("hardware") or {} for run in runs]
    told = {
        (one.get("cuda") or {}).get("device")
        or f"{one['cpu']}, {counted(one.get('torch_threads'), 'thread')}"
        for one in hardware
        if one.get("cpu")
    }
    return "; ".join(sorted(told))


def _asset(name: str) -> str:
    return (resources.files("specframe.report") / "assets" / name).read_text(encoding="utf-8")
