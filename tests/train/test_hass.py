"""train=hass: EAGLE's recipe with other numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import yaml

from specframe.train.base import FINAL, FrozenTarget
from specframe.train.eagle import EagleRecipe
from specframe.train.hass import HassRecipe
from tests.training.recipe_contract import ROOT, check_its_head_decodes, check_its_numbers
from tests.training.small_courses import (
    batch_of,
    course,
    eagle,
    hass,
    losses,
    manifest,
    samples,
    small_target,
)


def numbers(recipe: str) -> dict[str, Any]:
    text = (ROOT / "conf" / "train" / f"{recipe}.yaml").read_text(encoding="utf-8")
    return {key: value for key, value in yaml.safe_load(text).items() if key != "name"}


def test_from_answers_to_a_head_that_decodes(material: Path, tmp_path: Path) -> None:
    check_its_head_decodes("hass", material, tmp_path)


def test_numbers() -> None:
    check_its_numbers("hass")


def test_it_trains_a_head_of_drafter_eagle(tmp_path: Path) -> None:
    course(tmp_path, hass(), check_every=5).run()
    assert losses(tmp_path)[-1] < 0.95 * losses(tmp_path)[0]
    assert manifest(tmp_path)["drafter"] == "eagle"


def test_its_yaml_differs_from_eagles_by_these_numbers_alone() -> None:
    ours, theirs = numbers("hass"), numbers("eagle")
    assert ours.keys() == theirs.keys()
    assert {key for key in ours if ours[key] != theirs[key]} == {"unroll", "top", "top_weight"}
    assert (ours["unroll"], theirs["unroll"]) == (3, 1)


def test_with_equal_numbers_it_is_eagle() -> None:
    assert issubclass(HassRecipe, EagleRecipe)
    same = {"unroll": 2, "top": 4, "top_weight": 0.5}
    target, batch = small_target(), batch_of(samples().train[:4], (FINAL,))
    found = []
    for recipe in (eagle(**same), hass(**same)):
        torch.manual_seed(0)
        net = recipe.make(target, None).double()
        found.append(recipe.losses(net, FrozenTarget.of(target, None), batch, 0.0))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
