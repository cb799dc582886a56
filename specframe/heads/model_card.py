"""The tables of README.md, made from the manifests and calibrations of the heads that ship.

    python -m specframe.heads.model_card

writes each table between its markers, `<!-- manifests:NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from specframe.heads.shipped import HEADS

README = HEADS / "README.md"
_MARKER = re.compile(
    r"^<!-- manifests:(?P<name>\w+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL
)
_MAX_RANKS = 4  # ranks of guesses that have a column of their own
_ALL_RANKS = 10  # ranks that every calibration has
Row = dict[str, str]


def training_rows() -> list[Row]:
    """How each head was trained: its recipe's numbers and the data, all courses together."""
    rows = []
    for name, manifest in _manifests():
        courses = list(_courses(manifest))
        recipe, data = manifest["recipe"], manifest["data"]
        steps = " + ".join(str(course["recipe"]["max_steps"]) for course in courses)
        if courses[0]["recipe"]["start"] is not None:
            steps = f"(an earlier head) + {steps}"
        rows.append(
            {
                "head": f"`{name}`",
                "drafted steps in training": str(recipe.get("unroll", recipe.get("heads"))),
                "optimiser steps": steps,
                "answers": f"{data['train_answers']}",
                "answer tokens": f"{data['train_answer_tokens']}",
                "minutes": f"{sum(course['seconds'] for course in courses) / 60:.0f}",
            }
        )
    return rows


def accuracy_rows() -> list[Row]:
    """How right each head is on held-out answers: of its chain, and of first guesses by depth."""
    rows = []
    for name, manifest in _manifests():
        heldout, covered = manifest["heldout"], manifest["vocabulary_coverage"]
        depths = [heldout.get(f"top1_depth{depth}") for depth in (1, 2, 3, 4, 5)]
        shares = {
            f"depth {depth}": "" if share is None else f"{share:.1%}"
            for depth, share in enumerate(depths, start=1)
        }
        rows.append(
            {
                "head": f"`{name}`",
                "vocabulary": str(manifest["recipe"]["vocabulary"]),
                "covers": f"{covered['overall']:.2%}",
                "acceptance length": f"{heldout['acceptance_length']:.2f}",
                **shares,
            }
        )
    return rows


def category_rows() -> list[Row]:
    """The acceptance length of the chain by category of the held-out prompts."""
    return [
        {"head": f"`{name}`"}
        | {
            category.replace("_", " "): f"{length:.2f}"
            for category, length in sorted(manifest["heldout_acceptance_length"].items())
        }
        for name, manifest in _manifests()
    ]


def rank_rows() -> list[Row]:
    """How often the guess of each rank is right at depth 1, from the calibration of the trees."""
    rows = []
    for file in sorted(HEADS.glob("*/*/calibration.json")):
        calibration = json.loads(file.read_text(encoding="utf-8"))
        shares = calibration["accuracy"][0]
        ranks = {f"rank {rank + 1}": f"{shares[rank]:.1%}" for rank in range(_MAX_RANKS)}
        rows.append(
            {"head": f"`{_name(file.parent)}`", "positions": str(calibration["num_positions"])}
            | ranks
            | {f"ranks 1 to {_ALL_RANKS}": f"{sum(shares[:_ALL_RANKS]):.1%}"}
        )
    return rows


TABLES: dict[str, Callable[[], list[Row]]] = {
    "training": training_rows,
    "accuracy": accuracy_rows,
    "categories": category_rows,
    "ranks": rank_rows,
}


def filled(text: str) -> str:
    """A README with the table of every marker. Raises KeyError for a marker of no table."""

    def table(match: re.Match[str]) -> str:
        opening = match[0].partition("\n")[0]
        return "\n".join([opening, *_markdown(TABLES[match["name"]]()), "<!-- end -->"])

    return _MARKER.sub(table, text)


def main() -> None:
    """Fill the README."""
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")


def _manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted(HEADS.glob("*/*/manifest.json")):
        yield _name(file.parent), json.loads(file.read_text(encoding="utf-8"))


def _name(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def _courses(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The manifests of all trainings of a head, the first one first."""
    if "before" in manifest:
        yield from _courses(manifest["before"])
    yield manifest


def _markdown(rows: Sequence[Row]) -> list[str]:
    columns = list(rows[0])
    lines = [columns, ["---", *["--:"] * (len(columns) - 1)]]
    lines += [[row[column] for column in columns] for row in rows]
    return [f"| {' | '.join(line)} |" for line in lines]


if __name__ == "__main__":
    main()
