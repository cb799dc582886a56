"""The last sentences of a benchmark: what came out, of what can be compared alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specframe.task.benchmark.conclusion import conclusion

NAME = "drafter=ngram tree=chain"


def board(speedup: float | None, *, ends: tuple[float, float] | None = None) -> dict[str, Any]:
    method = {"acceptance_length": 2.5, "tokens_per_s": 30.0, "synthetic": False}
    timed = {} if speedup is None else {"speedup": speedup}
    return {"method": method, "intervals": {"speedup": ends}, **timed}


def numbers(
    speedup: float | None, ends: tuple[float, float] | None = None, **categories: float
) -> dict[str, Any]:
    boards = {name: board(value) for name, value in categories.items()}
    return {"overall": board(speedup, ends=ends), "categories": boards}


def side(name: str, speed: float | None, **changes: Any) -> Any:
    """A side with its summary; what `changes` names is not the method's."""
    target = SimpleNamespace(name=changes.get("target", "t"), dtype=torch.float32, device="cpu")
    accept = SimpleNamespace(lossless=changes.get("lossless", True))
    parts = SimpleNamespace(
        target=target,
        accept=accept,
        runtime=changes.get("runtime", test_the_issues_own_sentence),
        cache=changes.get("cache", test_the_issues_own_sentence),
    )
    made = SimpleNamespace(
        engine=SimpleNamespace(components=parts), drafter=changes.get("drafter", "lm")
    )
    each = SimpleNamespace(name=name, label=name, peer=False, synthetic=False, speedup_decode=speed)
    return made, each


def test_the_issues_own_sentence() -> None:
    held = numbers(1.17, (1.08, 1.55), qa=1.6, summarization=0.77)
    sides = [side("baseline", 1.0, drafter="none"), side("method", 1.17), side("tree=auto", 1.38)]
    assert conclusion(held, name=NAME, sides=sides) == [
        "drafter=ngram tree=chain decodes at 1.17 times plain decoding (1.08 to 1.55), with 2.50 "
        "tokens a pass; on summarization it loses (0.77); tree=auto gives 1.38."
    ]


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (numbers(1.05, (0.97, 1.2)), "(0.97 to 1.20), which may be chance"),
        (numbers(0.9, (0.8, 0.95), a=0.9, b=0.95), "it loses on every kind of prompt, most on a"),
        (numbers(0.9), "tree=auto drafts only where measured costs say that it pays."),
        (numbers(1.2, None, a=0.9, b=0.8, c=2.0), "it loses on b (0.80), a (0.90)."),
        (numbers(None), "was not measured against plain decoding: 30.0 tokens a second"),
        ({"overall": None, "categories": {}}, "No prompt was answered"),
    ],
)
def test_what_else_may_come_out(held: dict[str, Any], said: str) -> None:
    assert said in conclusion(held, name=NAME)[0]


def test_plain_decoding_concludes_nothing_of_drafts() -> None:
    (sentence,) = conclusion(numbers(None), name="drafter=none tree=chain")
    assert sentence == "this is plain decoding: 30.0 tokens a second."


def test_a_text_that_was_told_gives_no_speed() -> None:
    held = numbers(3.0)
    held["overall"]["method"]["synthetic"] = True
    (sentence,) = conclusion(held, name=NAME)
    assert "3.00" not in sentence and "no method's" in sentence


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"target": "u"}, "another target"),
        ({"runtime": "packed"}, "another runtime"),
        ({"cache": "static"}, "another cache"),
    ],
)
def test_a_side_on_other_terms_is_named_and_not_ranked(changes: Any, why: str) -> None:
    sides = [side("method", 1.5), side("fast", 9.0, **changes), side("slow", 1.1)]
    first, second = conclusion(numbers(1.5), name=NAME, sides=sides)
    assert "slow gives 1.10" in first and "9.00" not in first
    assert second == f"Not to be compared with it, since they run on other terms: fast ({why})."


def test_a_lossy_side_is_called_so() -> None:
    sides = [side("method", 1.5), side("typical", 1.9, lossless=False)]
    (sentence,) = conclusion(numbers(1.5), name=NAME, sides=sides)
    assert sentence.endswith("typical gives 1.90 with a lossy rule.")
