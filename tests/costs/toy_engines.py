"""Engines of the toy target, and their configurations."""

from __future__ import annotations

from typing import Any

import specframe
from specframe.compose.build import plan
from specframe.compose.overrides import compose
from specframe.session.engine import Engine


def engine_of(*words: str) -> Engine:
    return specframe.load(["target=toy", "tree=chain", "seed=3", *words])


def config_of(*words: str) -> dict[str, Any]:
    return plan(compose(["target=toy", "tree=chain", "seed=3", *words])).config
