"""train=medusa2: heads and adapters of the trunk are trained together."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from specframe.compose.overrides import compose
from specframe.drafter.medusa import Medusa
from specframe.target.hf import HF
from specframe.task.train import recipe_of
from specframe.train.base import FINAL, FrozenTarget
from specframe.train.medusa2 import Medusa2Recipe
from specframe.training.feature_cache import FeatureReader
from specframe.tree.chain import ChainTree
from tests.small_models import RUNTIME, Composition, decode, raw
from tests.training.plain_losses import mean, rows_at
from tests.training.recipe_contract import check_it_goes_on, check_its_numbers
from tests.training.small_courses import (
    batch_of,
    course,
    losses,
    medusa1,
    medusa2,
    samples,
    schedule,
)


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


def moved(trunk: str, **changes: Any) -> tuple[Any, Any, HF]:
    """A recipe and a module whose adapters are away from zero."""
    target, recipe = fresh_target(), medusa2(dropout=0.0, trunk=trunk, **changes)
    net = recipe.make(target, None).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator).double())
    return recipe, net, target


@pytest.mark.parametrize("trunk", ["kl", "cross_entropy"])
def test_the_loss_of_the_trunk_and_its_gradient(trunk: str) -> None:
    """KL(original || adapted), or the cross entropy of the answers, which adapters can lower."""
    recipe, net, target = moved(trunk, lambda_0=0.0)
    part, frozen = samples().train[:3], FrozenTarget.of(target, None)
    with recipe.original():
        batch = batch_of(part, (FINAL,), target=target)
        original = [full_law(target, sample.tokens).detach() for sample in part]
    states, terms = net(batch.tokens), []
    for row, sample in enumerate(part):
        adapted = frozen.head(states[row]).log_softmax(-1)
        for place in range(max(sample.start, 2), len(sample)):
            theirs, ours = original[row][place - 1], adapted[place - 1]
            following = int(sample.tokens[place])
            divergence = (theirs.exp() * (theirs - ours)).sum()
            terms.append(divergence if trunk == "kl" else -ours[following])
    expected = torch.stack(terms).mean()
    found = recipe.losses(net, frozen, batch, 1.0)
    torch.testing.assert_close(found["loss"].double(), expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found[trunk].double(), expected.detach(), rtol=1e-6, atol=1e-9)
    adapters = list(net.adapters)
    gradients = torch.autograd.grad(found["loss"], adapters, retain_graph=True)
    wanted = torch.autograd.grad(expected, adapters)
    assert all(bool(one.any()) for one in gradients), "the student learns from it"
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)
    recipe.release()


def full_law(target: HF, tokens: torch.Tensor) -> torch.Tensor:
    """[L, V] log-laws of a whole pass."""
    logits = target.model(tokens[None], use_cache=False).logits[0]
    return logits.double().log_softmax(-1)


@pytest.mark.parametrize(("ramp", "share"), [("constant", 1.0), ("sine", 2**-0.5)])
def test_lambda_0_weighs_the_papers_sum_over_heads(ramp: str, share: float) -> None:
    """sum_k 0.8^k CE_k, which is not divided by the sum of the weights."""
    recipe, net, target = moved("kl", ramp=ramp, lambda_0=0.3, heads=3)
    frozen = FrozenTarget.of(target, None)
    with recipe.original():
        batch = batch_of(samples().train[:3], (FINAL,), target=target)
    found = recipe.losses(net, frozen, batch, 0.5)
    heads = sum(0.8**k * found[f"head_{k}"] for k in (1, 2, 3))
    torch.testing.assert_close(found["loss"], found["kl"] + 0.3 * share * heads)
    read = net.heads(net(batch.tokens))  # heads read the adapted states, not the original's
    for step, states in enumerate(read):
        rows = rows_at(samples().train[:3], step, 0.0)
        expected = mean(
            rows,
            lambda row, states=states: (
                -frozen.head(states[row.sequence, row.pair]).log_softmax(-1)[row.token]
            ),
        )
        torch.testing.assert_close(found[f"head_{step + 1}"], expected.detach())
    ours = torch.autograd.grad(found["loss"], list(net.adapters))
    recipe.lambda_0 = 0.0
    alone = torch.autograd.grad(recipe.losses(net, frozen, batch, 0.5)["loss"], list(net.adapters))
    moves = [not torch.allclose(one, other) for one, other in zip(ours, alone, strict=True)]
    assert all(moves), "the heads' loss moves the trunk too"
    recipe.release()


def test_both_published_routes_are_words(tmp_path: Path) -> None:
    words = compose(["task=train", "train=medusa2", "train.trunk=cross_entropy"])
    recipe, _ = recipe_of({"train": OmegaConf.to_container(words["train"])})
    assert isinstance(recipe, Medusa2Recipe)
    assert recipe.trunk == "cross_entropy"
    plan = schedule(max_steps=8, lr=1e-2)
    made = medusa2(trunk="cross_entropy", lambda_0=0.2, ramp="constant")
    course(tmp_path, made, target=fresh_target(), schedule=plan, check_every=4).run()
    curve = losses(tmp_path)
    assert curve[-1] < 0.97 * curve[0]
