"""HASS: EAGLE's head trained on its own aligned contexts, with the likeliest tokens distilled."""

from __future__ import annotations

from specframe.train.base import RECIPES
from specframe.train.eagle import EagleRecipe


@RECIPES.register("hass")
class HassRecipe(EagleRecipe):
    """EAGLE's loss over several unrolled steps plus a term over the target's likeliest tokens.

    The recipe has every term as a number of its own, so only the numbers of the YAML differ from
    `train=eagle`, which leaves the steps unrolled to 1. Paper: HASS, arXiv 2408.15766.
    """
