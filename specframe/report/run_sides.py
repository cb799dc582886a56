"""The sides of a benchmark that compares several, each as a run of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specframe.measure.bootstrap import Bootstrap
from specframe.report.numbers import by_category, measure
from specframe.report.run_answers import BASELINE, METHOD, read_answers
from specframe.report.runs import FinishedRun, RunList


def with_sides(listed: RunList, *, bootstrap: Bootstrap) -> RunList:
    """The runs, and behind each benchmark the sides that it compared (its task.compare)."""
    runs = []
    for run in listed.runs:
        runs += [run, *_sides(run, bootstrap)]
    return replace(listed, runs=runs)


def _sides(run: FinishedRun, bootstrap: Bootstrap) -> list[FinishedRun]:
    lines = (run.summary.get("comparison") or {}).get("sides") or []
    made = [_side(run, line, bootstrap) for line in lines if line["name"] != METHOD]
    return [side for side in made if side is not None]


def _side(run: FinishedRun, line: dict[str, Any], bootstrap: Bootstrap) -> FinishedRun | None:
    """One side; line: its entry in the summary. None if it has no answers."""
    name = line["name"]
    answered = read_answers(run.folder, side=name, base=line["exact"])
    if answered is None or not answered.answers:
        return None
    config = _config(run.config, line)
    own_target = any(word.startswith("target") for word in name.split())
    target = None if own_target else run.manifest.get("target")
    overall = {"num_compared": line["num_texts"], "num_same_text": line["num_same_text"]}
    return replace(
        run,
        name=f"{run.name} [{line['label']}]",
        config=config,
        manifest={**run.manifest, "config": config, "target": target},
        answers=answered.answers,
        numbers=measure(answered.answers, split=line["steps"] or None, bootstrap=bootstrap),
        categories=by_category(answered.answers),
        summary={"overall": overall if line["num_same_text"] is not None else {}},
        trace=None,
    )


def _config(config: dict[str, Any], line: dict[str, Any]) -> dict[str, Any]:
    """The run's configuration with the words of a side in it, as far as the words tell."""
    words: Sequence[str] = line["name"].split()
    if line["name"] == BASELINE:
        words = ["drafter=none"]
    elif line["peer"]:  # another engine, which has no drafter, tree or rule of ours
        config = {key: value for key, value in config.items() if key not in ("tree", "accept")}
        config["drafter"] = {"name": line["label"]}
        words = [word for word in words if word.startswith(("target", "device")) and "=" in word]
    for word in words:
        key, _, value = word.partition("=")
        axis, dot, entry = key.partition(".")
        before = config.get(axis)
        if dot:
            config = {**config, axis: {**(before or {}), entry: value}}
        elif isinstance(before, dict):
            # Without a word of its own the side has the run's component, with its numbers.
            same = before.get("name") == value
            config = {**config, axis: before if same else {"name": value}}
        else:
            config = {**config, axis: value}
    return config
