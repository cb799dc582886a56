"""The loss of each recipe is what its data sheet says, to the last row, and so is its gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from specframe.train.base import FINAL, FrozenTarget
from specframe.training.unroll import UnrollWindow, unroll
from tests.training.plain_losses import (
    IDS,
    WEIGHT,
    Row,
    entropy_against,
    has,
    head_of,
    law,
    mean,
    rows_at,
    steps_of,
)
from tests.training.small_courses import (
    batch_of,
    eagle,
    eagle3,
    medusa1,
    mtp,
    samples,
    small_target,
)

PART = samples().train[:2]
TARGET = small_target()
FROZEN = FrozenTarget.of(TARGET, IDS)
STEPS = 2


def fresh(recipe: Any) -> Any:
    torch.manual_seed(0)
    return recipe.make(TARGET, IDS).double()


def check(net: nn.Module, found: Tensor, expected: Tensor) -> None:
    """Value and gradient."""
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-9)
    weights = [weight for weight in net.parameters() if weight.requires_grad]
    ours = torch.autograd.grad(found, weights, allow_unused=True, retain_graph=True)
    theirs = torch.autograd.grad(expected, weights, allow_unused=True, retain_graph=True)
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-8)
    assert any(one is not None and bool(one.any()) for one in ours)


class States:
    """The predicted states of a network at every step, by row."""

    def __init__(self, net: Any, embed: Any, batch: Any, states: Tensor) -> None:
        window = UnrollWindow.of(batch)
        self._first = window.index[:, 0].tolist()
        self._steps = list(unroll(net, embed, window, states, steps=STEPS))

    def of(self, step: int, row: Row) -> Tensor:
        """[H]"""
        return self._steps[step][row.sequence, row.pair - self._first[row.sequence]]


@pytest.mark.parametrize("prompt_weight", [0.0, WEIGHT])
@pytest.mark.parametrize(
    "terms",
    [
        {"regression": 1.0, "soft": 0.0},
        {"regression": 0.0, "soft": 0.7},
        {"regression": 0.3, "soft": 0.1, "top": 3, "top_weight": 0.8},
    ],
)
def test_eagle(terms: dict[str, Any], prompt_weight: float) -> None:
    recipe = eagle(**terms, decay=0.6, noise=0.0, prompt_weight=prompt_weight, unroll=STEPS)
    net, batch = fresh(recipe), batch_of(PART, (FINAL,), prompt_weight)
    states = States(net, recipe._embed(FROZEN), batch, batch.features[FINAL])
    head, expected = head_of(TARGET, IDS), []
    for step in range(STEPS):
        rows = rows_at(PART, step, prompt_weight)

        def distance(row: Row, step: int = step) -> Tensor:
            true = batch.features[FINAL][row.sequence, row.place - 1]
            gap = (states.of(step, row) - true).abs()
            return torch.where(gap < 1, gap**2 / 2, gap - 0.5).mean()

        def entropy(row: Row, step: int = step) -> Tensor:
            probs = law(TARGET, PART, row, IDS)
            shares = recipe.soft * probs
            for token in probs.topk(recipe.top).indices.tolist():
                shares[token] += recipe.top_weight * probs[token]
            return entropy_against(shares, head(states.of(step, row)))

        term = recipe.regression * mean(rows, distance)
        if recipe.soft or recipe.top_weight:
            term = term + mean([row for row in rows if has(row, IDS)], entropy)
        expected.append(term)
    found = recipe.losses(net, FROZEN, batch, 0.0)["loss"]
    check(net, found, steps_of(expected, 0.6))


class Spy(nn.Module):
    """A network that remembers the states that it reads first."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.read: list[Tensor] = []

    def forward(self, states: Tensor, embedded: Tensor, view: Any) -> Tensor:
        self.read.append(states.detach())
        out: Tensor = self.net(states, embedded, view)
        return out


def test_eagle_reads_true_features_with_uniform_noise_and_is_measured_against_plain_ones() -> None:
    batch, amplitude = batch_of(PART, (FINAL,)), 0.25
    true = batch.features[FINAL][:, :-1]
    recipe = eagle(noise=amplitude, unroll=STEPS)
    spy = Spy(fresh(recipe))
    torch.manual_seed(1)
    recipe.losses(spy, FROZEN, batch, 0.0)
    assert len(spy.read) == STEPS, "noise is on the true states; later steps read predicted ones"
    noise = (spy.read[0] - true).flatten()
    assert noise.abs().max() <= amplitude and noise.abs().max() > 0.95 * amplitude
    assert abs(float(noise.mean())) < 5 * amplitude / (3 * len(noise)) ** 0.5
    assert float(noise.std()) == pytest.approx(amplitude / 3**0.5, rel=0.05)
    torch.manual_seed(2)
    recipe.losses(spy, FROZEN, batch, 0.0)
    assert not torch.equal(spy.read[0], spy.read[STEPS]), "drawn anew at every step"
    assert torch.equal(batch.features[FINAL][:, :-1], true), "laws and regression are of plain ones"


