"""The contract of an acceptance rule, and the walk that rules share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.law.streams import Streams
from specframe.law.target_laws import Laws
from specframe.registry import Registry
from specframe.types import Draft, How, Verdict

Show = Callable[[int], str]  # a token id as quoted text


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why nodes were refused. values [n] float64 stay on the device until whoever asked reads them;
    words(values, show) makes of them a few words for each row that was judged and refused."""

    values: Tensor
    words: Callable[[Sequence[float], Show], dict[int, str]]


class AcceptRule(ABC):
    """Decides which drafted tokens are kept."""

    lossless: bool  # emitted text follows the target's law exactly
    # More than lossless: it is the autoregressive text of the same seed, at any temperature.
    same_text: bool = False
    any_draft: bool = False  # stays right when drawn nodes are re-ranked by value
    reads: frozenset[How] = frozenset({"place"})  # kinds of draws that it can judge
    # How `tree.proposal=auto` makes children for it at temperature > 0. A rule that prefers draws
    # needs a drafter with laws: placed children alone are of no use to it.
    preferred: How = "place"
    chains_only: bool = False  # it cannot judge a draft whose nodes have two children

    @abstractmethod
    def decide(self, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        """The accepted path and the tokens to emit, as device tensors of fixed size.

        Each coin and draw has counters of its own, which never come twice in a sequence. A rule
        that judges a level only after all levels above it were accepted may key a coin by
        (laws.position + level, ...), since the next step begins behind the last level it judged. A
        rule that tosses coins for levels which it then does not emit keys them by the step as well,
        (laws.position, level, ...): the next step comes to those positions again.
        """

    def explain(
        self, draft: Draft, laws: Laws, rng: Streams, verdict: Verdict
    ) -> Explanation | None:
        """Why nodes were refused, given what `decide` said of the same; only traces ask.

        None: the rule has no words for it. Reads the host no more often than `decide`.
        """
        return None


class Walk:
    """A walk from the root down the draft, one level at a time, without host reads."""

    def __init__(self, draft: Draft) -> None:
        device = draft.tokens.device
        self._draft = draft
        self.node = torch.zeros(1, dtype=torch.long, device=device)
        self.open = torch.ones(1, dtype=torch.bool, device=device)
        self._path: list[Tensor] = []
        self._tokens: list[Tensor] = []

    def child_with(self, token: Tensor) -> tuple[Tensor, Tensor]:
        """Row [1] of the current node's alive child that holds token [1], and whether it exists."""
        draft = self._draft
        hit = (draft.parents == self.node) & (draft.tokens == token) & draft.alive
        return hit.int().argmax(0, keepdim=True), hit.any(0, keepdim=True)

    def move(self, token: Tensor, child: Tensor, exists: Tensor) -> None:
        """Emit token [1] at this level and go to its child, or end the walk if there is none."""
        self._tokens.append(torch.where(self.open, token, -1))
        self.open = self.open & exists
        self._path.append(torch.where(self.open, child, -1))
        self.node = torch.where(self.open, child, self.node)

    def end(self, token: Tensor) -> Verdict:
        """Emit token [1] after draft.depth moves, where no node can have children any more."""
        self._tokens.append(torch.where(self.open, token, -1))
        return self.verdict()

    def verdict(self) -> Verdict:
        """What the walk emitted."""
        tokens = torch.cat(self._tokens)[None]
        moves = self._path[: len(self._tokens) - 1]
        return Verdict(
            path=torch.cat(moves)[None] if moves else tokens[:, :0],
            tokens=tokens,
            count=(tokens >= 0).sum(1),
        )


def refused_for(draft: Draft, verdict: Verdict, verb: str) -> Explanation:
    """For rules that find one token at each node: "target chose ' the'", under every node that the
    walk stood at, for all children but the one that holds it."""
    found = torch.full_like(draft.tokens, -1)
    node = torch.zeros_like(draft.tokens[:1])
    for depth in range(draft.depth + 1):
        here = (draft.parents == node) & draft.alive & (node >= 0)
        found = torch.where(here, verdict.tokens[0, depth], found)
        node = verdict.path[0, depth : depth + 1] if depth < draft.depth else node
    found = torch.where(found == draft.tokens, -1, found)

    def words(values: Sequence[float], show: Show) -> dict[int, str]:
        chosen = {row: int(token) for row, token in enumerate(values) if token >= 0}
        return {row: f"{verb} {show(token)}" for row, token in chosen.items()}

    return Explanation(values=found.double(), words=words)


RULES: Registry[AcceptRule] = Registry("accept", "specframe.accept")
