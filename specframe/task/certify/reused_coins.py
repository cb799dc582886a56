"""Broken rules that toss a coin twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specframe.accept.base import AcceptRule
from specframe.law.streams import Stream, Streams
from specframe.law.target_laws import Laws
from specframe.types import Draft, How, Verdict

_YES = torch.ones(1, dtype=torch.bool)


@dataclass(frozen=True, kw_only=True)
class _Link:
    """A drafted token of a chain: its row, and the law [V] that it was drawn from."""

    row: int
    token: int
    law: Tensor


class BlockAgain(AcceptRule):
    """Block verification of the first child of each node, which tosses coins again.

    All coins of a chain are tossed, and the deepest one that passes decides how much is kept. The
    next step then begins behind a coin that has failed, and asks for it again, since the counters
    are those of `rejection`, (position + level, 0). With independent coins the rule is exact:
    p_i = min(p_{i-1} p(x_i) / q(x_i), 1); h_i = s_i / (s_i + 1 - p_i) with
    s_i = sum max(p_i p - q, 0), and h = p_i at the end of the chain.
    Paper: Sun et al., arXiv 2403.10444.
    """

    title: ClassVar[str] = "a block rule that tosses a coin again at the next step"
    lossless: bool = True
    reads: frozenset[How] = frozenset({"place", "iid", "wor", "coupled"})

    def counters(self, position: int | Tensor, level: int) -> tuple[int | Tensor, ...]:
        """Of the coin for the token at a level; this is what is wrong with the rule."""
        return (position + level, 0)

    def decide(self, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        chain = _first_children(draft, laws.logits.shape[-1])
        rows = [0, *(link.row for link in chain)]
        target = [
            laws.at(torch.tensor([row], device=draft.tokens.device), level)[0].double()
            for level, row in enumerate(rows)
        ]
        share, kept, rest = 1.0, 0, _left(target, chain, 0, 1.0)
        for level, link in enumerate(chain):
            ratio = float(target[level][link.token] / link.law[link.token])
            share = min(share * ratio, 1.0)
            left = _left(target, chain, level + 1, share)
            mass = float(left.sum())
            whole = level + 1 == len(chain)
            passes = share if whole or share == 1.0 else mass / (mass + 1.0 - share)
            odds = torch.tensor([passes], dtype=torch.float64)
            coin = rng.coin(odds, self.counters(laws.position, level), _YES)
            if bool(coin):
                kept, rest = level + 1, left
        rest = rest if float(rest.sum()) > 0 else target[kept]
        last = rng.categorical("accept", rest[None], (laws.position + kept, -1), _YES)
        return _verdict(draft, chain[:kept], last)


def _left(target: list[Tensor], chain: list[_Link], level: int, share: float) -> Tensor:
    """[V] what of the target's law is left where `level` tokens are kept; all of it at the end."""
    if level == len(chain):
        return target[level]
    return (share * target[level] - chain[level].law).clamp_min(0)


def _first_children(draft: Draft, vocabulary: int) -> list[_Link]:
    """The first child that was put under the root, the first under that, and so on."""
    chain: list[_Link] = []
    row = 0
    while len(chain) < draft.depth:
        link = _first_child(draft, row, len(chain), vocabulary)
        if link is None:
            return chain
        chain.append(link)
        row = link.row
    return chain


def _first_child(draft: Draft, row: int, depth: int, vocabulary: int) -> _Link | None:
    zeros = torch.zeros(vocabulary, dtype=torch.float64, device=draft.tokens.device)
    if draft.draws is None:
        rows = ((draft.parents == row) & draft.alive).nonzero()[:, 0].tolist()
        token = int(draft.tokens[rows[0]]) if rows else -1
        law = zeros.index_fill(0, draft.tokens[rows[:1]], 1.0)
        return _Link(row=rows[0], token=token, law=law) if rows else None
    for call in draft.draws:
        places = (draft.row_of[call.parents] == row).nonzero()[:, 0].tolist()
        if call.depth != depth or not places:
            continue
        token, node = int(call.tokens[places[0], 0]), call.nodes[places[0], 0]
        if token < 0 or int(draft.row_of[node]) < 0:
            continue
        if call.law is None:
            law = zeros.index_fill(0, call.tokens[places[0], :1], 1.0)
        else:
            law = call.law[places[0]].double()
            law = law / law.sum()
            law = law if call.ids is None else zeros.index_copy(0, call.ids, law)
        return _Link(row=int(draft.row_of[node]), token=token, law=law)
    return None


def _verdict(draft: Draft, kept: list[_Link], last: Tensor) -> Verdict:
    path = [link.row for link in kept]
    tokens = [*(link.token for link in kept), int(last)]
    unused = [-1] * (draft.depth - len(kept))
    return Verdict(
        path=draft.tokens.new_tensor([path + unused]),
        tokens=draft.tokens.new_tensor([tokens + unused]),
        count=draft.tokens.new_tensor([len(tokens)]),
    )


class Stuck(AcceptRule):
    """Another rule, whose coins and draws do not know where in the text they are."""

    title: ClassVar[str] = "the rule with the same coins at each step"

    def __init__(self, rule: AcceptRule) -> None:
        self._rule = rule
        self.lossless, self.reads, self.any_draft = rule.lossless, rule.reads, rule.any_draft

    def decide(self, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        return self._rule.decide(draft, laws, _WithoutPosition(rng))


class _WithoutPosition(Streams):
    """Streams with 0 in place of the first counter, which is a position."""

    def __init__(self, streams: Streams) -> None:
        super().__init__(seed=streams.seed, sequence=streams.sequence)
        self._streams = streams

    def target(self, probs: Tensor, position: int | Tensor, where: Tensor) -> Tensor:
        return self._streams.target(probs, 0, where)

    def categorical(
        self, stream: Stream, probs: Tensor, counters: tuple[int | Tensor, ...], where: Tensor
    ) -> Tensor:
        return self._streams.categorical(stream, probs, (0, *counters[1:]), where)

    def coin(
        self, probability: Tensor, counters: tuple[int | Tensor, ...], where: Tensor
    ) -> Tensor:
        return self._streams.coin(probability, (0, *counters[1:]), where)
