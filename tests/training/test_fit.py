"""A training from data to a head that decodes; what it leaves; cut and gone on with."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from specframe.drafter.eagle import Eagle
from specframe.errors import ConfigError
from specframe.train.base import FINAL
from specframe.training.feature_cache import FeatureReader
from specframe.training.fit import newest_checkpoint
from specframe.training.head_module import HeadInTraining
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


def test_another_run_is_not_gone_on_with(trained: Path) -> None:
    with pytest.raises(ConfigError, match=r"hydra\.run\.dir: .* was made with seed=0, this run"):
        course(trained, eagle(), check_every=5, seed=1).run()


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
