"""The accuracy that is shipped with a head is used where it was made with the same sampling."""

from __future__ import annotations

import pytest

from specframe.costs.rank_accuracy import accuracy_from, shipped_accuracy
from tests.costs.toy_engines import config_of, engine_of


def test_shares_of_another_sampling_are_not_taken() -> None:
    engine, config = engine_of("drafter=lm"), config_of("drafter=lm")
    held = {"sampling": config["sampling"], "proposal": "place", "accuracy": [[0.5, 0.1]]}
    assert accuracy_from(held, engine, config) == ((0.5, 0.1),)
    hot = config["sampling"] | {"temperature": 1.0}
    assert accuracy_from(held | {"sampling": hot}, engine, config) is None
    assert accuracy_from(held | {"proposal": "wor"}, engine, config) is None


@pytest.mark.parametrize("word", ["eagle", "eagle3", "medusa"])
def test_a_shipped_head_brings_its_shares(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, config = engine_of("drafter=ngram"), config_of("drafter=ngram")
    monkeypatch.setattr(engine.components.target, "name", "package://smollm2")
    config["drafter"] = {"name": word, "path": None}
    shares = shipped_accuracy(engine, config, word)
    assert shares is not None and 0.3 < shares[0][0] < 0.5
    assert all(sum(row) <= 1 for row in shares)
    config["drafter"] = {"name": "router", "sources": ["ngram", word]}
    assert shipped_accuracy(engine, config, word) == shares
    config["drafter"] = {"name": word, "path": "another/head"}
    assert shipped_accuracy(engine, config, word) is None
