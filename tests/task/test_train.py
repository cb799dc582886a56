"""task=train by its words: from a file of answers to a head that the engine drafts with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import specframe
from specframe.compose import build
from specframe.compose.overrides import compose
from specframe.drafter.none import NoDraft
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.prompts.answers import read_answers, write_compact
from specframe.target.hf import HF
from specframe.task.train import read_any
from tests.small_models import speller
from tests.training.recipe_contract import SHORT, run_words, words_of, write_material


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk, and its answers."""
    return write_material(tmp_path_factory.mktemp("train"))


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
        run_words([*words_of(folder, "eagle", "target.path=some/other"), *more], tmp_path)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("content", ["", "{}\n"])
def test_answers_that_are_none_are_told_before_the_target_loads(
    content: str, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=f"{file}.*(holds no answer|not an answer)"):
        run_words([*words_of(folder, "eagle"), f"task.answers={file}"], tmp_path / "run")


def test_the_default_drafter_is_left_out(folder: Path) -> None:
    """A task that drafts nothing needs no head, whatever the command says of the drafter."""
    for drafter in ([], ["drafter=eagle3", "drafter.path=/no/head"]):
        given = [one for one in words_of(folder, "eagle") if not one.startswith("drafter")]
        made = build.plan(compose([*given, *drafter]))
        assert made.config["drafter"] == {"name": "none"}
        assert isinstance(made.load().components.drafter, NoDraft)


def test_a_manifest_can_be_published(folder: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "x", "source": "trivia", "license": "CC-BY-SA-4.0"}, {"prompt": "y"}]
    prompts.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    answers = tmp_path / "answers.jsonl"
    held = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    told = [one | {"source": "trivia" if n % 3 else None} for n, one in enumerate(held)]
    answers.write_text("".join(json.dumps(one) + "\n" for one in told), encoding="utf-8")
    given = words_of(folder, "eagle", f"task.answers={answers}", f"prompts={prompts}")
    given = [one for one in given if not one.endswith(str(folder / "answers.jsonl"))]
    manifest = json.loads((run_words(given, tmp_path / "run") / "manifest.json").read_text())
    assert manifest["licence"] == "Apache-2.0"
    assert manifest["target"]["name"] == "model" and "path" not in manifest["target"]
    assert str(tmp_path) not in json.dumps(manifest) and str(folder) not in json.dumps(manifest)
    named = {one["source"]: (one["license"], one["answers"]) for one in manifest["data"]["sources"]}
    count = len(range(0, len(held), 3))
    assert named == {
        "trivia": ("CC-BY-SA-4.0", len(held) - count),
        "unknown": ("unknown", count),
    }


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
    given = words_of(folder, "eagle")
    if more == ["train=null"]:
        given = [word for word in given if not word.startswith("train")]
        more = []
    with pytest.raises(ConfigError, match=message):
        run_words([*given, *more], tmp_path)


def test_a_folder_is_gone_on_with_by_the_same_training_alone(folder: Path, tmp_path: Path) -> None:
    """Each change once went unseen, or was told as two recipes of a thousand letters."""
    words = [*words_of(folder, "eagle"), "train.max_steps=1", "task.check_every=1"]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "text that nothing was trained with"}\n', encoding="utf-8")
    output = tmp_path / "run"
    run_words(words, output)
    before = (output / "head" / "model.safetensors").read_bytes()
    for word, message in {
        f"prompts={prompts}": r"prompts\.sha256=",
        "task.heldout=0.5": r"task\.heldout=0\.25, this run has 0\.5;",
        "task.max_length=20": r"task\.max_length=1024, this run has 20;",
        "task.depth=2": r"task\.depth=5, this run has 2;",
        "train.noise=0.3": r"train\.noise=0\.1, this run has 0\.3;",
        "seed=9": r"seed=0, this run has 9;",
        "target.dtype=float64": r"target\.dtype=\"float32\", this run has \"float64\";",
    }.items():
        with pytest.raises(ConfigError, match=rf"hydra\.run\.dir=\S+run: .* begun with {message}"):
            run_words([*words, word], output)
    run_words([*words, "task.cache_gb=1", f"task.features={tmp_path / 'features'}"], output)
    assert (output / "head" / "model.safetensors").read_bytes() == before


def test_a_target_that_is_no_model_is_refused(folder: Path, tmp_path: Path) -> None:
    given = [*SHORT, "train=eagle", f"task.answers={folder / 'answers.jsonl'}", "target=toy"]
    with pytest.raises(IncompatibleComponents, match="target=toy is none; use target=hf"):
        run_words(given, tmp_path)


@pytest.mark.parametrize(("strategy", "devices"), [("ddp", 1), ("ddp", 2), ("auto", 2)])
def test_processes_that_would_sweep_again_are_refused(
    strategy: str, devices: int, folder: Path, tmp_path: Path
) -> None:
    record = tmp_path / ".hydra" / "hydra.yaml"
    record.parent.mkdir()
    record.write_text("hydra:\n  mode: MULTIRUN\n", encoding="utf-8")
    given = words_of(folder, "eagle", f"task.strategy={strategy}", f"task.devices={devices}")
    with pytest.raises(ConfigError, match="would each run the sweep again"):
        run_words(given, tmp_path)


def test_compact_answers_find_their_prompts(tmp_path: Path) -> None:
    engine: Any = specframe.load(["target=toy", "drafter=none"])
    engine.components = type(engine.components)(**{**vars(engine.components), "target": speller()})
    prompts = tmp_path / "prompts.jsonl"
    records = [{"id": "a", "turns": ["hello", "again"]}, {"id": "b", "turns": ["x"]}]
    prompts.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    from specframe.prompts.questions import encode_turns, read_named_prompts

    lines = []
    before: list[list[int]] = []
    for subject in read_named_prompts(prompts):
        before = []
        for turn in range(len(subject.record.turns)):
            tokens = engine.components.target.tokenizer.encode_plain("yes sir")
            lines.append(
                {
                    "id": subject.id,
                    "turn": turn,
                    "category": None,
                    "source": None,
                    "turns": list(subject.record.turns[: turn + 1]),
                    "prompt_tokens": encode_turns(engine, subject.record, before),
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
    run_words(words_of(folder, "eagle"), tmp_path)
    held = torch.load(next((tmp_path / "checkpoints").glob("step=*")), weights_only=True)
    assert {key.partition(".")[0] for key in held["state_dict"]} == {"head"}
