"""A training from data to a head that decodes; what it leaves; cut and gone on with."""

from __future__ import annotations

import copy
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from specframe.drafter.eagle import Eagle
from specframe.drafter.eagle3 import Eagle3
from specframe.drafter.medusa import Medusa as MedusaDrafter
from specframe.drafter.mtp import MTP
from specframe.errors import ConfigError
from specframe.heads.eagle_file import load_eagle
from specframe.heads.medusa_file import load_medusa
from specframe.target.hf import HF
from specframe.train.base import FINAL, Frozen
from specframe.training.fit import newest_checkpoint
from specframe.training.head_module import HeadInTraining
from specframe.training.tapped_features import Tapped
from specframe.tree.chain import ChainTree
from tests.heads.small_heads import eagle_net
from tests.small_models import CACHE_MAKERS, RUNTIME, Composition, decode, raw
from tests.training.lessons import (
    course,
    eagle,
    eagle3,
    medusa,
    medusa2,
    mtp,
    samples,
    schedule,
    small_target,
)
from tests.training.test_unroll import batch_of

ROOT = Path(__file__).resolve().parents[2]


def accepted(drafter: Any) -> int:
    """Drafted tokens accepted over the held-out prompts."""
    count = 0
    for sample in samples().heldout:
        composed = Composition(
            target=small_target(),
            drafter=drafter,
            tree=ChainTree(depth=3, max_nodes=4, proposal="place"),
        )
        outcome = decode(composed, sample.tokens[: sample.start].tolist(), len(sample.answer))
        assert outcome.tokens == sample.answer.tolist()
        count += outcome.num_accepted
    return count


