"""Where a head comes from, told so that it can be published: nothing of the machine is in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from specframe.data.answers import Answer
from specframe.data.prompts import PromptRecord

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
    name = str(kept["name"])
    return kept | {"name": PurePath(name).name if name.startswith(("/", "~", ".")) else name}


def publishable(
    manifest: Mapping[str, Any], *, found: Sequence[Mapping[str, Any]] | None
) -> dict[str, Any]:
    """A head's manifest fit to go with it. found: what `sources` gave, None to keep what it has."""
    data = manifest["data"] | ({} if found is None else {"sources": list(found)})
    return {
        "licence": LICENCE,
        **manifest,
        "target": model(manifest["target"]),
        "data": data,
        "command": command(manifest["command"]),
    }


def portable_tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of task=calibrate fit to go with its head, whose place it forgets."""
    prompts = tree["prompts"] and PurePath(tree["prompts"]).name
    return {**tree, "drafter": tree["drafter"]["name"], "prompts": prompts}
