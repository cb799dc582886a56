"""A training from data to a head that decodes; what it leaves; cut and gone on with."""

from __future__ import annotations

import copy
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specframe.drafter.eagle import Eagle
from specframe.errors import ConfigError
from specframe.train.base import FINAL
from specframe.train.eagle import EagleRecipe
from specframe.training.feature_cache import FeatureReader
from specframe.training.fit import newest_checkpoint
from specframe.training.head_module import HeadInTraining
from specframe.training.samples import DataSplit
from tests.heads.small_heads import eagle_net
from tests.small_models import CACHE_MAKERS, RUNTIME
from tests.training.small_courses import (
    accepted,
    course,
    eagle,
    losses,
    manifest,
    samples,
    schedule,
    small_target,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty steps, never cut."""
    folder = tmp_path_factory.mktemp("trained")
    course(folder, eagle(), check_every=5).run()
    return folder


def test_the_loss_falls_and_the_head_decodes(trained: Path) -> None:
    found = losses(trained)
    assert len(found) == 4
    assert found[-1] < 0.9 * found[0]
    untrained = Eagle.of(
        eagle_net(5), target=small_target(), cache=CACHE_MAKERS["dynamic"](), runtime=RUNTIME
    )
    drafter = Eagle(
        path=str(trained / "head"),
        vocabulary=None,
        target=small_target(),
        new_cache=CACHE_MAKERS["dynamic"],
        runtime=RUNTIME,
    )
    assert accepted(drafter) > accepted(untrained)


def test_manifest_of_a_head(trained: Path) -> None:
    record = manifest(trained)
    assert record["drafter"] == "eagle"
    assert record["data"]["sha256"] == samples().digest()
    assert record["data"]["train_answers"] == len(samples().train)
    assert record["trained_answer_tokens"] > 0
    assert record["seconds"] > 0
    assert record["peak_memory_bytes"] > 0
    assert set(record["heldout_acceptance_length"]) <= {"odd", "even"}
    assert record["heldout"]["acceptance_length"] >= 1.0


def test_checkpoints_hold_the_head_alone_and_are_plain(trained: Path) -> None:
    newest = newest_checkpoint(trained / "checkpoints")
    assert newest is not None
    assert newest.name == "step=20.ckpt"
    assert sorted(path.name for path in newest.parent.iterdir()) == ["best.ckpt", "step=20.ckpt"]
    held = torch.load(newest, weights_only=True)
    assert all(key.startswith("head.") for key in held["state_dict"])
    size = sum(one.numel() * one.element_size() for one in held["state_dict"].values())
    assert newest.stat().st_size < 3.5 * size + 100_000, "weights and two moments"
    best = torch.load(newest.with_name("best.ckpt"), weights_only=True)
    assert "optimizer_states" not in best


def test_logs(trained: Path) -> None:
    (csv,) = trained.glob("logs/csv/version_*/metrics.csv")
    header = csv.read_text(encoding="utf-8").splitlines()[0]
    for name in ("train/loss", "val/acceptance_length", "val/top1_depth2", "lr-AdamW"):
        assert name in header
    assert list(trained.glob("logs/tensorboard/version_0/events.*"))


@pytest.mark.slow
@pytest.mark.parametrize("step", [13])
def test_a_killed_run_goes_on_to_the_same_bits(step: int, trained: Path, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.training.killed", str(tmp_path), str(step)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    newest = newest_checkpoint(tmp_path / "checkpoints")
    assert newest is not None
    assert newest.name == "step=10.ckpt"
    course(tmp_path, eagle(), check_every=5).run()
    ours, theirs = (
        torch.load(folder / "checkpoints" / "step=20.ckpt", weights_only=True)
        for folder in (tmp_path, trained)
    )
    for key, value in theirs["state_dict"].items():
        assert torch.equal(ours["state_dict"][key], value), key
    assert losses(tmp_path) == losses(trained)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    exported = [folder / "head" / "model.safetensors" for folder in (tmp_path, trained)]
    assert exported[0].read_bytes() == exported[1].read_bytes()


def test_a_finished_run_is_not_trained_again(trained: Path) -> None:
    before = (trained / "head" / "model.safetensors").read_bytes()
    course(trained, eagle(), check_every=5).run()
    assert (trained / "head" / "model.safetensors").read_bytes() == before


def fewer_held_out() -> DataSplit:
    """The same answers, one of them no longer held out nor trained on."""
    whole = samples()
    return replace(whole, heldout=whole.heldout[:-1])


def other_answers() -> DataSplit:
    """One token of one training answer is another one."""
    whole = samples()
    tokens = whole.train[0].tokens.clone()
    tokens[-1] = (tokens[-1] + 1) % 97
    return replace(whole, train=[replace(whole.train[0], tokens=tokens), *whole.train[1:]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed=0, this run has 1;"),
        ({"chosen": {"name": "EagleRecipe", "lr": 0.5}}, "train.lr=null, this run has 0.5;"),
        ({"settings": {"task": {"heldout": 0.5}}}, 'task=null, this run has {"heldout": 0.5};'),
        ({"facts": {"weights": "huge"}}, 'target.weights="tiny", this run has "huge";'),
        ({"samples": fewer_held_out}, 'answers.heldout_sha256="'),
        ({"samples": other_answers}, 'answers.train_sha256="'),
        ({"recipe": lambda: eagle(vocabulary=90)}, "vocabulary.sha256=null, this run has "),
    ],
)
def test_another_training_is_refused_by_the_key_that_differs(
    change: dict[str, Any], message: str, trained: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    given = {key: value() if callable(value) else value for key, value in change.items()}
    recipe = given.pop("recipe", eagle())
    with pytest.raises(ConfigError) as refused:
        course(
            trained, recipe, **{"check_every": 5, "chosen": {"name": "EagleRecipe"}, **given}
        ).run()
    assert str(refused.value).startswith(f"hydra.run.dir={trained}: its training was begun with ")
    assert message in str(refused.value)
    assert len(str(refused.value)) < 260 + len(str(trained)), "one key, not two recipes"
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


def test_another_head_to_start_from_is_refused_though_its_path_is_the_same(tmp_path: Path) -> None:
    plan = schedule(max_steps=1, start=str(tmp_path / "first" / "head"))
    for seed in (0, 1):
        course(tmp_path / "first", eagle(), schedule=schedule(max_steps=1), seed=seed).run()
        if seed == 0:
            course(tmp_path / "second", eagle(), schedule=plan).run()
            shutil.rmtree(tmp_path / "first")
    with pytest.raises(ConfigError, match=r"begun with start\.sha256="):
        course(tmp_path / "second", eagle(), schedule=plan).run()


def test_another_machine_and_other_versions_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = schedule(max_steps=2)
    course(tmp_path, eagle(), schedule=plan, check_every=1).run()
    (first,) = manifest(tmp_path)["sessions"]
    assert first["first_step"] == 0 and first["packages"]["torch"] == torch.__version__
    assert first["specframe"] and "git" in first and "hardware" not in first
    other = {"specframe": "9.9", "hardware": {"cpu": "another"}}
    monkeypatch.setattr("specframe.training.course._surroundings", lambda device: other)
    course(tmp_path, eagle(), schedule=plan, check_every=1).run()
    assert manifest(tmp_path)["sessions"] == [first, {"first_step": 2, "specframe": "9.9"}]


def test_an_end_token_that_no_answer_has_is_drafted_all_the_same(tmp_path: Path) -> None:
    """As with Llama 3, whose end tokens are above every id of most answers."""
    target, whole = copy.copy(small_target()), samples()
    target.eos_ids = (96, 95)
    low = [replace(each, tokens=each.tokens % 50) for each in whole.train]
    made = course(tmp_path, eagle(vocabulary=40), target=target, samples=replace(whole, train=low))
    ids, _ = made._vocabulary(None)
    assert ids is not None and ids.tolist()[-2:] == [95, 96] and len(ids) == 40


def test_answers_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    whole = samples()
    high = [replace(each, tokens=each.tokens + 50) for each in whole.all]
    with pytest.raises(ConfigError, match=r"task\.answers: .*, the target's are 0 to 96"):
        course(tmp_path, eagle(), samples=replace(whole, all=high)).run()


def test_noise_is_keyed_by_the_seed_and_by_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fresh head by the seed; the noise of a step by the step too, or it came again."""
    seeds: list[int] = []
    make, step = EagleRecipe.make, HeadInTraining.training_step

    def made(self: EagleRecipe, *given: Any) -> Any:
        seeds.append(torch.initial_seed())
        return make(self, *given)

    def training_step(self: HeadInTraining, batch: Any, batch_idx: int) -> Any:
        seeds.append(torch.initial_seed())
        return step(self, batch, batch_idx)

    monkeypatch.setattr(EagleRecipe, "make", made)
    monkeypatch.setattr(HeadInTraining, "training_step", training_step)
    course(tmp_path, eagle(), schedule=schedule(max_steps=3), check_every=3, seed=40).run()
    assert seeds == [40, 40, 41, 42]


def test_the_target_stays_in_eval_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = small_target()
    modes: list[tuple[bool, bool]] = []
    before = HeadInTraining.training_step

    def training_step(self: HeadInTraining, batch: Any, batch_idx: int) -> Any:
        modes.append((held.model.training, self.head.training))
        return before(self, batch, batch_idx)

    monkeypatch.setattr(HeadInTraining, "training_step", training_step)
    part = samples().all[:2]
    tapped = FeatureReader(target=held, taps=(FINAL,), dtype=torch.float64)
    expected = tapped.rows(part)
    weights = {name: one.clone() for name, one in held.model.state_dict().items()}
    course(tmp_path, eagle(), schedule=schedule(max_steps=6), check_every=2).run()
    assert set(modes) == {(False, True)}
    assert all(torch.equal(a, b) for a, b in zip(expected, tapped.rows(part), strict=True))
    assert all(torch.equal(weights[name], one) for name, one in held.model.state_dict().items())
