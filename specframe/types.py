"""The records that travel between the axes, and the letters of every shape.

Shape letters, used in comments throughout the package:

    N  rows of a draft, the root included      F  nodes of a frontier
    A  auxiliary rows                          R  rows of a forward pass (N + A, or a prompt)
    D  longest drafted path                    K  children proposed per node
    V  vocabulary of the target                Vd vocabulary of a proposal's source
    H  hidden size                             T  tokens of the context, the root included
    S  slots of a cache that a pass may see    M  nodes asked of a law

A *node* has an id, stable within one step; a *row* is its place in the verify pass; a *slot* is
where its keys lie. Node 0 is the root: the last emitted token, not yet in the target's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

How = Literal["place", "iid", "wor", "coupled"]


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a drafter asks of its target; checked before any weight is loaded where it can be.

    taps: hidden states by name, handed over for every committed row and the whole prompt.
    aux_rows: the most auxiliary rows a verify pass will carry for it (they count in the budget).
    """

    taps: tuple[str, ...] = ()
    aux_rows: int = 0
    tokenizer: bool = False
    partial_layers: bool = False
    own_cache: bool = False


@dataclass(frozen=True, kw_only=True)
class Gives:
    """What a target can do. `max_positions` is the longest context, None for no limit."""

    taps: frozenset[str] = frozenset()
    tree_masks: bool = True
    partial_layers: bool = False
    rollback: Literal["truncate", "none"] = "truncate"
    max_positions: int | None = None


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of one draft. rows: root included, auxiliary rows already taken off; depth: levels."""

    rows: int
    depth: int


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Input of one target pass. Exactly one of `tokens` and `hidden` is given.

    visible[r, s]: may row r see slot s (its own slot included). positions are absolute.
    causal: the host knows that the rows are all there is, in order, each seeing those before it.
    """

    positions: Tensor  # [R] int64
    slots: Tensor  # [R] int64
    visible: Tensor  # [R, S] bool
    tokens: Tensor | None = None  # [R] int64
    hidden: Tensor | None = None  # [R, H]
    causal: bool = False


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What one source offers under each node of a frontier: raw logits, or candidates.

    logits [F, Vd] raw scores, `ids [Vd]` maps the source's vocabulary to the target's (None: same).
    candidates [F, K] target ids (-1: none), best first; scores [F, K] log-weights that a tree adds
    along a path (None: rank decides). Candidates carry no law and can only be placed.
    law [F, Vd] with drawn [F, K] (indices into Vd): a source that has already drawn from a
    processed law by itself, as an inner engine does.
    """

    logits: Tensor | None = None
    ids: Tensor | None = None
    candidates: Tensor | None = None
    scores: Tensor | None = None
    law: Tensor | None = None
    drawn: Tensor | None = None
    source: str = ""

    @property
    def width(self) -> int:
        """Most children a node can get from this proposal."""
        for tensor in (self.candidates, self.drawn, self.logits):
            if tensor is not None:
                return tensor.shape[-1]
        return 0


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """Nodes of one depth that may get children, in the order a proposal must follow."""

    nodes: Tensor  # [F] node ids
    tokens: Tensor  # [F]
    parents: Tensor  # [F] node ids, root -1
    alive: Tensor  # [F] bool
    scores: Tensor  # [F] sum of log-weights from the root
    paths: Tensor  # [F, depth] drafted tokens from the root's child down to the node
    depth: int

    def __len__(self) -> int:
        return self.nodes.shape[0]

    @classmethod
    def joined(cls, parts: Sequence[Frontier]) -> Frontier:
        """Several frontiers of one depth as one, in their order."""
        if len(parts) == 1:
            return parts[0]
        names = ("nodes", "tokens", "parents", "alive", "scores", "paths")
        fields = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        return cls(depth=parts[0].depth, **fields)

    def select(self, index: Tensor) -> Frontier:
        """The nodes at places `index [F']` of this frontier."""
        return Frontier(
            nodes=self.nodes[index],
            tokens=self.tokens[index],
            parents=self.parents[index],
            alive=self.alive[index],
            scores=self.scores[index],
            paths=self.paths[index],
            depth=self.depth,
        )


@dataclass(frozen=True, kw_only=True)
class DrawCall:
    """Draws (or placements) made together, in draw order along K, under nodes of one depth.

    Several records may meet in one node (an i.i.d. draw that repeats a sibling); both stay.
    """

    depth: int
    how: How
    parents: Tensor  # [F] node ids
    nodes: Tensor  # [F, K] node id that each record met
    tokens: Tensor  # [F, K] target ids, -1 for none
    indices: Tensor | None = None  # [F, K] the same in the source's vocabulary
    law: Tensor | None = None  # [F, Vd] the law before any draw here; None: one-hot
    ids: Tensor | None = None  # [Vd]
    scores: Tensor | None = None  # [F, K] log-weights of placed ones, where the source gave any
    wanted: Tensor | None = None  # [F, K] bool: places that the tree did not leave out; None: all
    source: str = ""
    width: int = 0  # children that the source offered a node


@dataclass(frozen=True, kw_only=True)
class AuxRows:
    """Extra rows of a verify pass that are no part of the tree: tree rows never see them.

    sees [A, N + A]: which rows of this pass each one sees (all see the committed prefix).
    """

    tokens: Tensor  # [A] int64
    positions: Tensor  # [A] int64, absolute
    sees: Tensor  # [A, N + A] bool


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Layers below `layer` are already done for all rows of the draft (and their keys written)."""

    layer: int
    hidden: Tensor  # [N, H] residual stream entering `layer`


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A tree to verify, parents before children, row 0 the root. `depth` is a host integer.

    synthetic: whoever drafted it was told the text; every figure made of it says so.
    calls: how all its nodes came, placements too, for those who explain a draft.
    """

    tokens: Tensor  # [N] int64
    parents: Tensor  # [N] rows, root -1
    alive: Tensor  # [N] bool; a dead row sees only itself and is seen by none
    depths: Tensor  # [N] int64, root 0
    origin: Tensor  # [N] node ids, -1 for padding
    row_of: Tensor  # [nodes made] row of each node id, -1 where it was pruned
    depth: int
    chain: bool
    slots: Tensor | None = None  # [N] where keys lie or will lie; None: the cache reserves
    in_order: bool = False  # the host knows that slots follow the rows, from the cache's length on
    draws: tuple[DrawCall, ...] | None = None  # None: every child was placed
    calls: tuple[DrawCall, ...] = ()
    aux: AuxRows | None = None
    resume: Resume | None = None
    synthetic: bool = False

    @property
    def num_rows(self) -> int:
        """N, dead rows included."""
        return self.tokens.shape[0]

    def ancestors(self) -> Tensor:
        """[N, N] bool: row j is row i or above it. Dead rows have only themselves."""
        rows = torch.arange(self.num_rows, device=self.tokens.device)
        seen = rows[:, None] == rows
        above = self.parents
        for _ in range(self.depth):
            seen = seen | (above[:, None] == rows)
            above = torch.where(above >= 0, self.parents[above.clamp_min(0)], above)
        return seen

    def path_tokens(self, nodes: Tensor, depth: int) -> Tensor:
        """[M, depth] tokens from the root's child down to each of nodes [M], all `depth` deep."""
        steps = []
        for _ in range(depth):
            steps.append(self.tokens[nodes])
            nodes = self.parents[nodes].clamp_min(0)
        if not steps:
            return self.tokens.new_empty((nodes.shape[0], 0))
        return torch.stack(steps[::-1], dim=1)


@dataclass(frozen=True, kw_only=True)
class TargetOutput:
    """logits [N, V] of root and tree rows (of the last prompt row after prefill, [1, V]).

    aux_logits [A, V]; taps: name -> [R, H] for all rows of the pass (tree rows first).
    """

    logits: Tensor
    aux_logits: Tensor | None = None
    taps: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Fixed-size device tensors until the step's one read: path [D], tokens [D + 1], padded -1.

    count: [] number of tokens; accepted rows are count - 1. `tokens` are the accepted ones plus
    exactly one that is recovered (the walk ended above a leaf) or bonus (it ended on a leaf).
    """

    path: Tensor
    tokens: Tensor
    count: Tensor
