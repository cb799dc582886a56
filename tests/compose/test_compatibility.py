"""Which words go together, and the sentence where they do not."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from specframe.accept.base import RULES
from specframe.accept.match import Match
from specframe.accept.rejection import Rejection
from specframe.accept.typical import Typical
from specframe.cache.base import CACHES
from specframe.cache.dynamic import DynamicCache as DynamicCache
from specframe.compose.compatibility import Classes, check, resolve_proposal
from specframe.drafter.base import DRAFTERS, Drafter, Traits
from specframe.drafter.lm import LM
from specframe.drafter.ngram import Ngram
from specframe.drafter.none import NoDraft
from specframe.errors import IncompatibleComponents
from specframe.target.base import TARGETS
from specframe.target.hf import HF
from specframe.target.toy import Toy
from specframe.tree.base import TREES, ProposalKind
from specframe.tree.chain import ChainTree
from specframe.tree.dynamic import DynamicTree
from specframe.tree.native import NativeTree
from specframe.tree.static import StaticTree
from specframe.types import Gives, How, Needs
from tests.methods import Cascade, EarlyExit

REGISTRIES = {
    "target": TARGETS,
    "drafter": DRAFTERS,
    "tree": TREES,
    "accept": RULES,
    "cache": CACHES,
}


def word_of(cls: type) -> str:
    """The word of a component, which is its module's name; that of a test is its own name."""
    module = cls.__module__
    return module.rpartition(".")[2] if module.startswith("specframe.") else cls.__name__.lower()


def classes(**chosen: Any) -> Classes:
    """A composition of classes."""
    plain: dict[str, Any] = {
        "target": HF,
        "drafter": LM,
        "tree": ChainTree,
        "accept": Match,
        "cache": DynamicCache,
    }
    picked = plain | chosen
    return Classes(**picked, words={axis: word_of(cls) for axis, cls in picked.items()})


def refused(how: How = "place", lossless: bool = False, **chosen: Any) -> str:
    """The sentence of a refusal."""
    with pytest.raises(IncompatibleComponents) as caught:
        check(classes(**chosen), how=how, require_lossless=lossless)
    text = str(caught.value)
    assert "\n" not in text
    assert "use " in text, "a refusal says what to use instead"
    return text


class LinearState(Toy):
    """A target whose state goes one way only."""

    gives = Gives(rollback="none")


class NoMask(Toy):
    """A target that takes no tree mask."""

    gives = Gives(tree_masks=False)


class Heads(Drafter):
    """Wants a hidden state."""

    traits = Traits(needs=Needs(taps=("resid:2",)))


class LastFirst(Match):
    """A rule that judges a chain from its end."""

    chains_only = True


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (
            {"accept": Rejection, "drafter": Ngram},
            r"accept=rejection drafter=ngram: ngram gives no law, so rejection would only be match",
        ),
        (
            {"how": "coupled", "accept": Rejection},
            r"tree\.proposal=coupled: accept=rejection cannot",
        ),
        (
            {"how": "wor", "drafter": Ngram},
            r"tree\.proposal=wor: drafter=ngram gives no law to draw",
        ),
        (
            {"how": "wor", "tree": DynamicTree, "accept": Rejection},
            r"tree\.proposal=wor: tree=dynamic re-ranks nodes .* biases accept=rejection",
        ),
        ({"how": "iid", "tree": DynamicTree, "accept": Typical}, r"tree=dynamic re-ranks nodes"),
        ({"tree": NativeTree}, r"tree=native takes whole branches and drafter=lm has none"),
        ({"target": LinearState}, r"target=linearstate with cache=dynamic cannot roll back"),
        (
            {"target": NoMask, "tree": StaticTree},
            r"target=nomask cannot score a tree in one pass, which tree=static needs",
        ),
        ({"accept": LastFirst, "tree": StaticTree}, r"accept=lastfirst judges chains only"),
        (
            {"target": Toy, "drafter": Heads},
            r"drafter=heads needs resid:2, which target=toy does not",
        ),
        ({"target": Toy, "drafter": EarlyExit}, r"drafter=earlyexit needs partial layers"),
        (
            {"drafter": Cascade, "tree": DynamicTree, "accept": Rejection},
            r"tree=dynamic re-ranks the tokens that drafter=cascade has drawn by itself",
        ),
        ({"lossless": True, "accept": Typical}, r"accept=typical changes .* require_lossless=true"),
    ],
)
def test_refusals(chosen: dict[str, Any], message: str) -> None:
    import re

    assert re.search(message, refused(**chosen))


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"how": "coupled"},
        {"how": "wor", "tree": DynamicTree},  # match stays right when draws are re-ranked
        {"tree": DynamicTree, "accept": Rejection},  # placed: the law is one-hot
        {"how": "wor", "tree": StaticTree, "accept": Rejection},
        {"drafter": Ngram, "tree": NativeTree},
        {"drafter": NoDraft, "accept": Rejection, "tree": NativeTree},
        {"drafter": Heads},
        {"drafter": EarlyExit},
        {"target": NoMask},
        {"accept": LastFirst},
        {"target": LinearState, "drafter": NoDraft},
        {"target": LinearState, "drafter": NoDraft, "tree": DynamicTree},
        {"target": NoMask, "drafter": NoDraft, "tree": DynamicTree},
        {"accept": LastFirst, "drafter": NoDraft, "tree": DynamicTree},
        {"drafter": Cascade, "accept": Rejection},
        {"drafter": Cascade, "tree": DynamicTree},
        {"drafter": Cascade, "accept": Typical},
    ],
)
def test_what_is_right_is_allowed(chosen: dict[str, Any]) -> None:
    how = chosen.pop("how", "place")
    check(classes(**chosen), how=how, require_lossless=False)


@pytest.mark.parametrize(
    ("chosen", "greedy", "expected"),
    [
        ({}, False, "place"),
        ({"accept": Rejection}, False, "wor"),
        ({"accept": Rejection}, True, "place"),
        ({"accept": Rejection, "tree": DynamicTree}, False, "place"),
        ({"accept": Rejection, "drafter": Ngram}, False, "place"),
        ({"accept": Typical}, False, "place"),
    ],
)
def test_auto_proposals(chosen: dict[str, Any], greedy: bool, expected: How) -> None:
    assert resolve_proposal("auto", classes(**chosen), greedy=greedy) == expected


@pytest.mark.parametrize("asked", ["place", "iid", "wor", "coupled"])
def test_what_is_asked_for_stands(asked: ProposalKind) -> None:
    assert resolve_proposal(asked, classes(accept=Rejection), greedy=True) == asked


def test_auto_is_never_refused_for_its_draws() -> None:
    """Whatever auto chooses for registered words must go with them."""
    axes = ("drafter", "tree", "accept")
    for words in itertools.product(*(REGISTRIES[axis].names() for axis in axes)):
        picked = {axis: REGISTRIES[axis].get(word) for axis, word in zip(axes, words, strict=True)}
        made = classes(**picked)
        for greedy in (False, True):
            how = resolve_proposal("auto", made, greedy=greedy)
            text = ""
            try:
                check(made, how=how, require_lossless=False)
            except IncompatibleComponents as error:
                text = str(error)
            assert "tree.proposal" not in text, words
