"""task=train by its words: from a file of answers to a head that the engine drafts with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import specframe
from specframe.compose import build
from specframe.compose.overrides import compose
from specframe.drafter.none import NoDraft
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.prompts.answers import read_answers, write_compact
from specframe.target.hf import HF
from specframe.task.train import read_any, recipe_of
from specframe.training.origin import command, portable_tree
from tests.small_models import speller
from tests.training.lessons import small_target, write

CHOICES = ("eagle", "hass", "eagle3", "medusa1", "medusa2", "mtp")
RECIPES = ("eagle", "hass", "eagle3", "medusa1", "mtp")
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk, and its answers."""
    made = tmp_path_factory.mktemp("train")
    small_target().model.save_pretrained(made / "model")
    write(made / "answers.jsonl")
    return made


def words(folder: Path, recipe: str, *more: str) -> list[str]:
    given = [*SHORT, f"train={recipe}", f"task.answers={folder / 'answers.jsonl'}"]
    given += ["target=hf", f"target.path={folder / 'model'}", *more]
    return [*given, *(["train.layers=[1,2,3]"] if recipe == "eagle3" else [])]


def run(given: Sequence[str], output: Path) -> Path:
    build.run(compose(given), output_dir=output)
    return output / "head"


@pytest.mark.parametrize("recipe", RECIPES)
def test_from_answers_to_a_head_that_decodes(recipe: str, folder: Path, tmp_path: Path) -> None:
    head = run(words(folder, recipe), tmp_path)
    held = json.loads((head / "manifest.json").read_text(encoding="utf-8"))
    assert held["recipe"]["max_steps"] == 8
    assert held["target"]["weights"]["fingerprints"]
    assert held["vocabulary_coverage"]["overall"] > 0.5
    drafter = held["drafter"]
    extra = ["drafter=none"], [f"drafter={drafter}", f"drafter.path={head}", "tree=dynamic"]
    target = ["target=hf", f"target.path={folder / 'model'}", "device=cpu"]
    # The draft vocabulary that the head was trained on comes with it.
    assert specframe.load([*target, *extra[1]]).parts.drafter._ids is not None  # type: ignore[attr-defined]
    texts = [
        specframe.load([*target, *one]).generate([5, 17, 42], max_new_tokens=8).tokens
        for one in extra
    ]
    assert texts[0] == texts[1]
    if drafter == "eagle":
        narrow = [f"drafter.vocabulary={head / 'vocabulary.json'}"]
        again = specframe.load([*target, *extra[1], *narrow])
        assert again.generate([5, 17, 42], max_new_tokens=8).tokens == texts[0]


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is loaded is a failure."""

    def refuse(self: HF, **values: Any) -> None:
        raise AssertionError("weights were loaded before the mistake was told")

    monkeypatch.setattr(HF, "__init__", refuse)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["task.answers=nowhere.jsonl"], r"task\.answers=nowhere\.jsonl: no such file"),
        (["train.vocabluary=1"], "Did you mean 'vocabulary'"),
        (["train.lr=0"], r"train\.lr=0 is out of range"),
        (["train.unroll=many"], r"train\.unroll=many: expected integer"),
    ],
)
def test_mistakes_are_told_before_the_target_loads(
    more: list[str], message: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        run([*words(folder, "eagle", "target.path=some/other"), *more], tmp_path)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("content", ["", "{}\n"])
def test_answers_that_are_none_are_told_before_the_target_loads(
    content: str, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=f"{file}.*(holds no answer|not an answer)"):
        run([*words(folder, "eagle"), f"task.answers={file}"], tmp_path / "run")


def test_the_default_drafter_is_left_out(folder: Path) -> None:
    """A task that drafts nothing needs no head, whatever the command says of the drafter."""
    for drafter in ([], ["drafter=eagle3", "drafter.path=/no/head"]):
        given = [one for one in words(folder, "eagle") if not one.startswith("drafter")]
        made = build.plan(compose([*given, *drafter]))
        assert made.config["drafter"] == {"name": "none"}
        assert isinstance(made.load().parts.drafter, NoDraft)


def test_a_manifest_can_be_published(folder: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "x", "source": "trivia", "license": "CC-BY-SA-4.0"}, {"prompt": "y"}]
    prompts.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    answers = tmp_path / "answers.jsonl"
    held = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    told = [one | {"source": "trivia" if n % 3 else None} for n, one in enumerate(held)]
    answers.write_text("".join(json.dumps(one) + "\n" for one in told), encoding="utf-8")
    given = words(folder, "eagle", f"task.answers={answers}", f"prompts={prompts}")
    given = [one for one in given if not one.endswith(str(folder / "answers.jsonl"))]
    manifest = json.loads((run(given, tmp_path / "run") / "manifest.json").read_text())
    assert manifest["licence"] == "Apache-2.0"
    assert manifest["target"]["name"] == "model" and "path" not in manifest["target"]
    assert str(tmp_path) not in json.dumps(manifest) and str(folder) not in json.dumps(manifest)
    named = {one["source"]: (one["license"], one["answers"]) for one in manifest["data"]["sources"]}
    count = len(range(0, len(held), 3))
    assert named == {
        "trivia": ("CC-BY-SA-4.0", len(held) - count),
        "unknown": ("unknown", count),
    }


def test_a_command_forgets_where_files_are() -> None:
    told = [
        "/a/b/__main__.py",
        "task.answers=/srv/data/a.jsonl",
        "x=[~/p/q,/r/s]",
        "prompts=rel/p.txt",
    ]
    portable = command(told)
    assert portable == [
        *("python", "-m", "specframe", "task.answers=a.jsonl", "x=[q,s]", "prompts=rel/p.txt")
    ]
    assert command(portable) == portable
    assert command(["x", "target.path=package://smollm2"])[3:] == ["target.path=package://smollm2"]


def test_a_tree_forgets_where_its_head_and_prompts_were() -> None:
    tree = {
        "drafter": {"name": "eagle", "path": "/a/head"},
        "prompts": "/b/p.jsonl",
        "paths": [[0]],
    }
    assert portable_tree(tree) == {"drafter": "eagle", "prompts": "p.jsonl", "paths": [[0]]}
    assert portable_tree({**tree, "prompts": None})["prompts"] is None


@pytest.mark.parametrize("recipe", CHOICES)
def test_every_number_of_a_recipe_says_where_it_is_from(recipe: str) -> None:
    file = Path(__file__).resolve().parents[2] / "conf" / "train" / f"{recipe}.yaml"
    for line in file.read_text(encoding="utf-8").splitlines()[1:]:
        assert "#" in line or line.startswith("name:"), line
    made, schedule = recipe_of({"train": yaml.safe_load(file.read_text(encoding="utf-8"))})
    assert made.drafter in ("eagle", "eagle3", "medusa", "mtp")
    assert schedule.factor(0) < schedule.factor(schedule.warmup_steps) == 1.0
    assert schedule.factor(schedule.max_steps) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["task.answers=nowhere.jsonl"], "task.answers=nowhere.jsonl: no such file"),
        (["train=null"], "train: no recipe given"),
        (["train.lr=0"], r"train.lr=0 is out of range"),
        (["train.unroll=0"], r"train.unroll=0 is out of range"),
        (["task.max_length=3"], "no assistant token carries loss"),
        (["train.vocabulary=5", "train.min_coverage=0.9"], "train.vocabulary=5 covers"),
    ],
)
def test_mistakes(more: list[str], message: str, folder: Path, tmp_path: Path) -> None:
    given = words(folder, "eagle")
    if more == ["train=null"]:
        given = [word for word in given if not word.startswith("train")]
        more = []
    with pytest.raises(ConfigError, match=message):
        run([*given, *more], tmp_path)


def test_a_target_that_is_no_model_is_refused(folder: Path, tmp_path: Path) -> None:
    given = [*SHORT, "train=eagle", f"task.answers={folder / 'answers.jsonl'}", "target=toy"]
    with pytest.raises(IncompatibleComponents, match="target=toy is none; use target=hf"):
        run(given, tmp_path)


@pytest.mark.parametrize(("strategy", "devices"), [("ddp", 1), ("ddp", 2), ("auto", 2)])
def test_processes_that_would_sweep_again_are_refused(
    strategy: str, devices: int, folder: Path, tmp_path: Path
) -> None:
    record = tmp_path / ".hydra" / "hydra.yaml"
    record.parent.mkdir()
    record.write_text("hydra:\n  mode: MULTIRUN\n", encoding="utf-8")
    given = words(folder, "eagle", f"task.strategy={strategy}", f"task.devices={devices}")
    with pytest.raises(ConfigError, match="would each run the sweep again"):
        run(given, tmp_path)


def test_compact_answers_find_their_prompts(tmp_path: Path) -> None:
    engine: Any = specframe.load(["target=toy", "drafter=none"])
    engine.parts = type(engine.parts)(**{**vars(engine.parts), "target": speller()})
    prompts = tmp_path / "prompts.jsonl"
    records = [{"id": "a", "turns": ["hello", "again"]}, {"id": "b", "turns": ["x"]}]
    prompts.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    from specframe.prompts.questions import encode_turns, read_subjects

    lines = []
    before: list[list[int]] = []
    for subject in read_subjects(prompts):
        before = []
        for turn in range(len(subject.record.turns)):
            tokens = engine.parts.target.tokenizer.encode_plain("yes sir")
            lines.append(
                {
                    "id": subject.id,
                    "turn": turn,
                    "category": None,
                    "source": None,
                    "turns": list(subject.record.turns[: turn + 1]),
                    "prompt_tokens": encode_turns(engine, subject.record.turns[: turn + 1], before),
                    "tokens": tokens,
                    "finish_reason": "length",
                }
            )
            before = [*before, tokens]
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    small = tmp_path / "answers.npz"
    write_compact(small, read_answers(path))
    assert read_any(small, engine, prompts) == read_any(path, engine, None)
    with pytest.raises(ConfigError, match="compact answers need their prompts="):
        read_any(small, engine, None)


def test_nothing_of_the_target_is_left_trainable_or_switched(folder: Path, tmp_path: Path) -> None:
    run(words(folder, "eagle"), tmp_path)
    held = torch.load(next((tmp_path / "checkpoints").glob("step=*")), weights_only=True)
    assert {key.partition(".")[0] for key in held["state_dict"]} == {"head"}
