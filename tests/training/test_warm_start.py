"""A training that starts from a trained head takes its weights, if they are of the same kind."""

from __future__ import annotations

import pytest

from specframe.errors import ConfigError
from specframe.training.warm_start import take_weights
from tests.heads.small_heads import eagle_net
from tests.training.small_courses import eagle, small_target


def test_other_kinds_are_refused() -> None:
    fresh = eagle().make(small_target(), None).double()
    other = eagle_net(5, head=97)
    with pytest.raises(ConfigError, match=r"lm_head\.weight is surplus"):
        take_weights(fresh, other, path="theirs")
