"""A training that starts from a trained head starts where that one ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from specframe.errors import ConfigError
from specframe.heads.eagle_file import load_eagle, load_eagle3
from specframe.heads.mtp_file import save_mtp
from specframe.train.base import Recipe
from specframe.training.schedule import Schedule
from specframe.training.start import take_over
from tests.heads.small_heads import eagle_net, mtp_net
from tests.training.lessons import (
    course,
    eagle,
    eagle3,
    medusa,
    medusa2,
    mtp,
    schedule,
    small_target,
)


def curve(folder: Path) -> list[dict[str, float]]:
    held: list[dict[str, float]] = json.loads((folder / "head/manifest.json").read_text())["curve"]
    return held


def still(first: Path) -> Schedule:
    """A step so small that the start is what is measured."""
    return schedule(max_steps=1, lr=1e-12, start=str(first / "head"))


@pytest.mark.parametrize("recipe", [eagle(), eagle3(vocabulary=80), medusa(vocabulary=90), mtp()])
def test_it_goes_on_where_the_head_ended(recipe: Recipe, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    course(first, recipe, schedule=schedule(max_steps=40)).run()
    course(second, recipe, schedule=still(first), check_every=1).run()
    ended = max(point["acceptance_length"] for point in curve(first))
    assert curve(second)[0]["acceptance_length"] == pytest.approx(ended)
    assert ended > 1.05, "a head that learnt nothing would pass this test"
    manifest = json.loads((second / "head/manifest.json").read_text())
    assert manifest["before"]["curve"] == curve(first)


def test_the_vocabulary_is_the_heads_own(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    once = schedule(max_steps=1)
    course(first, eagle3(vocabulary=70), schedule=once, check_every=1).run()
    course(second, eagle3(vocabulary=80), schedule=still(first), check_every=1).run()
    ours, theirs = (load_eagle3(str(one / "head")).target_ids() for one in (second, first))
    assert torch.equal(ours, theirs)


def test_medusa2_starts_from_heads_of_medusa1(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    course(first, medusa(), schedule=schedule(max_steps=40, lr=1e-2)).run()
    course(second, medusa2(), schedule=still(first), check_every=1).run()
    ended = max(point["acceptance_length"] for point in curve(first))
    assert curve(second)[0]["acceptance_length"] == pytest.approx(ended)


def test_a_head_of_other_sizes_is_refused(tmp_path: Path) -> None:
    once = schedule(max_steps=1)
    course(tmp_path / "first", eagle(intermediate=40), schedule=once, check_every=1).run()
    with pytest.raises(ConfigError, match=r"train\.start=.*gate_proj.*\[40, 32\], the recipe's"):
        course(tmp_path / "second", eagle(), schedule=still(tmp_path / "first")).run()


def test_a_published_head_brings_embeddings_and_lacks_a_bias(tmp_path: Path) -> None:
    course(tmp_path, eagle(), schedule=schedule(max_steps=1), check_every=1).run()
    trained = load_eagle(str(tmp_path / "head"))
    fresh = eagle().make(small_target(), None).double()
    assert trained.fc.bias is not None and fresh.fc.bias is not None
    theirs = trained.state_dict()
    trained.fc.bias = None
    trained.embed_tokens = torch.nn.Embedding(97, 32)
    take_over(fresh, trained, path="theirs")
    assert not fresh.fc.bias.any()
    assert torch.equal(fresh.fc.weight, theirs["fc.weight"])


def test_published_modules_bring_copies_of_the_targets_tables(tmp_path: Path) -> None:
    own = mtp_net(5, embeddings=97, head=97)
    save_mtp(own, tmp_path)
    recipe = mtp(intermediate=48)
    fresh = recipe.make(small_target(), None).double()
    take_over(fresh, recipe.load(str(tmp_path)), path="theirs")
    assert torch.equal(fresh.module(0).eh_proj.weight, own.module(0).eh_proj.weight)


def test_other_kinds_are_refused() -> None:
    fresh = eagle().make(small_target(), None).double()
    other = eagle_net(5, head=97)
    with pytest.raises(ConfigError, match=r"lm_head\.weight is surplus"):
        take_over(fresh, other, path="theirs")
