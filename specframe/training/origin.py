"""Where a head comes from, in a form that can be published.

The manifest names data, licences and the command, and nothing of the machine: of every path only
its last name is left.
"""

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
_PREFIX = ["python", "-m"]  # how a command begins that is portable already
_OF_A_MACHINE = ("path", "device")  # keys of a fingerprint
_PLACE = re.compile(r"(^|[=,\[\s'\"])(~?/[^\s,\]'\"]+)")


def sources(answers: Iterable[Answer], records: Iterable[PromptRecord]) -> list[dict[str, Any]]:
    """The collections of the prompts: source, license and number of answers, most first.

    records: prompts that name the license of their source.
    """
    named = [record for record in records if record.source and record.license]
    licenses = {record.source: record.license for record in named}
    counts = Counter(answer.source or _UNKNOWN for answer in answers)
    return [
        {"source": name, "license": licenses.get(name, _UNKNOWN), "answers": count}
        for name, count in counts.most_common()
    ]


def command(arguments: Sequence[str]) -> list[str]:
    """A command line (`sys.argv`, or one that is portable already) with bare names of files."""
    words = [_PLACE.sub(lambda m: m[1] + PurePath(m[2]).name, word) for word in arguments]
    return ["python", "-m", "specframe", *words[3 if words[:2] == _PREFIX else 1 :]]


def model(identity: Mapping[str, Any]) -> dict[str, Any]:
    """A target's fingerprint (`manifest.identity`) without the place it was loaded from."""
    portable = {key: value for key, value in identity.items() if key not in _OF_A_MACHINE}
    return portable | {"name": _named(str(portable["name"]))}


def earlier(start: str | None) -> dict[str, Any]:
    """The manifest of the head that a training started from, under `before`; {} without one.

    The fingerprint of the target is left out, as it is the same.
    """
    file = None if start is None else Path(local_path(start)).expanduser() / "manifest.json"
    if file is None or not file.is_file():
        return {}
    before = json.loads(file.read_text(encoding="utf-8"))
    before.pop("target", None)
    return {"before": before}


def _named(value: Any) -> Any:
    """The last name of a path on this machine; other values as they are."""
    is_place = isinstance(value, str) and value.startswith(("/", "~", "."))
    return PurePath(value).name if is_place else value


def publishable(
    manifest: Mapping[str, Any], *, prompt_sources: Sequence[Mapping[str, Any]] | None
) -> dict[str, Any]:
    """A head's manifest without anything of the machine.

    prompt_sources: as `sources` gives them; None to keep those that the manifest has.
    """
    more = {} if prompt_sources is None else {"sources": list(prompt_sources)}
    data = manifest["data"] | more
    published = {
        "licence": LICENCE,
        **manifest,
        "recipe": {key: _named(value) for key, value in manifest["recipe"].items()},
        "data": data,
        "command": command(manifest["command"]),
    }
    if "target" in published:
        published["target"] = model(published["target"])
    if "before" in published:
        published["before"] = publishable(published["before"], prompt_sources=None)
    return published


def portable_tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of task=calibrate without the paths of its head and its prompts."""
    prompts = tree["prompts"] and PurePath(tree["prompts"]).name
    return {**tree, "drafter": tree["drafter"]["name"], "prompts": prompts}
