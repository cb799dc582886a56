"""Where a head comes from, told so that it can be published: nothing of the machine is in it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from specframe.heads.shipped import local_path
from specframe.prompts.answers import Answer
from specframe.prompts.reader import PromptRecord

LICENCE = "Apache-2.0"  # of heads that are trained here, as of the project and of SmolLM2
_UNKNOWN = "unknown"
_PREFIX = ["python", "-m"]  # of a command that was made portable before
_OF_A_MACHINE = ("path", "device")
_PLACE = re.compile(r"(^|[=,\[\s'\"])(~?/[^\s,\]'\"]+)")


def sources(answers: Iterable[Answer], records: Iterable[PromptRecord]) -> list[dict[str, Any]]:
    """Whose prompts the answers are to: source, license and number of answers, most first.

    records: prompts that tell the license of their source.
    """
    licenses = {one.source: one.license for one in records if one.source and one.license}
    counts = Counter(answer.source or _UNKNOWN for answer in answers)
    return [
        {"source": name, "license": licenses.get(name, _UNKNOWN), "answers": count}
        for name, count in counts.most_common()
    ]


def command(arguments: Sequence[str]) -> list[str]:
    """A command line (`sys.argv`, or what this gave) with files by their names alone."""
    words = [_PLACE.sub(lambda found: found[1] + PurePath(found[2]).name, one) for one in arguments]
    return ["python", "-m", "specframe", *words[3 if words[:2] == _PREFIX else 1 :]]


def model(identity: Mapping[str, Any]) -> dict[str, Any]:
    """A target's fingerprint (`manifest.identity`) without the place it was loaded from."""
    kept = {key: value for key, value in identity.items() if key not in _OF_A_MACHINE}
    return kept | {"name": _named(str(kept["name"]))}


def earlier(start: str | None) -> dict[str, Any]:
    """What the head that a training started from tells of its own, under `before`; {} if nothing.

    It is the head's whole manifest but for the fingerprint of the target, which is the same.
    """
    file = None if start is None else Path(local_path(start)).expanduser() / "manifest.json"
    if file is None or not file.is_file():
        return {}
    held = json.loads(file.read_text(encoding="utf-8"))
    held.pop("target", None)
    return {"before": held}


def _named(value: Any) -> Any:
    """A place on this machine by its last name; other values as they are."""
    is_place = isinstance(value, str) and value.startswith(("/", "~", "."))
    return PurePath(value).name if is_place else value


def publishable(
    manifest: Mapping[str, Any], *, found: Sequence[Mapping[str, Any]] | None
) -> dict[str, Any]:
    """A head's manifest fit to go with it. found: what `sources` gave, None to keep what it has."""
    data = manifest["data"] | ({} if found is None else {"sources": list(found)})
    told = {
        "licence": LICENCE,
        **manifest,
        "recipe": {key: _named(value) for key, value in manifest["recipe"].items()},
        "data": data,
        "command": command(manifest["command"]),
    }
    if "target" in told:
        told["target"] = model(told["target"])
    if "before" in told:
        told["before"] = publishable(told["before"], found=None)
    return told


def portable_tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of task=calibrate fit to go with its head, whose place it forgets."""
    prompts = tree["prompts"] and PurePath(tree["prompts"]).name
    return {**tree, "drafter": tree["drafter"]["name"], "prompts": prompts}
