"""Small drafters in the manner of published methods, one for each corner of the contract.

They are no components: each is as short as it can be and still use what its method will need.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specframe.drafter.base import Continuation, Drafter, Retrieval, Traits
from specframe.loop import Decoding
from specframe.records import Context, StepRecord
from specframe.target.base import Target
from specframe.types import (
    AuxRows,
    Budget,
    Draft,
    Frontier,
    Needs,
    Proposal,
    Resume,
    Rows,
    TargetOutput,
)


class Lookahead(Retrieval):
    """One Jacobi row of `window` tokens rides along as auxiliary rows; its guesses fill a pool.

    As in lookahead decoding (arXiv 2402.02057) with n-grams of two tokens.
    """

    def __init__(self, *, window: int, vocab_size: int) -> None:
        self.traits = replace(self.traits, needs=Needs(aux_rows=window))
        self.window = window
        self.vocab_size = vocab_size

    def begin(self, context: Context, out: TargetOutput) -> None:
        super().begin(context, out)
        self.guess = [(7 * place + 3) % self.vocab_size for place in range(self.window)]
        self.pool: defaultdict[int, list[int]] = defaultdict(list)

    def continuations(self) -> Sequence[Continuation]:
        token = self.context.tokens[-1]
        return [Continuation([one, *self.pool[one][-1:]]) for one in self.pool[token][-4:]]

    def aux(self, draft: Draft, budget: Budget) -> Draft:
        size = self.window
        sees = torch.zeros(size, draft.num_rows + size, dtype=torch.bool)
        sees[:, 0] = True  # the root
        sees[:, draft.num_rows :] = torch.ones(size, size).tril().bool()
        tokens = torch.tensor(self.guess)
        positions = len(self.context) + torch.arange(size)
        return replace(draft, aux=AuxRows(tokens=tokens, positions=positions, sees=sees))

    def readback(self, draft: Draft, out: TargetOutput) -> Tensor | None:
        return None if out.aux_logits is None else out.aux_logits.argmax(-1)

    def observe(self, record: StepRecord) -> None:
        if not record.readback:  # a forced step has no auxiliary rows
            return
        for token, following in zip(self.guess, record.readback, strict=True):
            self.pool[token].append(following)
        self.guess = record.readback


class Recycling(Drafter):
    """A table token -> its likely followers, refreshed from the logits of every verified row.

    As in token recycling (arXiv 2408.08696); the table never leaves the device.
    """

    def __init__(self, *, vocab_size: int, width: int) -> None:
        self.vocab_size, self.width = vocab_size, width

    def begin(self, context: Context, out: TargetOutput) -> None:
        # One row past the vocabulary takes what dead rows write.
        self.table = torch.full((self.vocab_size + 1, self.width), -1)

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        return [Proposal(candidates=self.table[frontier.tokens])]

    def observe(self, record: StepRecord) -> None:
        draft = record.draft
        best = record.out.logits.topk(self.width).indices
        rows = torch.where(draft.alive, draft.tokens, self.vocab_size)
        self.table.index_copy_(0, rows, best)


class Router(Drafter):
    """Several drafters propose under every node; a tree that can takes them all."""

    def __init__(self, *sources: Drafter) -> None:
        self.sources = sources

    def begin(self, context: Context, out: TargetOutput) -> None:
        for one in self.sources:
            one.begin(context, out)

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        return [proposal for one in self.sources for proposal in one.expand(frontier)]

    def observe(self, record: StepRecord) -> None:
        for one in self.sources:
            one.observe(record)

    def truncate(self, length: int) -> None:
        for one in self.sources:
            one.truncate(length)


class EarlyExit(Drafter):
    """Drafts with the target's first layers, in its own cache; the verify pass does the rest.

    As in LayerSkip (arXiv 2404.16710). Slots are taken backwards, so they are out of row order.
    """

    # It reads which rows the policy never expanded.
    traits = Traits(needs=Needs(partial_layers=True), laws="logits", host_reads=2)

    def __init__(self, *, target: Target, layer: int) -> None:
        self.target, self.layer = target, layer

    def begin(self, context: Context, out: TargetOutput) -> None:
        assert context.cache is not None
        self.context, self.cache = context, context.cache
        self._forget()

    def _forget(self) -> None:
        none = torch.zeros(0, dtype=torch.long)
        self.nodes, self.slots, self.columns = none, none, none  # of the nodes fed so far
        self.hidden: list[Tensor] = []
        self.above = torch.zeros(1, 0, dtype=torch.long)  # columns down to each fed node's parent
        self.level = none

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        if frontier.depth == 0:
            self._forget()
            above = self.above
        else:
            above = self.above[(frontier.parents[:, None] == self.level).int().argmax(1)]
        fresh = self.cache.reserve([len(frontier)])
        slots, columns = fresh.slots.flip(0), fresh.columns.flip(0)
        self.above = torch.cat([above, columns[:, None]], dim=1)
        self.level = frontier.nodes
        length = self.cache.lengths[0]
        sees = torch.zeros(len(frontier), fresh.extent, dtype=torch.bool)
        rows = Rows(
            tokens=frontier.tokens.clamp_min(0),
            positions=torch.full_like(slots, length + frontier.depth),
            slots=slots,
            prefix=torch.full_like(slots, length),
            sees=sees.scatter_(1, self.above, True),
        )
        logits = self._feed(rows, want=torch.arange(len(frontier)))
        self.nodes = torch.cat([self.nodes, frontier.nodes])
        self.slots = torch.cat([self.slots, slots])
        self.columns = torch.cat([self.columns, columns])
        assert logits is not None
        return [Proposal(logits=logits)]

    def aux(self, draft: Draft, budget: Budget) -> Draft:
        fed = {node: place for place, node in enumerate(self.nodes.tolist())}
        origin = draft.origin.tolist()
        new = torch.tensor([row for row, node in enumerate(origin) if node not in fed])
        old = torch.tensor([row for row, node in enumerate(origin) if node in fed])
        places = torch.tensor([fed[node] for node in origin if node in fed])
        slots = torch.empty(draft.num_rows, dtype=torch.long)
        columns, order = torch.empty_like(slots), torch.empty_like(slots)
        if len(old):
            slots[old], columns[old] = self.slots[places], self.columns[places]
            order[old] = places
        if len(new):
            fresh = self.cache.reserve([len(new)])
            slots[new], columns[new] = fresh.slots.flip(0), fresh.columns.flip(0)
            order[new] = len(self.slots) + torch.arange(len(new))
        draft = replace(draft, slots=slots, columns=columns)
        if len(new):
            self._feed(self._rows(draft, new))
        hidden = torch.cat(self.hidden)
        self._forget()
        return replace(draft, resume=Resume(layer=self.layer, hidden=hidden[order]))

    def _rows(self, draft: Draft, new: Tensor) -> Rows:
        assert draft.slots is not None and draft.columns is not None
        length = self.cache.lengths[0]
        sees = torch.zeros(len(new), self.cache.extents[0] - length, dtype=torch.bool)
        return Rows(
            tokens=draft.tokens[new],
            positions=length + draft.depths[new],
            slots=draft.slots[new],
            prefix=draft.alive[new] * length,
            sees=sees.index_copy_(1, draft.columns, draft.ancestors()[new]),
        )

    def _feed(self, rows: Rows, want: Tensor | None = None) -> Tensor | None:
        layers = (0, self.layer)
        out = self.target.forward(rows, self.cache, layers=layers, want=want)
        self.hidden.append(out.hidden)
        return out.logits


class Cascade(Drafter):
    """An inner loop decodes ahead; what it emits, corrections and bonuses included, is the draft.

    As in staged speculation (arXiv 2308.04623): exact, since each token comes with the inner
    target's law at it. A chain only.
    """

    traits = Traits(laws="drawn")

    def __init__(self, *, loop: Decoding, length: int, honest: bool = True) -> None:
        self.loop, self.length, self.honest = loop, length, honest

    def begin(self, context: Context, out: TargetOutput) -> None:
        self.context = context
        self.agreed = context.prompt_length  # tokens that both loops hold
        self.loop.begin(context.tokens[: self.agreed], sequence=context.sequence)

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        if frontier.depth == 0:
            self._run_ahead()
        if frontier.depth >= len(self.ahead):
            return []
        token, law = self.ahead[frontier.depth]
        if not self.honest:
            law = torch.full_like(law, 1 / law.shape[-1])
        drawn = torch.full((len(frontier), 1), token)
        return [Proposal(law=law.expand(len(frontier), -1), drawn=drawn, source="cascade")]

    def observe(self, record: StepRecord) -> None:
        self.agreed = record.length_before + len(record.path)

    def truncate(self, length: int) -> None:
        self.agreed = min(self.agreed, length)

    def _run_ahead(self) -> None:
        self.loop.truncate(self.agreed, self.context.tokens[self.agreed :])
        self.ahead: list[tuple[int, Tensor]] = []
        while len(self.ahead) < self.length:
            before = list(self.loop.context.tokens)
            record = self.loop.step()
            for row, token in zip([0, *record.path], record.tokens, strict=True):
                logits = record.out.logits[row : row + 1]
                law = self.loop.lane.sampling.law(torch.tensor([before]), logits)
                self.ahead.append((token, law))
                before.append(token)
