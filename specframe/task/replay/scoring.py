"""How task=replay scores a tree on a recorded answer, and the best that any tree could do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from specframe.accept.base import AcceptRule
from specframe.compose.binding import bind
from specframe.task.replay.hindsight import expected, fewest_steps, judged, most_expected, walked
from specframe.task.replay.recorded import RecordedAnswer, RecordedPlace
from specframe.task.replay.subtrees import is_exact
from specframe.tree.base import TREES, TreePolicy
from specframe.types import Draft


@dataclass(frozen=True, kw_only=True)
class Score:
    """One answer under one policy. tokens / steps is its acceptance length."""

    tokens: float
    steps: int
    accepted: int = 0
    drafted: int = 0


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """How answers are scored, what the best tree of so many rows would get, and whether that is an
    estimate."""

    of: Callable[[RecordedAnswer, TreePolicy], Score]
    best: Callable[[RecordedAnswer, int], Score]
    estimate: bool


def scorer(rule: AcceptRule, settings: dict[str, Any]) -> Scorer:
    """That of a rule on a record of these settings."""
    if is_exact(rule, settings):
        return Scorer(of=_exact, best=_fewest, estimate=False)

    def emitted(place: RecordedPlace, draft: Draft) -> float:
        return expected(place, draft) if rule.lossless else judged(place, draft, rule, settings)

    def estimated(answer: RecordedAnswer, policy: TreePolicy) -> Score:
        drafts = [(place, place.draft(policy)) for place in answer.places]
        drafted = sum(int(draft.alive.sum()) - 1 for _, draft in drafts)
        tokens = sum(emitted(place, draft) for place, draft in drafts)
        return Score(tokens=tokens, steps=len(drafts), drafted=drafted)

    @cache
    def most(place: RecordedPlace) -> float:
        return emitted(place, place.draft(_recorded(settings)))

    def best(answer: RecordedAnswer, max_nodes: int) -> Score:
        # A lossy rule keeps the longest path that it likes, so all rows but those can go.
        tokens = [
            most_expected(place, max_nodes) if rule.lossless else min(most(place), max_nodes)
            for place in answer.places
        ]
        return Score(tokens=sum(tokens), steps=len(tokens))

    return Scorer(of=estimated, best=best, estimate=True)


def _recorded(settings: dict[str, Any]) -> TreePolicy:
    cls: Any = TREES.get(settings["tree"]["name"])
    made: TreePolicy = cls(**bind(cls, settings["tree"], where="tree"))
    return made


def _exact(answer: RecordedAnswer, policy: TreePolicy) -> Score:
    steps = list(walked(answer, policy))
    emitted, taken, drafted = (sum(column) for column in zip(*steps, strict=True))
    return Score(tokens=emitted, steps=len(steps), accepted=taken, drafted=drafted)


def _fewest(answer: RecordedAnswer, max_nodes: int) -> Score:
    reaches = [place.true_depth for place in answer.places]
    return Score(tokens=len(reaches), steps=fewest_steps(reaches, len(reaches), max_nodes))
