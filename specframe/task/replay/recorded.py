"""A record of trace=full as a source of drafts.

At every position of the recorded text, policies grow their trees on the record as they would on
the drafter itself, and the text says how far each tree would have been accepted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from specframe.drafting.builder import TreeBuilder
from specframe.errors import ConfigError, IncompatibleComponents, describe_error
from specframe.law.sampling import Sampling
from specframe.law.streams import Streams
from specframe.lookup.foresight import Prospect
from specframe.storage.lines import read_settings
from specframe.tracing.traced_positions import (
    ANSWERS_FILE,
    UNKNOWN_TOKEN,
    TracedCall,
    TracedLaws,
    TracedPosition,
    read_positions,
)
from specframe.tree.base import TreePolicy
from specframe.types import Budget, Draft, Frontier, Proposal

_KEY = "task.trace"
_RANKS = 256  # most children a tree asks of a node
NodePath = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RecordedAnswer:
    """One recorded answer."""

    id: str | int | None
    category: str | None
    prompt_tokens: list[int]
    tokens: list[int]
    limit: int  # tokens that prompt and answer could reach together
    capacity: int | None  # slots of the target's cache; None for a cache that grows
    file: Path  # of the positions

    @cached_property
    def positions(self) -> list[RecordedPosition]:
        """The position of every token but the last, behind which nothing was decoded."""
        positions = read_positions(self.file)
        if len(positions) != len(self.tokens) - 1:
            raise ConfigError(
                f"{self.file}: {len(positions)} positions of {len(self.tokens)} tokens"
            )
        return [RecordedPosition(self, index, each) for index, each in enumerate(positions)]


@dataclass(frozen=True, kw_only=True)
class Record:
    """A run of trace=full."""

    folder: Path
    settings: dict[str, Any]  # what it was recorded with, by axis and key
    answers: list[RecordedAnswer]


def read_record(folder: Path) -> Record:
    """Read the finished answers of a run. Raises ConfigError if there are none."""
    index = folder / ANSWERS_FILE
    if not index.is_file():
        raise ConfigError(
            f"{_KEY}={folder}: no {ANSWERS_FILE} there; give the folder of a run with trace=full"
        )
    settings = read_settings(index, named_by=_KEY, contents="positions")
    answers = []
    for line in index.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            answers.append(_answer(line, folder))
    if not any(len(answer.tokens) > 1 for answer in answers):
        raise ConfigError(f"{_KEY}={folder}: no answer of two tokens was recorded")
    return Record(folder=folder, settings=settings, answers=answers)


def _answer(line: bytes, folder: Path) -> RecordedAnswer:
    names = ("id", "category", "prompt_tokens", "tokens", "limit", "capacity")
    try:
        entry = json.loads(line)
        values = {name: entry[name] for name in names}
        return RecordedAnswer(**values, file=folder / entry["file"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{_KEY}={folder}: a line of {ANSWERS_FILE} is no answer ({describe_error(error)}); "
            "record it again"
        ) from None


class RecordedPosition:
    """One position of an answer, which can stand in for the drafter that was recorded there.

    index: of the root among the answer's tokens.
    """

    def __init__(self, answer: RecordedAnswer, index: int, position: TracedPosition) -> None:
        self.context = [*answer.prompt_tokens, *answer.tokens[: index + 1]]  # up to the root
        self.text = answer.tokens[index + 1 :]  # what the answer went on with
        self._answer, self._position = answer, position
        self._calls: dict[int, list[tuple[TracedCall, dict[NodePath, int]]]] = {}
        self.paths: dict[int, NodePath] = {0: ()}
        for call in position.calls:
            rows = {
                self.paths[node]: row
                for row, node in enumerate(call.parents.tolist())
                if node in self.paths
            }
            self._calls.setdefault(call.depth, []).append((call, rows))
            for parent, nodes, tokens in zip(
                call.parents.tolist(), call.nodes.tolist(), call.tokens.tolist(), strict=True
            ):
                for node, token in zip(nodes, tokens, strict=True):
                    if token >= 0 and parent in self.paths:
                        self.paths.setdefault(node, (*self.paths[parent], token))

    @cached_property
    def true_depth(self) -> int:
        """Length of the longest recorded path that the text follows."""
        known, depth = set(self.paths.values()), 0
        while depth < len(self.text) and tuple(self.text[: depth + 1]) in known:
            depth += 1
        return depth

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        """What the drafter offered under these nodes, which are known by their paths."""
        paths = [tuple(path) for path in frontier.paths.tolist()]
        alive = frontier.alive.tolist()
        return [
            _proposal(
                call,
                [rows.get(path) if live else -1 for path, live in zip(paths, alive, strict=True)],
            )
            for call, rows in self._calls.get(frontier.depth, [])
        ]

    def native(self, budget: Budget) -> Sequence[Sequence[int]]:
        raise AssertionError("a policy of whole branches is refused before")

    def prospects(self) -> Sequence[Prospect]:
        return [Prospect(source="record", expand=self.expand)]

    def draft(self, policy: TreePolicy) -> Draft:
        """The tree that the policy grows here.

        Raises IncompatibleComponents where it asks for children that were not recorded.
        """
        context = torch.tensor(self.context)
        builder = TreeBuilder(
            context=context,
            sampling=recorded_sampling(greedy=True),
            rng=Streams(seed=0),
            step=0,
            how="place",
        )
        policy.grow(builder, self, self._budget(policy))
        draft = builder.build()
        if any(bool((call.tokens == UNKNOWN_TOKEN).any()) for call in draft.calls):
            raise IncompatibleComponents(
                f"after {len(self.context) - len(self._answer.prompt_tokens)} tokens of answer "
                f"{self._answer.id} the tree asks for children that were not recorded, so it is no "
                "sub-tree of the record; use the recorded tree's own numbers or smaller ones"
            )
        return draft

    @cached_property
    def laws(self) -> dict[NodePath, int]:
        """Path of a node -> its row in `recorded_laws`."""
        return {
            self.paths[node]: row for row, node in enumerate(self._position.laws.nodes.tolist())
        }

    @property
    def recorded_laws(self) -> TracedLaws:
        """The target's laws at the nodes of this position."""
        return self._position.laws

    def _budget(self, policy: TreePolicy) -> Budget:
        rows, length = policy.max_nodes, len(self.context)
        if self._answer.capacity is not None:
            rows = min(rows, self._answer.capacity - (length - 1))
        return Budget(rows=max(1, rows), depth=self._answer.limit - length - 1)


