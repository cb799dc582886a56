"""Options inside an option: which words are marked, and what may stand under a word."""

from __future__ import annotations

import pytest

from specframe.compose.catalogue import configuration
from specframe.compose.nested_options import Option, nested_options, with_nested_keys_added
from specframe.compose.overrides import compose
from specframe.errors import ConfigError


def test_only_keys_of_nested_options_are_marked() -> None:
    plain = ["drafter=router", "drafter.mode=pick", "tree.depth=3", "prompt=drafter.a.b=c"]
    assert with_nested_keys_added(plain) == plain
    assert with_nested_keys_added(["drafter.ngram.n_max=2,3", "+drafter.lm.model=a"]) == [
        "++drafter.ngram.n_max=2,3",
        "+drafter.lm.model=a",
    ]


def test_nested_options_have_their_own_values_and_the_users() -> None:
    values = {"sources": ["ngram", "cascade"], "ngram": {"n_max": 7}}
    router = Option(where="drafter", axis="drafter", word="router", values=values)
    with configuration() as loader:
        ngram, cascade = nested_options(router, loader)
        inner = nested_options(cascade, loader)
    assert [ngram.where, cascade.where] == ["drafter.ngram", "drafter.cascade"]
    assert (ngram.values["n_max"], ngram.values["n_min"]) == (7, 1)
    assert [option.axis for option in inner] == ["drafter", "tree", "accept"]


def test_options_nest_in_nested_options() -> None:
    words = ["drafter=router", "drafter.sources=[ngram,cascade]", "target=toy"]
    config = compose([*words, "drafter.cascade.chain.depth=2"])
    assert config.drafter.cascade.chain.depth == 2
    with pytest.raises(ConfigError, match=r"drafter\.cascade\.chain\.dpth: chain has no field"):
        compose([*words, "drafter.cascade.chain.dpth=2"])


def test_what_lists_nothing_has_no_nested_options() -> None:
    ngram = Option(where="drafter", axis="drafter", word="ngram", values={"n_max": 3})
    with configuration() as loader:
        assert nested_options(ngram, loader) == []
    with pytest.raises(ConfigError, match=r"drafter=ngram has no field 'lm'"):
        compose(["drafter=ngram", "drafter.lm.model=a"])
