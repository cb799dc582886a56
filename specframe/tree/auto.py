"""The tree of most expected speed, by measured costs and calibrated acceptance; it may be none."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from specframe.drafting.builder import TreeBuilder
from specframe.drafting.placing import place_trie
from specframe.drafting.rank_tree import grow_ranks
from specframe.lookup.foresight import Prospect, prospects_of
from specframe.lookup.trie import Trie
from specframe.planning.cost_table import CostTable
from specframe.planning.lookup_chances import LookupChances, likeliest_paths
from specframe.planning.rank_learner import RankLearner
from specframe.planning.rank_paths import RankPath
from specframe.planning.source_explanation import explain_sources
from specframe.planning.tree_speed import TreeChoice, TreeSpeeds
from specframe.records import Context, StepRecord
from specframe.registry import Range
from specframe.tree.base import TREES, Depth, MaxNodes, ProposalKind, Source, TreePolicy
from specframe.types import Budget

Share = Annotated[float, Range(0, 1)]
_BLOCK = 128  # tokens of context that are planned for together
_ANEW = 8  # drafts of a network after which its tree is planned anew


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A tree that a source could have this step: rank paths of a network, tokens of a look-up."""

    prospect: Prospect
    paths: Sequence[tuple[int, ...]]
    speed: float


@dataclass(kw_only=True)
class _Sequence:
    """What is known of one sequence. plans: (source, context block, budget, aux rows) -> choice.
    num_fed, fed_tokens: passes that had auxiliary rows, and what they emitted."""

    context: Context | None
    chances: LookupChances
    ranks: RankLearner
    plans: dict[tuple[str, int, Budget, int], TreeChoice] = field(default_factory=dict)
    num_fed: int = 0
    fed_tokens: int = 0
    prospects: Sequence[Prospect] = ()  # of the step at hand
    drafting: tuple[str, list[RankPath]] | None = None  # the network that drafts it, its rows