def recorded_sampling(*, greedy: bool) -> Sampling:
    """A sampling that leaves laws as they were recorded, where all processors had been applied."""
    return Sampling(
        temperature=0.0 if greedy else 1.0,
        processors=[],  # type: ignore[arg-type]
        warpers=[],  # type: ignore[arg-type]
        vocabulary=0,
    )


def _proposal(call: TracedCall, rows: Sequence[int | None]) -> Proposal:
    """What a call offered in these rows.

    A row of None was never asked for; a row of -1 is that of a dead node, which has no children.
    """
    # The source offered more than was recorded. The rest is marked UNKNOWN_TOKEN, so that a
    # policy can ask for it and `draft` can refuse it.
    width = min(call.width, call.tokens.shape[1] + _RANKS)
    tokens = torch.full((len(rows), width), UNKNOWN_TOKEN)
    scores = torch.full((len(rows), width), -math.inf, dtype=torch.float64)
    for place, row in enumerate(rows):
        if row is None:
            continue
        if row < 0:
            tokens[place] = -1
            continue
        tokens[place, : call.tokens.shape[1]] = torch.from_numpy(call.tokens[row])
        if call.scores is not None:
            scores[place, : call.tokens.shape[1]] = torch.from_numpy(call.scores[row])
    return Proposal(
        candidates=tokens, scores=None if call.scores is None else scores, source=call.source
    )
