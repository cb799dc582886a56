"""Options inside an option: which words are marked, and what may stand under a word."""

from __future__ import annotations

import pytest

from specframe.compose.catalogue import configuration
from specframe.compose.members import addable, check_keys, is_composite, members
from specframe.compose.overrides import compose
from specframe.errors import ConfigError


def test_only_keys_of_members_are_marked() -> None:
    plain = ["drafter=router", "drafter.mode=pick", "tree.depth=3", "prompt=drafter.a.b=c"]
    assert addable(plain) == plain
    assert addable(["drafter.ngram.n_max=2,3", "+drafter.lm.model=a"]) == [
        "++drafter.ngram.n_max=2,3",
        "+drafter.lm.model=a",
    ]


def test_members_have_their_own_values_and_the_users() -> None:
    values = {"sources": ["ngram", "cascade"], "ngram": {"n_max": 7}}
    with configuration() as loader:
        found = list(members("drafter", values, loader))
        inner = list(members("drafter.cascade", found[1].values, loader))
    assert [(one.where, one.axis) for one in found] == [
        ("drafter.ngram", "drafter"),
        ("drafter.cascade", "drafter"),
    ]
    assert (found[0].values["n_max"], found[0].values["n_min"]) == (7, 1)
    assert [one.axis for one in inner] == ["drafter", "tree", "accept"]


def test_members_of_members() -> None:
    words = ["drafter=router", "drafter.sources=[ngram,cascade]", "target=toy"]
    config = compose([*words, "drafter.cascade.chain.depth=2"])
    assert config.drafter.cascade.chain.depth == 2
    with pytest.raises(ConfigError, match=r"drafter\.cascade\.chain\.dpth: chain has no field"):
        compose([*words, "drafter.cascade.chain.dpth=2"])


def test_what_lists_nothing_has_no_members() -> None:
    with configuration() as loader:
        assert check_keys("drafter", "drafter=ngram", {"n_max": 3}, loader) == set()
    assert not is_composite({"n_max": 3, "inner": None})
    with pytest.raises(ConfigError, match=r"drafter=ngram has no field 'lm'"):
        compose(["drafter=ngram", "drafter.lm.model=a"])