@TREES.register("auto")
class AutoTree(TreePolicy):
    """Drafts with the source and the tree that give most tokens a millisecond; where none beats a
    pass of one row, nothing: `expand` is not called.

    Equation: speed = (1 + sum over nodes of the chance that their path is right) / (ms of a step of
    so many rows + ms of the draft's levels). Costs are those of the table that build.py supplies.
    For a network, chances are the calibrated shares by depth and rank, corrected by the text, and
    the tree is the best of every size and depth: Sequoia's (arXiv 2402.12374) where children are
    drawn, else the paths of most worth. For a look-up the tree is new at every step: nodes are
    taken by their chance (`tree.chances`) while they gain more than they cost, as DSpark's budget
    (arXiv 2607.05147). Of several sources (drafter=router) the fastest drafts the step alone.
    Decides before any draw, by emitted tokens and steps that are over, so it is exact with every
    rule. What it learns is forgotten with the sequence. Draft calls per step: the tree's depth.
    costs: a file of task=profile, null for this machine's own. chances: of a token after 1, 2, ...
    matched ones. margin: share of plain speed that a draft must be expected to gain. weight:
    expected tokens that a prior counts as. aux_tokens: tokens a pass that auxiliary rows are taken
    to bring, until the text shows it; where they do not pay, none are run.
    """

    def __init__(
        self,
        *,
        depth: Depth,
        max_nodes: MaxNodes,
        proposal: ProposalKind,
        costs: CostTable,
        chances: list[Share],
        margin: Annotated[float, Range(0, None)],
        weight: Annotated[float, Range(0, None, low_open=True)],
        aux_tokens: Annotated[float, Range(1, None)],
    ) -> None:
        if not chances:
            raise ValueError("tree.chances is empty; give at least one share, such as [0.5]")
        super().__init__(depth=depth, max_nodes=max_nodes, proposal=proposal)
        self.costs = costs
        self.chances = chances
        self.margin = margin
        self.weight = weight
        self.aux_tokens = aux_tokens
        self._closed = proposal not in ("auto", "place")
        self._now = self._fresh(None)

    @property
    def explanation(self) -> str:
        """Why it drafts as it does, in words."""
        room = Budget(rows=self.max_nodes, depth=self.depth)
        chances = LookupChances(self.chances, weight=self.weight)
        said = explain_sources(
            self.costs, chances, room=room, closed=self._closed, margin=self.margin
        )
        return f"tree=auto: {said}"

    def with_costs(self, costs: CostTable) -> AutoTree:
        """The same policy with another table of costs."""
        made = copy.copy(self)
        made.costs = costs
        made._now = made._fresh(None)
        return made

    def begin(self, context: Context) -> None:
        self._now = self._fresh(context)

    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        now = self._now
        now.prospects, now.drafting = prospects_of(source), None
        aux_rows = self._fed_rows()
        if not aux_rows:
            builder.leave_out_aux()
        room = Budget(rows=min(self.max_nodes, budget.rows), depth=min(self.depth, budget.depth))
        if room.rows < 2 or room.depth < 1:
            return
        best, speed = None, (1 + self.margin) / self._step_ms(1 + aux_rows)
        for prospect in now.prospects:
            offer = self._offer(prospect, room, aux_rows)
            if offer.paths and offer.speed > speed:
                best, speed = offer, offer.speed
        if best is None:
            return
        if best.prospect.known is not None:
            trie = Trie(max_nodes=len(best.paths))
            for path in best.paths:
                trie.add(path)
            place_trie(builder, trie)
        else:
            rows = grow_ranks(builder, best.prospect.expand, best.paths)
            now.drafting = (best.prospect.source, rows)

    def observe(self, record: StepRecord) -> None:
        now = self._now
        for prospect in now.prospects:
            now.chances.learn(prospect, record.tokens)
        if record.draft.aux is not None:
            now.num_fed += 1
            now.fed_tokens += len(record.tokens)
        if now.drafting is not None:
            source, rows = now.drafting
            now.ranks.learn(source, rows, record)
            if now.ranks.num_drafts(source) % _ANEW == 0:
                now.plans.clear()
        now.prospects, now.drafting = (), None

    def _offer(self, prospect: Prospect, room: Budget, aux_rows: int) -> Offer:
        if prospect.known is not None:
            return self._looked_up(prospect, room, aux_rows)
        choice = self._planned(prospect.source, room, aux_rows)
        return Offer(prospect=prospect, paths=choice.paths, speed=choice.speed)

    def _looked_up(self, prospect: Prospect, room: Budget, aux_rows: int) -> Offer:
        """The nodes of most chance, as many as are fastest."""
        paths: list[tuple[int, ...]] = []
        tokens, best, speed = 1.0, 0, 0.0
        for node in likeliest_paths(prospect, self._now.chances, depth=room.depth):
            if len(paths) == room.rows - 1:
                break
            paths.append(node.path)
            tokens += node.chance
            ahead = tokens / self._step_ms(1 + len(paths) + aux_rows)
            if ahead > speed:
                best, speed = len(paths), ahead
        return Offer(prospect=prospect, paths=paths[:best], speed=speed)

    def _planned(self, source: str, room: Budget, aux_rows: int) -> TreeChoice:
        """The fastest tree of a network, kept until it has learnt more."""
        now = self._now
        block = self._length() // _BLOCK
        key = (source, block, room, aux_rows)
        if key not in now.plans:
            speeds = TreeSpeeds(
                costs=self.costs,
                source=source,
                right=now.ranks.table(source),
                context=block * _BLOCK + _BLOCK // 2,
                closed=self._closed,
                aux_rows=aux_rows,
            )
            now.plans[key] = speeds.fastest(rows=room.rows, depth=room.depth)
        return now.plans[key]

    def _fed_rows(self) -> int:
        """Auxiliary rows of this pass: all, or none where so few tokens a pass do not pay."""
        now = self._now
        rows = sum(prospect.aux_rows for prospect in now.prospects)
        tokens = (self.weight * self.aux_tokens + now.fed_tokens) / (self.weight + now.num_fed)
        pays = rows and tokens / self._step_ms(1 + rows) > 1 / self._step_ms(1)
        return rows if pays else 0

    def _step_ms(self, rows: int) -> float:
        return self.costs.step_ms(rows, self._length()) + self.costs.lookup_ms

    def _length(self) -> int:
        return 0 if self._now.context is None else len(self._now.context)

    def _fresh(self, context: Context | None) -> _Sequence:
        return _Sequence(
            context=context,
            chances=LookupChances(self.chances, weight=self.weight),
            ranks=RankLearner(self.costs.right, weight=self.weight),
        )
