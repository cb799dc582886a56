"""HASS: EAGLE's head, trained on contexts as drafting has them and on the likeliest tokens."""

from __future__ import annotations

from specframe.train.base import RECIPES
from specframe.train.eagle import EagleRecipe


@RECIPES.register("hass")
class HassRecipe(EagleRecipe):
    """EAGLE's loss over several unrolled steps, plus a term over the target's likeliest tokens.

    The class has EAGLE's keys; only their numbers differ, see `conf/train/hass.yaml`.
    Paper: HASS, arXiv 2408.15766.
    """
