"""train=eagle: features are predicted and read by the target's head."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specframe.drafter.eagle import Eagle
from specframe.errors import ConfigError
from specframe.heads.eagle_file import load_eagle
from specframe.train.base import FrozenTarget
from specframe.training.warm_start import take_weights
from tests.heads.small_heads import eagle_net
from tests.small_models import CACHE_MAKERS, RUNTIME
from tests.training.recipe_contract import (
    check_it_goes_on,
    check_its_head_decodes,
    check_its_numbers,
    check_its_simulated_chain,
    still,
    text_of,
)
from tests.training.small_courses import course, eagle, schedule, small_target


def test_from_answers_to_a_head_that_decodes(material: Path, tmp_path: Path) -> None:
    words = check_its_head_decodes("eagle", material, tmp_path)
    narrow = [f"drafter.vocabulary={tmp_path / 'head' / 'vocabulary.json'}"]
    assert text_of([*words, *narrow]) == text_of(words)


def test_numbers() -> None:
    check_its_numbers("eagle")


def test_it_goes_on_where_the_head_ended(tmp_path: Path) -> None:
    check_it_goes_on(eagle(), eagle(), tmp_path)


@pytest.mark.slow
def test_a_simulated_chain_is_what_decoding_accepts() -> None:
    target, net = small_target(), eagle_net(1)
    net.fc.weight.mul_(0.05).add_(torch.cat([torch.zeros(32, 32), torch.eye(32)], dim=1))
    drafter = Eagle.of(net, target=target, cache=CACHE_MAKERS["dynamic"](), runtime=RUNTIME)
    check_its_simulated_chain(eagle(), net, drafter, FrozenTarget.of(target, None))


def test_embeddings_are_read_at_unit_size_and_the_file_has_that_folded_in(tmp_path: Path) -> None:
    recipe = eagle()
    fresh = recipe.make(small_target(), None).double()
    table = small_target().embed(torch.arange(97))
    scaled = recipe._embed(FrozenTarget.of(small_target(), None))(torch.arange(97))
    assert scaled.square().mean().sqrt() == pytest.approx(1.0)
    ratio = float((scaled / table).mean())
    before = fresh.fc.weight.clone()
    recipe.export(fresh, tmp_path, target=small_target())
    saved = load_eagle(str(tmp_path)).fc.weight
    torch.testing.assert_close(saved[:, :32], before[:, :32] * ratio)
    assert torch.equal(saved[:, 32:], before[:, 32:])
    recipe.started(fresh)
    torch.testing.assert_close(fresh.fc.weight, before)


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
    take_weights(fresh, trained, path="theirs")
    assert not fresh.fc.bias.any()
    assert torch.equal(fresh.fc.weight, theirs["fc.weight"])