@pytest.mark.parametrize("prompt_weight", [0.0, WEIGHT])
def test_eagle3(prompt_weight: float) -> None:
    recipe = eagle3(unroll=STEPS, decay=0.6, prompt_weight=prompt_weight)
    net, batch = fresh(recipe), batch_of(PART, recipe.taps(TARGET), prompt_weight)
    taps = [batch.features[name] for name in recipe.taps(TARGET)[:-1]]
    states = States(net, FROZEN.embed, batch, net.fuse(torch.cat(taps, dim=-1)))
    expected = []
    for step in range(STEPS):
        rows = [row for row in rows_at(PART, step, prompt_weight) if has(row, IDS)]
        assert 0 < len(rows) < len(rows_at(PART, step, prompt_weight)), "some tokens have no row"
        expected.append(
            mean(
                rows,
                lambda row, step=step: entropy_against(
                    law(TARGET, PART, row, IDS), net.logits(states.of(step, row))
                ),
            )
        )
    check(net, recipe.losses(net, FROZEN, batch, 0.0)["loss"], steps_of(expected, 0.6))


@pytest.mark.parametrize("prompt_weight", [0.0, WEIGHT])
@pytest.mark.parametrize("own_head", [False, True])
@pytest.mark.parametrize(("hard", "soft"), [(1.0, 0.0), (0.4, 0.7)])
def test_medusa1(hard: float, soft: float, own_head: bool, prompt_weight: float) -> None:
    recipe = medusa1(
        heads=STEPS, hard=hard, soft=soft, own_head=own_head, decay=0.6, prompt_weight=prompt_weight
    )
    net, batch = fresh(recipe), batch_of(PART, (FINAL,), prompt_weight)
    for weight in net.parameters():
        weight.data.add_(0.1 * torch.randn_like(weight))
    expected = []
    for step in range(STEPS):

        def entropy(row: Row, step: int = step) -> Tensor:
            read = net(batch.features[FINAL][row.sequence, row.pair])[step]
            logits = read @ net.output(step).t() if own_head else head_of(TARGET, IDS)(read)
            shares = soft * law(TARGET, PART, row, IDS)
            shares[IDS.tolist().index(row.token)] += hard
            return entropy_against(shares, logits)

        rows = [row for row in rows_at(PART, step, prompt_weight) if has(row, IDS)]
        expected.append(mean(rows, entropy))
    check(net, recipe.losses(net, FROZEN, batch, 0.0)["loss"], steps_of(expected, 0.6))


@pytest.mark.parametrize("prompt_weight", [0.0, WEIGHT])
@pytest.mark.parametrize("state", ["post_norm", "pre_norm"])
@pytest.mark.parametrize(("hard", "soft"), [(1.0, 0.0), (0.4, 0.7)])
def test_mtp(hard: float, soft: float, state: Any, prompt_weight: float) -> None:
    recipe = mtp(
        unroll=STEPS,
        hard=hard,
        soft=soft,
        feature=state,
        recycle=state,
        prompt_weight=prompt_weight,
    )
    net, batch = fresh(recipe), batch_of(PART, recipe.taps(TARGET), prompt_weight)
    tap = "final_postnorm" if state == "post_norm" else "final_prenorm"
    states = States(net, FROZEN.embed, batch, batch.features[tap])
    head, expected = head_of(TARGET, IDS), []
    for step in range(STEPS):

        def entropy(row: Row, step: int = step) -> Tensor:
            shares = soft * law(TARGET, PART, row, IDS)
            shares[IDS.tolist().index(row.token)] += hard
            return entropy_against(shares, head(net.normed(states.of(step, row))))

        rows = [row for row in rows_at(PART, step, prompt_weight) if has(row, IDS)]
        expected.append(mean(rows, entropy))
    check(net, recipe.losses(net, FROZEN, batch, 0.0)["loss"], steps_of(expected, 0.6))
