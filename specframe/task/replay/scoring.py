"""Scores of a tree on a recorded answer, and of the best that any tree could do there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from specframe.accept.base import AcceptRule
from specframe.compose.binding import bind
from specframe.task.replay.hindsight import (
    best_expected_tokens,
    expected_tokens,
    fewest_steps,
    match_steps,
    tokens_by_rule,
)
from specframe.task.replay.recorded import RecordedAnswer, RecordedPosition
from specframe.task.replay.subtrees import is_exact
from specframe.tree.base import TREES, TreePolicy
from specframe.types import Draft


@dataclass(frozen=True, kw_only=True)
class Score:
    """One answer under one policy. num_tokens / num_steps is its acceptance length."""

    num_tokens: float  # of an estimate: expected
    num_steps: int  # of an estimate: positions of the text
    num_accepted: int = 0
    num_drafted: int = 0


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """How the answers of a record are scored under one rule."""

    of: Callable[[RecordedAnswer, TreePolicy], Score]  # the score of a policy
    best: Callable[[RecordedAnswer, int], Score]  # of the best tree of so many rows, in hindsight
    estimate: bool  # False: a real run would take exactly these steps


def scorer_of(rule: AcceptRule, settings: dict[str, Any]) -> Scorer:
    """The scorer of a rule on a record that was made with these settings."""
    if is_exact(rule, settings):
        return Scorer(of=_exact, best=_fewest, estimate=False)

    def emitted(position: RecordedPosition, draft: Draft) -> float:
        return (
            expected_tokens(position, draft)
            if rule.lossless
            else tokens_by_rule(position, draft, rule, settings)
        )

    def estimated(answer: RecordedAnswer, policy: TreePolicy) -> Score:
        drafts = [(position, position.draft(policy)) for position in answer.positions]
        drafted = sum(int(draft.alive.sum()) - 1 for _, draft in drafts)
        tokens = sum(emitted(position, draft) for position, draft in drafts)
        return Score(num_tokens=tokens, num_steps=len(drafts), num_drafted=drafted)

    @cache
    def most(position: RecordedPosition) -> float:
        return emitted(position, position.draft(_recorded_policy(settings)))

    def best(answer: RecordedAnswer, max_nodes: int) -> Score:
        # A lossy rule accepts one path of the recorded tree; rows off that path can be left out.
        tokens = [
            best_expected_tokens(position, max_nodes)
            if rule.lossless
            else min(most(position), max_nodes)
            for position in answer.positions
        ]
        return Score(num_tokens=sum(tokens), num_steps=len(tokens))

    return Scorer(of=estimated, best=best, estimate=True)


def _recorded_policy(settings: dict[str, Any]) -> TreePolicy:
    cls: Any = TREES.get(settings["tree"]["name"])
    policy: TreePolicy = cls(**bind(cls, settings["tree"], where="tree"))
    return policy


def _exact(answer: RecordedAnswer, policy: TreePolicy) -> Score:
    steps = list(match_steps(answer, policy))
    emitted, taken, drafted = (sum(column) for column in zip(*steps, strict=True))
    return Score(num_tokens=emitted, num_steps=len(steps), num_accepted=taken, num_drafted=drafted)


def _fewest(answer: RecordedAnswer, max_nodes: int) -> Score:
    reaches = [position.true_depth for position in answer.positions]
    return Score(num_tokens=len(reaches), num_steps=fewest_steps(reaches, len(reaches), max_nodes))
