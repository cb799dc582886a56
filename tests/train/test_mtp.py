"""train=mtp: one module of multi-token prediction, fed with its own states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specframe.drafter.mtp import MTP
from specframe.heads.mtp_file import save_mtp
from specframe.train.base import FrozenTarget
from specframe.training.warm_start import take_weights
from tests.heads.small_heads import mtp_net
from tests.small_models import CACHE_MAKERS, RUNTIME
from tests.training.recipe_contract import (
    check_it_goes_on,
    check_its_head_decodes,
    check_its_numbers,
    check_its_simulated_chain,
)
from tests.training.small_courses import (
    accepted,
    course,
    losses,
    mtp,
    schedule,
    small_target,
)
from tests.turns import rest_slow


def bigram_module() -> Any:
    """A module that reads what follows off its token: x = e, as the blocks are damped."""
    net = mtp_net(1)
    module = net.module(0)
    module.eh_proj.weight.mul_(0.05).add_(torch.cat([torch.eye(32), torch.zeros(32, 32)], dim=1))
    for layer in (module.self_attn.o_proj, module.mlp.down_proj):
        layer.weight.mul_(0.05)
    return net


def test_from_answers_to_a_head_that_decodes(material: Path, tmp_path: Path) -> None:
    check_its_head_decodes("mtp", material, tmp_path)


def test_numbers() -> None:
    check_its_numbers("mtp")


def test_it_goes_on_where_the_module_ended(tmp_path: Path) -> None:
    check_it_goes_on(mtp(), mtp(), tmp_path)


@pytest.mark.slow
def test_a_simulated_chain_is_what_decoding_accepts() -> None:
    target, net = small_target(), bigram_module()
    drafter = MTP.of(net, target=target, cache=CACHE_MAKERS["dynamic"](), runtime=RUNTIME)
    check_its_simulated_chain(mtp(), net, drafter, FrozenTarget.of(target, None))


@pytest.mark.parametrize("state", ["post_norm", "pre_norm"])
@pytest.mark.parametrize(("hard", "soft"), rest_slow([(1.0, 0.0), (0.0, 1.0)]))
def test_the_module_learns(hard: float, soft: float, state: Any, tmp_path: Path) -> None:
    recipe = mtp(hard=hard, soft=soft, feature=state, recycle=state, vocabulary=90, negatives=40)
    course(tmp_path, recipe, schedule=schedule(max_steps=60)).run()
    assert losses(tmp_path)[-1] < 0.95 * losses(tmp_path)[0]
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


def test_published_modules_bring_copies_of_the_targets_tables(tmp_path: Path) -> None:
    own = mtp_net(5, embeddings=97, head=97)
    save_mtp(own, tmp_path)
    recipe = mtp(intermediate=48)
    fresh = recipe.make(small_target(), None).double()
    take_weights(fresh, recipe.load(str(tmp_path)), path="theirs")
    assert torch.equal(fresh.module(0).eh_proj.weight, own.module(0).eh_proj.weight)
