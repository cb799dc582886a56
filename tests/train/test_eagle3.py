"""train=eagle3: fused taps, and a head of its own over the most frequent tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from specframe.drafter.eagle3 import Eagle3
from specframe.errors import ConfigError
from specframe.heads.eagle_file import load_eagle3
from specframe.train.base import FrozenTarget
from tests.heads.small_heads import eagle3_net
from tests.small_models import CACHE_MAKERS, RUNTIME
from tests.training.recipe_contract import (
    check_it_goes_on,
    check_its_head_decodes,
    check_its_numbers,
    check_its_simulated_chain,
    still,
)
from tests.training.small_courses import (
    accepted,
    course,
    eagle3,
    losses,
    schedule,
    small_target,
)


def test_from_answers_to_a_head_that_decodes(material: Path, tmp_path: Path) -> None:
    check_its_head_decodes("eagle3", material, tmp_path)


def test_numbers() -> None:
    check_its_numbers("eagle3")


def test_it_goes_on_where_the_head_ended(tmp_path: Path) -> None:
    check_it_goes_on(eagle3(vocabulary=80), eagle3(vocabulary=80), tmp_path)


def test_a_simulated_chain_is_what_decoding_accepts() -> None:
    target, net = small_target(), eagle3_net(1, draft_vocab=90, taps=(1, 2, 3))
    drafter = Eagle3.of(net, target=target, cache=CACHE_MAKERS["dynamic"](), runtime=RUNTIME)
    check_its_simulated_chain(eagle3(), net, drafter, FrozenTarget.of(target, net.target_ids()))


def test_a_reduced_vocabulary(tmp_path: Path) -> None:
    course(tmp_path, eagle3(vocabulary=80), schedule=schedule(max_steps=30)).run()
    assert losses(tmp_path)[-1] < losses(tmp_path)[0]
    ids = json.loads((tmp_path / "head" / "vocabulary.json").read_text(encoding="utf-8"))
    drafter = Eagle3(
        path=str(tmp_path / "head"),
        layers=None,
        vocabulary=None,
        target=small_target(),
        new_cache=CACHE_MAKERS["dynamic"],
        runtime=RUNTIME,
    )
    assert drafter.net.target_ids().tolist() == ids
    assert len(ids) == 80
    assert accepted(drafter) > 0


def test_the_vocabulary_of_a_head_to_start_from_stays(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    once = schedule(max_steps=1)
    course(first, eagle3(vocabulary=70), schedule=once, check_every=1).run()
    course(second, eagle3(vocabulary=80), schedule=still(first), check_every=1).run()
    ours, theirs = (load_eagle3(str(path / "head")).target_ids() for path in (second, first))
    assert torch.equal(ours, theirs)


def test_too_small_a_vocabulary_is_refused(tmp_path: Path) -> None:
    recipe = eagle3(vocabulary=5, min_coverage=0.9)
    with pytest.raises(ConfigError, match=r"train\.vocabulary=5 covers .*even .*min_coverage=0\.9"):
        course(tmp_path, recipe).run()
