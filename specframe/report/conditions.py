"""What the numbers of a run depend on, and which of that two runs must share to be compared.

Two configurations can be compared where plain decoding is the same work for both: they may differ
in drafter, tree, rule and commit, and in nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from specframe.errors import ConfigError
from specframe.report.runs import FinishedRun, flattened

# Keys that say nothing of the numbers. Prompts are told apart by the answers themselves.
_APART = (
    *("seed", "task", "prompt", "prompts", "data", "train", "expects", "trace", "tracker"),
    *("objective", "require_lossless"),
)
_AS_MEASURED = ("device", "threads", "target.dtype")  # the manifest says what came of these
_OF_METHOD = ("drafter", "tree", "accept", "commit")
_SEVERAL = 4  # values of a key that a sentence lists


def facts_of(run: FinishedRun) -> dict[str, Any]:
    """Everything that the numbers of a run may depend on, except the seed, by dotted key."""
    config = {key: value for key, value in run.config.items() if key not in _APART}
    if (config.get("drafter") or {}).get("name") == "none":  # then tree and rule do nothing
        config = {key: value for key, value in config.items() if key not in ("tree", "accept")}
    flat = flattened(config)
    asked = {key: flat.pop(key, None) for key in _AS_MEASURED}
    machine, target = run.manifest.get("hardware") or {}, run.manifest.get("target") or {}
    cuda = machine.get("cuda") or {}
    return {
        **flat,
        "task": run.task,
        "prompts": _digest(sorted(answer.key for answer in run.answers)),
        "torch": (run.manifest.get("packages") or {}).get("torch"),
        "commit": str((run.manifest.get("git") or {}).get("commit"))[:8],
        "machine": cuda.get("device") or machine.get("cpu"),
        "device": target.get("device") or asked["device"],
        "threads": machine.get("torch_threads") or asked["threads"],
        "dtype": target.get("dtype") or asked["target.dtype"],
        "weights": _digest(target["weights"]) if target.get("weights") else None,
    }


def prompts_of(run: FinishedRun, every: Sequence[FinishedRun]) -> str:
    """A digest of the prompts that a run was asked.

    A run that was killed, or could not answer some, has only a part of its prompts. It counts as
    asked the prompts of the first complete run that has all of these.
    """
    keys = {answer.key for answer in run.answers}
    if _is_partial(run):
        for other in every:
            theirs = {answer.key for answer in other.answers}
            if not _is_partial(other) and keys < theirs:
                return _digest(sorted(theirs))
    return _digest(sorted(keys))


def conditions_of(facts: Mapping[str, Any], *, prompts: str) -> dict[str, Any]:
    """What must be equal for two configurations to be compared, beside a seed, by dotted key."""
    shared = {key: value for key, value in facts.items() if key.split(".")[0] not in _OF_METHOD}
    return {**shared, "prompts": prompts}


def apart_words(number: int, conditions: Sequence[Mapping[str, Any]]) -> list[str]:
    """`key=value` of one set for every key in which the sets differ; conditions: one a set."""
    return [f"{key}={_plainly(conditions[number].get(key))}" for key in _differing(conditions)]


def apart_sentence(conditions: Sequence[Mapping[str, Any]]) -> str:
    """In what sets of runs differ that are not compared with each other; conditions: one a set."""
    parts = []
    for key, values in _differing(conditions).items():
        more = f" and {len(values) - _SEVERAL} more" if len(values) > _SEVERAL else ""
        parts.append(f"{key} ({' against '.join(values[:_SEVERAL])}{more})")
    return (
        f"These runs form {len(conditions)} groups, between which nothing is compared, since they "
        f"differ in {', '.join(parts)}."
    )


def check_one_table(runs: Sequence[FinishedRun], *, named: Sequence[str]) -> None:
    """Refuse runs that one table may not hold, with a ConfigError.

    named: the axes whose words name a row, so that its reader sees in what it differs.
    """
    conditions = [
        {
            "seed": run.seed,
            "task.rounds": (run.config.get("task") or {}).get("rounds"),
            **conditions_of(facts_of(run), prompts=prompts_of(run, runs)),
        }
        for run in runs
    ]
    for run, each in zip(runs, conditions, strict=True):
        for key, value in conditions[0].items():
            seen = key.split(".")[0] in (*named, "dtype", "weights")
            if not seen and each.get(key) != value:
                raise ConfigError(
                    f"{run.name}: {key}={each.get(key)}, but {runs[0].name} has {value}; one table "
                    "compares runs that differ in words of the axes alone"
                )


def _differing(conditions: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Key -> its values, for the keys that have several."""
    keys = dict.fromkeys(key for each in conditions for key in each)
    values = {
        key: list(dict.fromkeys(_plainly(each.get(key)) for each in conditions)) for key in keys
    }
    return {key: each for key, each in values.items() if len(each) > 1}


def _is_partial(run: FinishedRun) -> bool:
    return run.state != "finished" or run.num_errors > 0


def _plainly(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "not given" if value is None else str(value)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
