"""How far a tree would have been accepted on a text that is known.

accept=match keeps exactly the tokens that the text goes on with, so its steps can be counted. For
other rules the tokens of a step are estimated at every position of the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from specframe.accept.base import AcceptRule
from specframe.errors import IncompatibleComponents
from specframe.law.streams import Streams
from specframe.law.target_laws import Laws
from specframe.task.replay.recorded import (
    NodePath,
    RecordedAnswer,
    RecordedPosition,
    recorded_sampling,
)
from specframe.tree.base import TreePolicy
from specframe.types import Draft


def row_paths(draft: Draft) -> list[NodePath | None]:
    """The drafted tokens down to each row; None for dead rows."""
    paths: list[NodePath | None] = []
    rows = zip(draft.tokens.tolist(), draft.parents.tolist(), draft.alive.tolist(), strict=True)
    for row, (token, parent, alive) in enumerate(rows):
        above = paths[parent] if alive and row else None
        paths.append(() if not row else None if above is None else (*above, token))
    return paths


def accepted_depth(draft: Draft, text: Sequence[int]) -> int:
    """How many tokens of the text lie on one path of the draft, from its root on."""
    known, depth = set(row_paths(draft)), 0
    while depth < len(text) and tuple(text[: depth + 1]) in known:
        depth += 1
    return depth


def expected_tokens(position: RecordedPosition, draft: Draft) -> float:
    """Tokens that a step is expected to emit under a lossless rule.

    Such a rule accepts a placed child with the target's own probability of it.
    """
    reach: dict[NodePath, float] = {(): 1.0}
    for path in row_paths(draft)[1:]:
        if path is not None:
            prob = float(position.recorded_laws.probs[_law_row(position, path)])
            reach[path] = reach[path[:-1]] * prob
    return sum(reach.values())


def best_expected_tokens(position: RecordedPosition, max_nodes: int) -> float:
    """The expected tokens of the best tree of `max_nodes` recorded rows.

    A path is never likelier than its beginning, so the likeliest paths form a tree.
    """
    probs = position.recorded_laws.probs
    reach: dict[NodePath, float] = {(): 1.0}
    for path, row in sorted(position.laws.items(), key=lambda item: len(item[0])):
        if path:
            reach[path] = reach[path[:-1]] * float(probs[row])
    return sum(sorted(reach.values(), reverse=True)[:max_nodes])


def tokens_by_rule(
    position: RecordedPosition, draft: Draft, rule: AcceptRule, settings: dict[str, Any]
) -> int:
    """Tokens that a rule emits on the recorded laws.

    Of each law the likeliest tokens were recorded; the rest of the mass is spread evenly.
    """
    laws, vocabulary = position.recorded_laws, int(settings["vocab_size"])
    rows = [0 if path is None else _law_row(position, path) for path in row_paths(draft)]
    spread = torch.from_numpy(laws.tail[rows]) / max(1, vocabulary - laws.ids.shape[1])
    law = spread[:, None].repeat(1, vocabulary)
    law.scatter_(1, torch.from_numpy(laws.ids[rows]), torch.from_numpy(laws.top[rows]))
    target_laws = Laws(
        draft=draft,
        logits=law.log(),
        context=torch.tensor(position.context),
        sampling=recorded_sampling(greedy=bool(settings["greedy"])),
    )
    count: Tensor = rule.decide(draft, target_laws, Streams(seed=0)).count
    return int(count)


def _law_row(position: RecordedPosition, path: NodePath) -> int:
    row = position.laws.get(path)
    if row is None:
        raise IncompatibleComponents(
            "the tree has a node where the record has no law of the target, which an estimate "
            "needs; use the recorded tree's own top_k, or accept=match"
        )
    return row


def fewest_steps(reaches: Sequence[int], count: int, max_nodes: int) -> int:
    """The least number of verify passes for `count` tokens, chosen in hindsight.

    Each pass may take the recorded sub-tree of `max_nodes` rows that serves the text best.
    reaches: for each position, the longest recorded path that the text follows.
    """
    steps = [0] * (count + 1)  # [i]: passes for the last i tokens
    for left in range(1, count + 1):
        reach = min(reaches[count - left], max_nodes - 1, left)
        steps[left] = 1 + min(steps[max(left - 1 - taken, 0)] for taken in range(reach + 1))
    return steps[count]


def match_steps(answer: RecordedAnswer, policy: TreePolicy) -> Iterator[tuple[int, int, int]]:
    """Every step of accept=match over the text: (tokens emitted, accepted, live nodes drafted)."""
    index, count = 0, len(answer.tokens) - 1
    while index < count:
        position = answer.positions[index]
        draft = position.draft(policy)
        taken = accepted_depth(draft, position.text)
        emitted = min(taken + 1, count - index)
        yield emitted, taken, int(draft.alive.sum()) - 1
        index += emitted
