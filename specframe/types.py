"""The records that travel between the axes, the letters of every shape, and the glossary.

Shape letters, used in comments throughout the package:

    N  rows of a draft, the root included      F  nodes of a frontier
    A  auxiliary rows                          R  rows of a forward pass (N + A, or a prompt)
    D  longest drafted path                    K  children proposed per node
    V  vocabulary of the target                Vd vocabulary of a proposal's source
    H  hidden size                             T  tokens of the context, the root included
    S  slots of a cache that a pass may see    M  nodes asked of a law
    B  lanes: sequences decoded together       E  fresh columns of a lane
    L  layers of the target

Glossary: one term a thing, in the code, the messages and the READMEs.

    target      the model whose text is wanted          drafter   proposes what might come next
    head        a trained draft network                 source    what one proposal comes from
    draft       the tree of one step                    root      node 0: the last emitted token
    node        its id is stable within a step          row       its place in a pass
    column      a place in a lane's text                slot      a cache's own handle of memory
    lane        one sequence under way                  frontier  nodes that may get children
    proposal    children offered under a frontier       budget    rows and depth of a draft
    placed      a child put there without chance        drawn     a child drawn from a law
    law         processed probabilities                 draw      one record of chance or placement
    dead row    padding: seen by none, sees itself      aux row   rides in the pass, not in the tree
    tap         hidden states by name                   prefill   the pass over a prompt
    verify pass the target's pass over a draft          verdict   what the rule says of it
    path        the accepted rows                       commit    keep the keys of root and path
    accepted    a drafted token that is emitted         rejected  one that is not
    recovered   emitted in place of a rejected one      bonus     emitted after a whole path
    step        draft, verify, accept, commit           emit      append a token to the text
    context     prompt and emitted tokens               record    everything of one step
    launch      how a function of tensors is run        weights   what multiplies
    runtime     one launch and one weights              capture   make a graph of a function
    bucket      row count that passes are padded to     host read a wait for the device
    axis        one decision, such as `tree`            word      its choice, such as `dynamic`
    component   what a word becomes                     preset    an option of another component
    engine      components in use                       decoding  the loop over one sequence
    exhausted   a law that processors left no token in; an answer ends there
    side        one method of a benchmark               peer      another engine beside ours
    point       one run of a sweep                      trace     what is kept of the steps
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

How = Literal["place", "iid", "wor", "coupled"]
Tensors = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a drafter asks of its target; checked before any weight is loaded where it can be."""

    taps: tuple[str, ...] = ()  # hidden states of every committed row and of the whole prompt
    aux_rows: int = 0  # most auxiliary rows of a verify pass; they count in the budget
    tokenizer: bool = False
    partial_layers: bool = False
    own_cache: bool = False


@dataclass(frozen=True, kw_only=True)
class Gives:
    """What a target can do."""

    taps: frozenset[str] = frozenset()
    tree_masks: bool = True
    partial_layers: bool = False
    rollback: Literal["truncate", "none"] = "truncate"
    max_positions: int | None = None  # longest context; None: no limit


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of one draft."""

    rows: int  # root included, auxiliary rows already taken off
    depth: int  # levels below the root


@dataclass(frozen=True, kw_only=True)
class Fresh:
    """What `CacheManager.reserve` gives for the rows of a pass."""

    slots: Tensor  # [R] int64, handles that only the cache reads
    columns: Tensor  # [R] int64, places in the lane, counted from its committed length
    extent: int  # E: fresh columns of the lane, these included


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Input of one target pass. Exactly one of `tokens` and `hidden` is given.

    Row r sees the first prefix[r] committed columns of its lane and the fresh columns e with
    sees[r, e], its own among them. Nobody outside of a cache makes a mask over slots.
    """

    positions: Tensor  # [R] int64, absolute
    slots: Tensor  # [R] int64, as `reserve` gave them
    prefix: Tensor  # [R] int64; 0 for a dead row
    sees: Tensor | None = None  # [R, E] bool; None: each row sees itself and the rows before it
    tokens: Tensor | None = None  # [R] int64
    hidden: Tensor | None = None  # [R, H]
    lanes: tuple[int, ...] = (0,)  # the lanes of the pass, whose rows lie one behind the other
    sizes: tuple[int, ...] = ()  # rows of each of these lanes; (): all are of the only one
    parents: Tensor | None = None  # [R] the row that a recurrence goes on from; -1: the cache


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
        joined: dict[str, Any] = {
            name: torch.cat([getattr(part, name) for part in parts]) for name in _BY_NODE
        }
        return replace(parts[0], **joined)

    def select(self, index: Tensor) -> Frontier:
        """The nodes at places `index [F']` of this frontier."""
        chosen: dict[str, Any] = {name: getattr(self, name)[index] for name in _BY_NODE}
        return replace(self, **chosen)


_BY_NODE = ("nodes", "tokens", "parents", "alive", "scores", "paths")  # tensors of a frontier


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
    """Extra rows of a verify pass that are no part of the tree: tree rows never see them."""

    tokens: Tensor  # [A] int64
    positions: Tensor  # [A] int64, absolute
    sees: Tensor  # [A, N + A] bool: rows of this pass; all see the committed prefix


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Layers below `layer` are already done for all rows of the draft (and their keys written)."""

    layer: int
    hidden: Tensor  # [N, H] residual stream entering `layer`


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A tree to verify, parents before children, row 0 the root."""

    tokens: Tensor  # [N] int64
    parents: Tensor  # [N] rows, root -1
    alive: Tensor  # [N] bool; a dead row sees only itself and is seen by none
    depths: Tensor  # [N] int64, root 0
    origin: Tensor  # [N] node ids, -1 for padding
    row_of: Tensor  # [nodes made] row of each node id, -1 where it was pruned
    depth: int  # of the deepest row, a host integer
    chain: bool
    slots: Tensor | None = None  # [N] where keys lie or will lie; None: the loop reserves
    columns: Tensor | None = None  # [N] fresh columns of the slots
    in_order: bool = False  # the host knows that row i has fresh column i
    seen: Tensor | None = None  # [N, N] what `ancestors` says, where it is known already
    draws: tuple[DrawCall, ...] | None = None  # None: every child was placed
    calls: tuple[DrawCall, ...] = ()  # how every node came, for those who explain a draft
    aux: AuxRows | None = None
    resume: Resume | None = None
    takes_aux: bool = True  # it goes with the auxiliary rows of its drafter, if there are any
    synthetic: bool = False  # its drafter knew the text, so its figures are of no method

    @property
    def num_rows(self) -> int:
        """N, dead rows included."""
        return self.tokens.shape[0]

    def ancestors(self) -> Tensor:
        """[N, N] bool: row j is row i or above it. Dead rows have only themselves."""
        if self.seen is not None:
            return self.seen
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
    """What a pass of the target gives."""

    logits: Tensor  # [N, V] of root and tree rows; after prefill [1, V] of the last prompt row
    aux_logits: Tensor | None = None  # [A, V]
    taps: dict[str, Tensor] = field(default_factory=dict)  # name -> [R, H], tree rows first


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What an acceptance rule decided: fixed-size device tensors until the step's one host read.

    `tokens` are the accepted ones plus exactly one, which is recovered (the walk ended above a
    leaf) or bonus (it ended on a leaf).
    """

    path: Tensor  # [B, D] accepted rows, the root excluded, padded with -1
    tokens: Tensor  # [B, D + 1] emitted tokens, padded with -1
    count: Tensor  # [B] number of tokens; one more than the accepted rows
