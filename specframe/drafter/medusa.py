"""Medusa: heads on the target's last state, each of which guesses one token further."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specframe.capture.capturable import CapturableDraft, Expand
from specframe.drafter.base import DRAFTERS, Drafter, Traits
from specframe.errors import ConfigError
from specframe.heads.choice import HeadChoice
from specframe.heads.embeddings import Table, target_head
from specframe.heads.fitting import check_width, listed_ids, placed
from specframe.heads.head_drafter import HeadDrafter
from specframe.heads.medusa_file import WEIGHTS, load_medusa
from specframe.heads.medusa_net import MedusaNet
from specframe.records import Context, StepRecord
from specframe.runtime.base import Runtime, Tensors
from specframe.target.base import Target
from specframe.types import Frontier, Needs, Proposal, TargetOutput

_TAP = "final_postnorm"


@DRAFTERS.register("medusa")
class Medusa(HeadDrafter, Drafter):
    """x <- x + SiLU(W x + b), n times, then logits U x: head i = 0 .. K - 1 on the state at t.

    The state that predicted the root is that of the last accepted row; head i guesses the token
    i + 1 after the root. A guess depends on its depth alone (marginals), so all nodes of a level
    get the same law, and beyond depth K there is no proposal. U is the head's own, else the
    target's. path: hub name, folder or file of heads, null for those that ship for the target.
    vocabulary: file of the token ids that the draft may propose (FR-Spec), null for all, auto for
    the file beside the heads.
    Lossless under every lossless rule. Needs: final-normed states of the committed rows.
    Draft forwards per step: one of the heads, all at once. Target forwards per step: 1.
    Papers: Medusa, arXiv 2401.10774; FR-Spec, arXiv 2502.14856.
    """

    word, weight_files = "medusa", WEIGHTS
    traits = Traits(needs=Needs(taps=(_TAP,)), laws="logits")

    def __init__(
        self, *, path: str | None, vocabulary: str | None, target: Target, runtime: Runtime
    ) -> None:
        chosen = HeadChoice.of(self.word, path, vocabulary, target.name)
        net = load_medusa(chosen.path)
        self._adopt(net, target=target, runtime=runtime, vocabulary=chosen.vocabulary)

    def _adopt(
        self, net: MedusaNet, *, target: Target, runtime: Runtime, vocabulary: str | None = None
    ) -> None:
        check_width(net, target)
        self.net = placed(net, target)
        self._device, self._dtype, self._launch = target.device, target.dtype, runtime.launch
        self._head, self._ids = _head(self.net, target, vocabulary, runtime)
        tables = [self.net.table(head) for head in range(len(self.net))]
        runtime.weights.pack_head(self.net, tables=tables)
        self._states: list[Tensor] = []  # [R, H] of all committed rows, in the pieces they came in
        self._logits: Tensor | None = None  # [K, Vd] of this step

    def begin(self, context: Context, out: TargetOutput) -> None:
        self._states = [self._own(out.taps[_TAP].clone())]
        self._logits = None

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        if frontier.depth == 0:
            self._logits = self._look_ahead()
        if self._logits is None:
            return []
        return self._offer(self._logits, frontier)

    def capturable(self, max_expanded: int) -> CapturableDraft | None:
        if not self._states:
            return None

        def source(inputs: Tensors, buffers: Tensors) -> Expand:
            logits = self._forward(inputs[0])
            return lambda frontier: self._offer(logits, frontier)

        state = self._states[-1][-1:]
        return CapturableDraft(inputs=(state,), buffers=(), key=self, source=source)

    def _offer(self, logits: Tensor, frontier: Frontier) -> Sequence[Proposal]:
        """The children that logits [K, Vd] give a frontier."""
        if frontier.depth >= len(logits):
            return []
        own = logits[frontier.depth].expand(len(frontier), -1)
        return [Proposal(logits=own, ids=self._ids, source="medusa")]

    def observe(self, record: StepRecord) -> None:
        states = record.out.taps[_TAP]
        rows = torch.tensor([0, *record.path], device=states.device)
        self._states.append(self._own(states.index_select(0, rows)))
        self._logits = None

    def truncate(self, length: int) -> None:
        excess = sum(map(len, self._states)) - max(length - 1, 0)  # the root has no state yet
        while excess > 0:
            last = self._states.pop()
            if len(last) > excess:
                self._states.append(last[:-excess])
            excess -= len(last)
        self._logits = None

    def _own(self, states: Tensor) -> Tensor:
        return states.to(device=self._device, dtype=self._dtype)

    def _look_ahead(self) -> Tensor | None:
        """[K, Vd] of every head; None where the context went back to its first token."""
        if not self._states:
            return None

        def run(inputs: Tensors, buffers: Tensors) -> Tensors:
            return (self._forward(inputs[0]),)

        return self._launch.wrap(run, (self, "heads"))((self._states[-1][-1:],), ())[0]

    def _forward(self, state: Tensor) -> Tensor:
        return self._head(self.net(state)[:, 0])


@torch.no_grad()
def _head(
    net: MedusaNet, target: Target, vocabulary: str | None, runtime: Runtime
) -> tuple[Table, Tensor | None]:
    """(states [K, H] -> logits [K, Vd], the target ids of the columns, None for all in order)."""
    ids = _known(net, target)
    listed = listed_ids(vocabulary, target)
    if listed is not None:
        ids = ids[torch.isin(ids, listed)]
        if not len(ids):
            raise ConfigError(
                f"drafter.vocabulary={vocabulary}: the heads know none of these tokens"
            )
    whole = torch.equal(ids, torch.arange(target.vocab_size, device=ids.device))
    named = None if whole else ids
    if not net.options.rows:
        return target_head(target, named, runtime), named
    weights = [net.output(head) for head in range(len(net))]  # [rows, H] each
    rows = _rows(net, ids)
    if rows is not None:
        weights = [weight[rows] for weight in weights]

    tables = [runtime.weights.pack_table(weight) for weight in weights]

    def head(states: Tensor) -> Tensor:
        return torch.stack([table(one) for one, table in zip(states, tables, strict=True)])

    return head, named


def _known(net: MedusaNet, target: Target) -> Tensor:
    """[Vd] target ids that the heads can give. Raises ConfigError if their rows mean others."""
    rows, vocab = net.options.rows, target.vocab_size
    if net.token_map is not None:
        ids = net.token_map.long()
        kept = ids[ids < vocab]
    else:
        if 0 < rows < vocab:
            raise ConfigError(
                f"drafter.path: the heads have {rows} rows and no token_map that maps them to the "
                f"{vocab} tokens of {target.name}; use heads of this target"
            )
        kept = torch.arange(vocab, device=target.device)
    if not len(kept):
        raise ConfigError(f"drafter.path: token_map names no token of {target.name}")
    return kept


def _rows(net: MedusaNet, ids: Tensor) -> Tensor | None:
    """[Vd] rows of the output matrices that stand for target ids [Vd]; None: all, in order."""
    rows = ids
    named = net.token_map
    if named is not None and len(named) == net.options.rows:
        row_of = torch.zeros(int(named.max()) + 1, dtype=torch.long, device=ids.device)
        row_of[named.long()] = torch.arange(len(named), device=ids.device)
        rows = row_of[ids]
    same = torch.equal(rows, torch.arange(net.options.rows, device=rows.device))
    return None if same else rows
