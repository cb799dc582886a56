"""train=medusa2: heads and adapters of the trunk are trained together."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from specframe.drafter.medusa import Medusa
from specframe.target.hf import HF
from specframe.train.base import FINAL, FrozenTarget
from specframe.training.feature_cache import FeatureReader
from specframe.tree.chain import ChainTree
from tests.small_models import RUNTIME, Composition, decode, raw
from tests.training.recipe_contract import check_it_goes_on, check_its_numbers
from tests.training.small_courses import batch_of, course, medusa1, medusa2, samples, schedule


def fresh_target() -> HF:
    """A target of its own, whose weights a test may change."""
    return HF.of(copy.deepcopy(raw("llama")), runtime=RUNTIME)


def test_numbers() -> None:
    check_its_numbers("medusa2")


def test_it_starts_from_heads_of_medusa1(tmp_path: Path) -> None:
    check_it_goes_on(medusa1(), medusa2(), tmp_path, lr=1e-2)


def test_a_target_and_its_heads_come_out(tmp_path: Path) -> None:
    target = fresh_target()
    before = {name: weight.clone() for name, weight in target.model.state_dict().items()}
    plan = schedule(max_steps=20, lr=2e-3)
    course(tmp_path, medusa2(), target=target, schedule=plan, check_every=5).run()
    after = target.model.state_dict()
    assert before.keys() == after.keys(), "the adapters are gone"
    assert all(torch.equal(before[name], weight) for name, weight in after.items())
    check_groups(torch.load(tmp_path / "checkpoints" / "step=20.ckpt", weights_only=True))
    adapted = loaded(tmp_path / "head" / "target")
    changed = adapted.model.state_dict()
    assert changed.keys() == before.keys()
    moved = {name for name in before if not torch.equal(before[name], changed[name])}
    assert len(moved) == 7 * 3, "seven projections of three blocks"
    drafter = Medusa(path=str(tmp_path / "head"), vocabulary=None, target=adapted, runtime=RUNTIME)
    tree = ChainTree(depth=3, max_nodes=4, proposal="place")
    outcome = decode(Composition(target=adapted, drafter=drafter, tree=tree), (1, 2, 3), 8)
    assert outcome.tokens == decode(Composition(target=adapted), (1, 2, 3), 8).tokens


def check_groups(checkpoint: dict[str, Any]) -> None:
    """Only heads and adapters are trained, the heads at their own rate."""
    assert {name.split(".")[1] for name in checkpoint["state_dict"]} == {"heads", "adapters"}
    groups = checkpoint["optimizer_states"][0]["param_groups"]
    assert [group["initial_lr"] for group in groups] == [2e-3, 8e-3]
    assert len([name for name in checkpoint["state_dict"] if name.endswith("bias")]) == 3
    assert len(groups[1]["params"]) == 6, "the heads' biases are in the group of the heads"


def loaded(folder: Path) -> HF:
    """The adapted model from its files."""
    return HF(
        path=str(folder),
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


def test_it_starts_at_the_original() -> None:
    target, recipe, part = fresh_target(), medusa2(dropout=0.0), samples().train[:4]
    frozen = FrozenTarget.of(target, None)
    batch = batch_of(part, (FINAL,), target=target)
    net = recipe.make(target, None).double()
    found = recipe.losses(net, frozen, batch, 0.0)
    assert abs(found["kl"].item()) < 1e-9
    assert abs(found["loss"].item()) < 1e-9, "a sine starts at 0"
    with torch.no_grad():
        for weight in net.adapters:
            weight.add_(0.1)
    assert float(recipe.losses(net, frozen, batch, 1.0)["kl"]) > 1e-3
    tapped = FeatureReader(
        target=target, taps=(FINAL,), dtype=torch.float64, original=recipe.original
    )
    for row, rows in enumerate(tapped.rows(part)):
        assert torch.equal(rows, batch.features[FINAL][row, : len(rows)])
    recipe.release()
