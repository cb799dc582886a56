"""How far a tree would have been accepted on a text that is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from specframe.accept.base import AcceptRule
from specframe.errors import IncompatibleComponents
from specframe.law.laws import Laws
from specframe.law.streams import Streams
from specframe.task.replay.recorded import NodePath, RecordedAnswer, RecordedPlace, plain
from specframe.tree.base import TreePolicy
from specframe.types import Draft


def row_paths(draft: Draft) -> list[NodePath | None]:
    """Drafted path of every row; None for dead ones."""
    paths: list[NodePath | None] = []
    rows = zip(draft.tokens.tolist(), draft.parents.tolist(), draft.alive.tolist(), strict=True)
    for row, (token, parent, alive) in enumerate(rows):
        above = paths[parent] if alive and row else None
        paths.append(() if not row else None if above is None else (*above, token))
    return paths


def accepted(draft: Draft, text: Sequence[int]) -> int:
    """How many of its nodes the text walks down."""
    known, depth = set(row_paths(draft)), 0
    while depth < len(text) and tuple(text[: depth + 1]) in known:
        depth += 1
    return depth


def expected(place: RecordedPlace, draft: Draft) -> float:
    """Tokens that a step is expected to emit under a lossless rule: each placed child is accepted
    with the target's own probability of it."""
    reach: dict[NodePath, float] = {(): 1.0}
    for path in row_paths(draft)[1:]:
        if path is not None:
            prob = float(place.recorded_laws.probs[_law_row(place, path)])
            reach[path] = reach[path[:-1]] * prob
    return sum(reach.values())


def most_expected(place: RecordedPlace, max_nodes: int) -> float:
    """The same of the best tree of `max_nodes` recorded rows: a path is never likelier than its
    beginning, so the likeliest paths are one."""
    probs = place.recorded_laws.probs
    reach: dict[NodePath, float] = {(): 1.0}
    for path, row in sorted(place.laws.items(), key=lambda item: len(item[0])):
        if path:
            reach[path] = reach[path[:-1]] * float(probs[row])
    return sum(sorted(reach.values(), reverse=True)[:max_nodes])


def judged(place: RecordedPlace, draft: Draft, rule: AcceptRule, settings: dict[str, Any]) -> int:
    """Tokens that a rule emits on the recorded laws; what the top tokens leave is spread evenly."""
    laws, vocabulary = place.recorded_laws, int(settings["vocab_size"])
    rows = [0 if path is None else _law_row(place, path) for path in row_paths(draft)]
    spread = torch.from_numpy(laws.tail[rows]) / max(1, vocabulary - laws.ids.shape[1])
    law = spread[:, None].repeat(1, vocabulary)
    law.scatter_(1, torch.from_numpy(laws.ids[rows]), torch.from_numpy(laws.top[rows]))
    held = Laws(
        draft=draft,
        logits=law.log(),
        context=torch.tensor(place.context),
        sampling=plain(greedy=bool(settings["greedy"])),
    )
    count: Tensor = rule.decide(draft, held, Streams(seed=0)).count
    return int(count)


def _law_row(place: RecordedPlace, path: NodePath) -> int:
    row = place.laws.get(path)
    if row is None:
        raise IncompatibleComponents(
            "the tree has a node where the record has no law of the target, which an estimate "
            "needs; use the recorded tree's own top_k, or accept=match"
        )
    return row


def fewest_steps(reaches: Sequence[int], count: int, max_nodes: int) -> int:
    """Verify passes that `count` tokens take at least, if each pass may have the best sub-tree of
    `max_nodes` rows in hindsight. reaches: by position, the longest true path."""
    steps = [0] * (count + 1)  # [i]: with i tokens still to come
    for left in range(1, count + 1):
        reach = min(reaches[count - left], max_nodes - 1, left)
        steps[left] = 1 + min(steps[max(left - 1 - taken, 0)] for taken in range(reach + 1))
    return steps[count]


def walked(answer: RecordedAnswer, policy: TreePolicy) -> Iterator[tuple[int, int, int]]:
    """(tokens emitted, drafted tokens accepted, live nodes drafted) of every step of accept=match
    over the text."""
    index, count = 0, len(answer.tokens) - 1
    while index < count:
        place = answer.places[index]
        draft = place.draft(policy)
        taken = accepted(draft, place.text)
        emitted = min(taken + 1, count - index)
        yield emitted, taken, int(draft.alive.sum()) - 1
        index += emitted
