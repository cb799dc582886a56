"""The model card: its figures are those of the manifests, its commands are words that exist."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from specframe.compose.overrides import compose
from specframe.heads import model_card
from specframe.heads.shipped import HEADS

TEXT = model_card.README.read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    python -m specframe (.*)$", TEXT, re.MULTILINE)


def test_the_tables_are_those_of_the_manifests() -> None:
    assert model_card.filled(TEXT) == TEXT, "run `python -m specframe.heads.model_card`"
    assert set(re.findall(r"<!-- manifests:(\w+) -->", TEXT)) == set(model_card.TABLES)


def test_every_head_that_ships_is_in_every_table_of_manifests() -> None:
    heads = {f"`{file.parent.parent.name}/{file.parent.name}`" for file in HEADS.glob("*/*/*.json")}
    for name in ("training", "accuracy", "categories"):
        assert {row["head"] for row in model_card.TABLES[name]()} == heads
    assert all(f"| {head} |" in TEXT for head in heads)


def test_the_figures_are_rounded_from_the_files() -> None:
    manifest = json.loads((HEADS / "smollm2/eagle3/manifest.json").read_text(encoding="utf-8"))
    row = next(row for row in model_card.accuracy_rows() if row["head"] == "`smollm2/eagle3`")
    assert float(row["acceptance length"]) == pytest.approx(
        manifest["heldout"]["acceptance_length"], abs=0.005
    )
    steps = next(row for row in model_card.training_rows() if row["head"] == "`smollm2/eagle3`")
    before = manifest["before"]["recipe"]["max_steps"]
    assert steps["optimiser steps"] == f"{before} + {manifest['recipe']['max_steps']}"


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_are_words_that_exist(command: str) -> None:
    compose([word for word in shlex.split(command) if not word.startswith("hydra.")])


def test_it_shows_how_to_train_a_head() -> None:
    assert len(COMMANDS) == 3
