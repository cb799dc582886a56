"""What every recipe of `train=` must do; each word's test file says with which head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import specframe
from specframe.compose import run_task
from specframe.compose.overrides import compose
from specframe.task.train import recipe_of
from specframe.train.base import FrozenTarget, Recipe
from specframe.training.chains import ChainTally
from specframe.training.schedule import Schedule
from specframe.tree.chain import ChainTree
from tests.small_models import Composition, decode
from tests.training.small_courses import (
    batch_of,
    course,
    manifest,
    samples,
    schedule,
    small_target,
    write,
)

ROOT = Path(__file__).resolve().parents[2]
DEPTH = 3
SHORT = (
    "task=train",
    "drafter=none",
    "device=cpu",
    "train.precision=32-true",
    "task.heldout=0.25",
    "task.check_every=4",
    "train.max_steps=8",
    "train.batch_tokens=128",
    "train.dtype=float32",
    "train.vocabulary=90",
    "train.min_coverage=0.5",
)


def write_material(folder: Path) -> Path:
    """A tiny model in `folder/model`, and its answers in `folder/answers.jsonl`."""
    small_target().model.save_pretrained(folder / "model")
    write(folder / "answers.jsonl")
    return folder


def words_of(material: Path, recipe: str, *more: str) -> list[str]:
    """The command line that trains a recipe on `write_material`'s folder."""
    words = [*SHORT, f"train={recipe}", f"task.answers={material / 'answers.jsonl'}"]
    words += ["target=hf", f"target.path={material / 'model'}", *more]
    return [*words, *(["train.layers=[1,2,3]"] if recipe == "eagle3" else [])]


def run_words(words: Sequence[str], output: Path) -> Path:
    """The folder of the head that a command left."""
    run_task.run(compose(words), output_dir=output)
    return output / "head"


def check_its_head_decodes(recipe: str, material: Path, tmp_path: Path) -> list[str]:
    """From answers to a head with which the text is the target's own; returns the words with
    which the engine loads it."""
    run_words(words_of(material, recipe), tmp_path)
    record = manifest(tmp_path)
    assert record["recipe"]["max_steps"] == 8
    assert record["target"]["weights"]["fingerprints"]
    assert record["vocabulary_coverage"]["overall"] > 0.5
    head = [f"drafter={record['drafter']}", f"drafter.path={tmp_path / 'head'}", "tree=dynamic"]
    target = ["target=hf", f"target.path={material / 'model'}", "device=cpu"]
    # The draft vocabulary that the head was trained on comes with it.
    drafter: Any = specframe.load([*target, *head]).components.drafter
    assert drafter._ids is not None
    assert text_of([*target, *head]) == text_of([*target, "drafter=none"])
    return [*target, *head]


def text_of(words: Sequence[str]) -> list[int]:
    """Eight tokens after a fixed prompt."""
    return list(specframe.load(words).generate([5, 17, 42], max_new_tokens=8).tokens)


def check_its_numbers(recipe: str) -> None:
    """Every number of the YAML says where it is from, and the schedule is one of AdamW."""
    file = ROOT / "conf" / "train" / f"{recipe}.yaml"
    text = file.read_text(encoding="utf-8")
    for line in text.splitlines()[1:]:
        assert "#" in line or line.startswith("name:"), line
    made, plan = recipe_of({"train": yaml.safe_load(text)})
    assert made.drafter in ("eagle", "eagle3", "medusa", "mtp")
    assert plan.factor(0) < plan.factor(plan.warmup_steps) == 1.0
    assert plan.factor(plan.max_steps) == pytest.approx(0.1)


def still(first: Path) -> Schedule:
    """A step so small that the start is what is measured."""
    return schedule(max_steps=1, lr=1e-12, start=str(first / "head"))


def check_it_goes_on(first: Recipe, second: Recipe, tmp_path: Path, **changes: Any) -> None:
    """A training that starts from the head of another begins where that one ended."""
    course(tmp_path / "first", first, schedule=schedule(max_steps=40, **changes)).run()
    course(tmp_path / "second", second, schedule=still(tmp_path / "first"), check_every=1).run()
    before, after = (manifest(tmp_path / name) for name in ("first", "second"))
    ended = max(point["acceptance_length"] for point in before["curve"])
    assert after["curve"][0]["acceptance_length"] == pytest.approx(ended)
    assert ended > 1.05, "a head that learnt nothing would pass this test"
    assert after["before"]["curve"] == before["curve"]


def check_its_simulated_chain(recipe: Recipe, net: Any, drafter: Any, frozen: FrozenTarget) -> None:
    """What validation counts of a chain is what decoding accepts, token by token."""
    target, part = small_target(), samples().all
    tally = ChainTally.empty(DEPTH)
    batch = batch_of(part, recipe.taps(target))
    tally.add(recipe.guesses(net, frozen, batch, depth=DEPTH, top=2), batch.categories)
    tree = ChainTree(depth=DEPTH, max_nodes=DEPTH + 1, proposal="place")
    emitted = steps = 0
    for sample in part:
        composed = Composition(target=target, drafter=drafter, tree=tree)
        outcome = decode(composed, sample.tokens[: sample.start].tolist(), len(sample.answer))
        assert outcome.tokens == sample.answer.tolist(), "the answers are greedy"
        emitted += sum(len(record.tokens) for record in outcome.records)
        steps += len(outcome.records)
    assert sum(tally.num_emitted.values()) == emitted
    assert sum(tally.num_steps.values()) == steps
    assert emitted > steps, "something is accepted, or nothing is tested"
