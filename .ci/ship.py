"""Puts a head that task=train exported into the package, with a manifest that can be published.

    python .ci/ship.py runs/eagle/head smollm2 --tree runs/calibrate/tree_greedy.json

The head's own folder is not changed. tests/heads/test_shipped.py tells whether what ships is
complete.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specframe.heads.shipped import HEADS
from specframe.prompts.answers import Answer, read_answers
from specframe.prompts.reader import read_prompts
from specframe.session.manifest import write_json
from specframe.training.origin import earlier, portable_tree, publishable, sources

VOCABULARY = "vocabulary.json"
_COUNTS = "calibration.json"  # what task=calibrate made the tree of, beside it


def main() -> None:
    """Read the command line and copy."""
    asked = arguments()
    held = json.loads((asked.head / "manifest.json").read_text(encoding="utf-8"))
    prompts = [one for file in asked.prompts for one in read_prompts(file)]
    found = sources(answers(asked.answers), prompts)
    place = HEADS / asked.target / held["drafter"]
    place.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", VOCABULARY):
        if (asked.head / name).is_file():
            shutil.copyfile(asked.head / name, place / name)
    for file in asked.head.glob("*.safetensors"):
        shutil.copyfile(file, place / file.name)
    if asked.vocabulary is not None:
        shutil.copyfile(asked.vocabulary, place / VOCABULARY)
    if asked.tree is not None:
        for name, file in ("tree.json", asked.tree), (_COUNTS, asked.tree.with_name(_COUNTS)):
            made: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            made.pop("trees", None)  # among the counts; the one that ships is a file of its own
            write_json(place / name, portable_tree(made))
    told = {**earlier(held["recipe"].get("start")), **held}
    write_json(place / "manifest.json", publishable(told, prompt_sources=found or None))
    size = sum(file.stat().st_size for file in HEADS.rglob("*") if file.is_file())
    print(f"{place.relative_to(HEADS.parent)}; all heads take {size / 1e6:.1f} MB")


def answers(files: Sequence[Path]) -> Iterator[Answer]:
    """Each answer once."""
    yield from {one.key: one for file in files for one in read_answers(file)}.values()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("head", type=Path, help="head/ of a run of task=train")
    parser.add_argument("target", help="NAME of package://NAME, whose head it is")
    parser.add_argument("--tree", type=Path, help="a tree of task=calibrate")
    parser.add_argument("--vocabulary", type=Path, help="ids it drafts, if head/ names none")
    note = "(for heads whose manifest names no sources)"
    parser.add_argument("--answers", type=Path, nargs="+", default=[], help=f"trained on {note}")
    parser.add_argument("--prompts", type=Path, nargs="+", default=[], help=f"licenses {note}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