def from_file(kind: str, folder: Path) -> Any:
    given: dict[str, Any] = {
        "path": str(folder),
        "vocabulary": None,
        "target": small_target(),
        "new_cache": CACHE_MAKERS["dynamic"],
        "runtime": RUNTIME,
    }
    return Eagle(**given) if kind == "eagle" else Eagle3(layers=None, **given)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty steps, never cut."""
    folder = tmp_path_factory.mktemp("trained")
    course(folder, eagle(), check_every=5).run()
    return folder


def losses(folder: Path) -> list[float]:
    """`train/loss` of the checkpointed curve."""
    manifest = json.loads((folder / "head" / "manifest.json").read_text(encoding="utf-8"))
    return [point["loss"] for point in manifest["curve"]]


def test_the_loss_falls_and_the_head_decodes(trained: Path) -> None:
    found = losses(trained)
    assert len(found) == 4
    assert found[-1] < 0.9 * found[0]
    untrained = Eagle.of(
        eagle_net(5), target=small_target(), cache=CACHE_MAKERS["dynamic"](), runtime=RUNTIME
    )
    assert accepted(from_file("eagle", trained / "head")) > accepted(untrained)


def test_manifest_of_a_head(trained: Path) -> None:
    held = json.loads((trained / "head" / "manifest.json").read_text(encoding="utf-8"))
    assert held["drafter"] == "eagle"
    assert held["data"]["sha256"] == samples().digest()
    assert held["data"]["train_answers"] == len(samples().train)
    assert held["trained_answer_tokens"] > 0
    assert held["seconds"] > 0
    assert held["peak_memory_bytes"] > 0
    assert set(held["heldout_acceptance_length"]) <= {"odd", "even"}
    assert held["heldout"]["acceptance_length"] >= 1.0


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


def test_eagle3_with_a_reduced_vocabulary(tmp_path: Path) -> None:
    recipe = eagle3(vocabulary=80)
    course(tmp_path, recipe, schedule=schedule(max_steps=30)).run()
    found = losses(tmp_path)
    assert found[-1] < found[0]
    ids = json.loads((tmp_path / "head" / "vocabulary.json").read_text(encoding="utf-8"))
    drafter = from_file("eagle3", tmp_path / "head")
    assert drafter.net.target_ids().tolist() == ids
    assert len(ids) == 80
    assert accepted(drafter) > 0


@pytest.mark.parametrize("state", ["post_norm", "pre_norm"])
@pytest.mark.parametrize(("hard", "soft"), [(1.0, 0.0), (0.0, 1.0)])
def test_mtp(hard: float, soft: float, state: Any, tmp_path: Path) -> None:
    recipe = mtp(hard=hard, soft=soft, feature=state, recycle=state, vocabulary=90, negatives=40)
    course(tmp_path, recipe, schedule=schedule(max_steps=60)).run()
    found = losses(tmp_path)
    assert found[-1] < 0.95 * found[0]
    drafter = MTP(
        path=str(tmp_path / "head"),
        vocabulary=str(tmp_path / "head" / "vocabulary.json"),
        feature=None,
        recycle=None,
        target=small_target(),
        new_cache=CACHE_MAKERS["dynamic"],
        runtime=RUNTIME,
    )
    assert drafter.traits.needs.taps == (f"final_{state.replace('_', '')}",)
    assert accepted(drafter) > 0


@pytest.mark.parametrize("own_head", [False, True])
def test_medusa(own_head: bool, tmp_path: Path) -> None:
    recipe = medusa(own_head=own_head, vocabulary=90)
    fresh = recipe.make(small_target(), torch.arange(90)).double()
    states = torch.randn(5, 32).double()
    assert all(torch.equal(one, states) for one in fresh(states)), "the identity, bias included"
    course(tmp_path, recipe, schedule=schedule(max_steps=40, lr=1e-2)).run()
    found = losses(tmp_path)
    assert found[-1] < found[0]
    net = load_medusa(str(tmp_path / "head"))
    assert net.token_map is not None
    assert len(net.token_map) == 90
    drafter = MedusaDrafter(
        path=str(tmp_path / "head"), vocabulary=None, target=small_target(), runtime=RUNTIME
    )
    before = MedusaDrafter.of(fresh, target=small_target(), runtime=RUNTIME)
    assert accepted(drafter) > accepted(before)


def test_medusa2_gives_a_target_and_its_heads(tmp_path: Path) -> None:
    held = HF.of(copy.deepcopy(raw("llama")), runtime=RUNTIME)
    before = {name: one.clone() for name, one in held.model.state_dict().items()}
    plan = schedule(max_steps=20, lr=2e-3)
    course(tmp_path, medusa2(), target=held, schedule=plan, check_every=5).run()
    after = held.model.state_dict()
    assert before.keys() == after.keys(), "the adapters are gone"
    assert all(torch.equal(before[name], one) for name, one in after.items())
    newest = torch.load(tmp_path / "checkpoints" / "step=20.ckpt", weights_only=True)
    parts = {name.split(".")[1] for name in newest["state_dict"]}
    assert parts == {"heads", "adapters"}
    rates = [group["initial_lr"] for group in newest["optimizer_states"][0]["param_groups"]]
    assert rates == [2e-3, 8e-3]
    biases = [name for name in newest["state_dict"] if name.endswith("bias")]
    sizes = [len(group["params"]) for group in newest["optimizer_states"][0]["param_groups"]]
    assert len(biases) == 3
    assert sizes[1] == 6, "the heads' biases are in the group of the heads"
    made = HF(
        path=str(tmp_path / "head" / "target"),
        dtype="float64",
        device_map=None,
        revision=None,
        attn_implementation="sdpa",
        quantization=None,
        trust_remote_code=False,
        draft=None,
        device=torch.device("cpu"),
        runtime=RUNTIME,
    )
    changed = made.model.state_dict()
    assert changed.keys() == before.keys()
    moved = {name for name, one in before.items() if not torch.equal(one, changed[name])}
    assert len(moved) == 7 * 3, "seven projections of three blocks"
    drafter = MedusaDrafter(
        path=str(tmp_path / "head"), vocabulary=None, target=made, runtime=RUNTIME
    )
    tree = ChainTree(depth=3, max_nodes=4, proposal="place")
    outcome = decode(Composition(target=made, drafter=drafter, tree=tree), (1, 2, 3), 8)
    assert outcome.tokens == decode(Composition(target=made), (1, 2, 3), 8).tokens


def test_medusa2_starts_at_the_original() -> None:
    held = HF.of(copy.deepcopy(raw("llama")), runtime=RUNTIME)
    frozen = Frozen.of(held, None)
    recipe = medusa2(dropout=0.0)
    part = samples().train[:4]
    batch = batch_of(part, (FINAL,), target=held)
    net = recipe.make(held, None).double()
    found = recipe.losses(net, frozen, batch, 0.0)
    assert abs(found["kl"].item()) < 1e-9
    assert abs(found["loss"].item()) < 1e-9, "a sine starts at 0"
    with torch.no_grad():
        for one in net.adapters:
            one.add_(0.1)
    assert float(recipe.losses(net, frozen, batch, 1.0)["kl"]) > 1e-3
    again = Tapped(target=held, taps=(FINAL,), dtype=torch.float64, original=recipe.original).rows(
        part
    )
    for row, rows in enumerate(again):
        assert torch.equal(rows, batch.features[FINAL][row, : len(rows)])
    recipe.release()


def test_medusa_weighs_its_heads() -> None:
    recipe, held = medusa(), small_target()
    net, frozen = recipe.make(held, None).double(), Frozen.of(held, None)
    found = recipe.losses(net, frozen, batch_of(samples().train, (FINAL,)), 0.0)
    heads = [found[f"head_{k}"] for k in (1, 2, 3)]
    scale = 0.8 + 0.64 + 0.512
    expected = (0.8 * heads[0] + 0.64 * heads[1] + 0.512 * heads[2]) / scale
    torch.testing.assert_close(found["loss"], expected)


def test_too_small_a_vocabulary_is_refused(tmp_path: Path) -> None:
    recipe = eagle3(vocabulary=5, min_coverage=0.9)
    with pytest.raises(ConfigError, match=r"train\.vocabulary=5 covers .*even .*min_coverage=0\.9"):
        course(tmp_path, recipe).run()


def test_the_target_stays_in_eval_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = small_target()
    modes: list[tuple[bool, bool]] = []
    before = HeadInTraining.training_step

    def training_step(self: HeadInTraining, batch: Any, batch_idx: int) -> Any:
        modes.append((held.model.training, self.head.training))
        return before(self, batch, batch_idx)

    monkeypatch.setattr(HeadInTraining, "training_step", training_step)
    part = samples().all[:2]
    tapped = Tapped(target=held, taps=(FINAL,), dtype=torch.float64)
    expected = tapped.rows(part)
    weights = {name: one.clone() for name, one in held.model.state_dict().items()}
    course(tmp_path, eagle(), schedule=schedule(max_steps=6), check_every=2).run()
    assert set(modes) == {(False, True)}
    assert all(torch.equal(a, b) for a, b in zip(expected, tapped.rows(part), strict=True))
    assert all(torch.equal(weights[name], one) for name, one in held.model.state_dict().items())


def test_eagle_reads_embeddings_of_unit_size_and_folds_that_into_the_file(tmp_path: Path) -> None:
    recipe = eagle()
    fresh = recipe.make(small_target(), None).double()
    table = small_target().embed(torch.arange(97))
    scaled = recipe._embed(Frozen.of(small_target(), None))(torch.arange(97))
    assert scaled.square().mean().sqrt() == pytest.approx(1.0)
    ratio = float((scaled / table).mean())
    before = fresh.fc.weight.clone()
    recipe.export(fresh, tmp_path, target=small_target())
    saved = load_eagle(str(tmp_path)).fc.weight
    torch.testing.assert_close(saved[:, :32], before[:, :32] * ratio)
    assert torch.equal(saved[:, 32:], before[:, 32:])
    recipe.started(fresh)
    torch.testing.assert_close(fresh.fc.weight, before)
