"""One HTML file that needs nothing else: template, style, script and data put together."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import specframe
from specframe.errors import MissingResource
from specframe.report import charts, tables
from specframe.report.cells import counted, plainly
from specframe.report.comparable import comparable_sets
from specframe.report.groups import Group
from specframe.report.lane_curves import lane_curves
from specframe.report.reasons import why
from specframe.report.runs import FinishedRun, flattened
from specframe.report.summary import Content, set_title, summary, warnings
from specframe.report.traces import script_json

_SCRIPTS = ("page.js", "tree.js", "text.js", "viewer.js", "save.js")
_STYLES = ("page.css", "viewer.css")


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
        "traces": script_json(traces),
    }


def _part(number: int, sets: Sequence[Sequence[Group]]) -> dict[str, Any]:
    """The tables and pictures of one set of configurations that can be compared."""
    from markupsafe import Markup

    groups = sets[number]
    return {
        "title": set_title(number, sets),
        "configurations": tables.configurations(groups),
        "categories": tables.categories(groups),
        "quality": tables.quality(groups),
        **{
            name: {size: Markup(svg) for size, svg in sizes.items()}
            for name, sizes in charts.pictures(groups).items()
        },
    }


def _lanes(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    """Throughput against latency of the runs that measured it."""
    from markupsafe import Markup

    return [
        {
            "run": curves.run,
            "sentences": curves.sentences,
            "table": curves.table,
            "pictures": {size: Markup(svg) for size, svg in curves.pictures.items()},
        }
        for curves in lane_curves(runs)
    ]


def _facts(content: Content) -> dict[str, Any]:
    groups, runs = content.groups, content.listed.folders
    sets = comparable_sets(groups)
    return {
        "title": content.title,
        "version": specframe.__version__,
        "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "confidence": f"{100 * content.confidence:g} %",
        "groups": groups,
        "reasons": {group.number: why(group) for group in groups},
        "summary": summary(content),
        "warnings": warnings(content),
        "parts": [_part(number, sets) for number in range(len(sets))],
        "lanes": _lanes(runs),
        "comparisons": tables.comparisons(content.comparisons) if content.comparisons else None,
        "seeds": tables.seeds(groups),
        "spreads": [(group, spread) for group in groups if (spread := _spread(group))],
        "differences": tables.manifest_differences(runs) if len(runs) > 1 else None,
        "manifests": [(run, flattened(run.manifest)) for run in runs],
        "missing": content.listed.missing,
        "num_steps": sum(reader.num_steps for reader in content.traces.values()),
        "machine": _machine(runs),
    }


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
