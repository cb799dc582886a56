"""train=medusa1: heads on a frozen trunk, each a token further."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specframe.drafter.medusa import Medusa
from specframe.heads.medusa_file import load_medusa
from specframe.target.hf import HF
from specframe.train.base import FINAL, FrozenTarget
from tests.small_models import RUNTIME
from tests.training.recipe_contract import (
    check_it_goes_on,
    check_its_head_decodes,
    check_its_numbers,
    check_its_simulated_chain,
)
from tests.training.small_courses import (
    accepted,
    batch_of,
    course,
    losses,
    medusa1,
    samples,
    schedule,
    small_target,
)


def bigram_heads(target: HF) -> Any:
    """Heads that know what a bigram of the target does: the block maps a state to the next one."""
    net = medusa1().make(target, None).double()
    states = target.model.model.norm(target.model.model.embed_tokens.weight).detach()
    following = states[target.model.lm_head(states).argmax(-1)].detach()
    step = torch.linalg.lstsq(states, following - states).solution.t()
    for head in net:
        head[0].linear.weight.data.copy_(step)
        head[0].linear.bias.data.fill_(1.0)
    return net


def test_from_answers_to_a_head_that_decodes(material: Path, tmp_path: Path) -> None:
    check_its_head_decodes("medusa1", material, tmp_path)


def test_numbers() -> None:
    check_its_numbers("medusa1")


def test_it_goes_on_where_the_heads_ended(tmp_path: Path) -> None:
    check_it_goes_on(medusa1(vocabulary=90), medusa1(vocabulary=90), tmp_path)


@pytest.mark.slow
def test_a_simulated_chain_is_what_decoding_accepts() -> None:
    target = small_target()
    net = bigram_heads(target)
    drafter = Medusa.of(net, target=target, runtime=RUNTIME)
    check_its_simulated_chain(medusa1(), net, drafter, FrozenTarget.of(target, None))


@pytest.mark.parametrize("own_head", [False, True])
def test_heads_learn(own_head: bool, tmp_path: Path) -> None:
    recipe = medusa1(own_head=own_head, vocabulary=90)
    fresh = recipe.make(small_target(), torch.arange(90)).double()
    states = torch.randn(5, 32).double()
    assert all(torch.equal(read, states) for read in fresh(states)), "the identity, bias included"
    course(tmp_path, recipe, schedule=schedule(max_steps=40, lr=1e-2)).run()
    assert losses(tmp_path)[-1] < losses(tmp_path)[0]
    net = load_medusa(str(tmp_path / "head"))
    assert net.token_map is not None
    assert len(net.token_map) == 90
    drafter = Medusa(
        path=str(tmp_path / "head"), vocabulary=None, target=small_target(), runtime=RUNTIME
    )
    before = Medusa.of(fresh, target=small_target(), runtime=RUNTIME)
    assert accepted(drafter) > accepted(before)


def test_heads_are_weighed() -> None:
    recipe, target = medusa1(), small_target()
    net, frozen = recipe.make(target, None).double(), FrozenTarget.of(target, None)
    found = recipe.losses(net, frozen, batch_of(samples().train, (FINAL,)), 0.0)
    heads = [found[f"head_{k}"] for k in (1, 2, 3)]
    scale = 0.8 + 0.64 + 0.512
    expected = (0.8 * heads[0] + 0.64 * heads[1] + 0.512 * heads[2]) / scale
    torch.testing.assert_close(found["loss"], expected)
