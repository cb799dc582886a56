"""drafter=none is autoregressive decoding in the loop that everything else runs through."""

from __future__ import annotations

import pytest

from specframe.tree.base import TREES
from tests.small_models import Composition, decode, oracle, target, toy, tree_of


@pytest.mark.parametrize("tree", sorted(TREES.names()))
def test_every_step_has_one_row_and_one_token(tree: str) -> None:
    chosen = tree_of(tree)
    outcome = decode(Composition(target=toy(), tree=chosen), (1, 2, 3), 12)
    assert len(outcome.tokens) == 12
    assert len(outcome.records) == 11
    for record in outcome.records:
        assert record.draft.num_rows == 1
        assert (record.path, len(record.tokens), record.num_accepted) == ([], 1, 0)


def test_text_is_that_of_full_forwards() -> None:
    prompt = (5, 17, 42)
    outcome = decode(Composition(target=target("llama")), prompt, 10)
    assert outcome.tokens == oracle("llama", prompt, 10)
