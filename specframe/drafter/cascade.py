"""A draft that is itself decoded speculatively, by a loop of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from specframe.drafter.base import DRAFTERS, Drafter, Traits
from specframe.drafting.vocabulary import check_vocabulary
from specframe.errors import IncompatibleComponents
from specframe.records import Context, InnerLoop, StepRecord
from specframe.registry import Range
from specframe.target.base import Target
from specframe.types import Frontier, Needs, Proposal, TargetOutput


@DRAFTERS.register("cascade")
class Cascade(Drafter):
    """An inner engine decodes `length` tokens ahead; they are the draft, one child a node.

    Corrections and bonus tokens of the inner engine are handed over like accepted ones: leaving
    them out would bias the draft. With a lossless inner rule each token is a draw from the inner
    target's processed law at it, q(.|path) = p'(.|path), so it is lossless under every lossless
    rule; a lossy inner rule leaves no law, and only accept=match and the like remain. Inner noise
    is independent of the run's. Going back is the inner loop's `truncate`, which costs one pass of
    the inner target to feed the token that differed.
    model: the inner target; inner: words of its drafter, tree and rule, with their keys under each
    word (drafter.ngram.n_max). Needs: a cache of its own. Target forwards per step: 1; inner ones:
    as many as its engine needs for `length` tokens.
    Papers: staged speculation, arXiv 2308.04623; CS Drafting, arXiv 2312.11462; TriForce,
    arXiv 2404.11912.
    """

    traits = Traits(
        needs=Needs(own_cache=True),
        laws="drawn",
        learns="from where the passes have ended, since its inner loop goes on there",
    )
    why_no_laws: ClassVar[str] = "its inner rule is lossy, so the law of its tokens is not known"
    inner_reads: ClassVar[int] = 0  # host reads of an inner step beyond its own one

    @classmethod
    def composed(cls, members: Mapping[str, Sequence[Any]]) -> type[Drafter]:
        return _over(cls, *(tuple(members.get(axis, ())) for axis in ("drafter", "tree", "accept")))

    def __init__(
        self,
        *,
        inner: InnerLoop,
        model: Target,
        target: Target,
        length: Annotated[int, Range(1, 64)],
    ) -> None:
        check_vocabulary(model, target, way_out="")
        if model.vocab_size != target.vocab_size:
            raise IncompatibleComponents(
                f"drafter.model={model.name} has {model.vocab_size} tokens, {target.name} has "
                f"{target.vocab_size}, and an inner engine cannot leave any out; use drafter=lm"
            )
        self.inner = inner
        self.model = model
        self.length = length
        self.traits = replace(
            self.traits,
            max_positions=model.gives.max_positions,
            # An inner step emits at least one token; the first call also begins the inner text.
            host_reads=length * (1 + self.inner_reads),
        )

    def begin(self, context: Context, out: TargetOutput) -> None:
        self._context = context
        self._held: list[int] = []  # the inner context; [] before it began
        self._agreed = 0  # tokens at its start that are the context's, as far as compared
        self._laws: list[Tensor] = []  # [1, V] of the last tokens of `_held`
        self._ahead = torch.empty(0, dtype=torch.long)  # [A] tokens drafted in this step

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        if frontier.depth == 0:
            self._run_ahead()
            ahead = self._held[len(self._context) :][: self.length]
            self._ahead = torch.tensor(ahead, dtype=torch.long, device=frontier.tokens.device)
        depth = frontier.depth
        if depth >= len(self._ahead):
            return []
        # Under a node of another source the inner engine has said nothing.
        own = (frontier.paths == self._ahead[:depth]).all(1)
        tokens = torch.where(own, self._ahead[depth], -1)[:, None]  # [F, 1]
        if self.traits.laws != "drawn":
            return [Proposal(candidates=tokens, source="cascade")]
        law = self._laws[depth].to(tokens.device).expand(len(frontier), -1)
        return [Proposal(law=law, drawn=tokens, source="cascade")]

    def truncate(self, length: int) -> None:
        self._agreed = min(self._agreed, length)

    def _run_ahead(self) -> None:
        """The inner engine holds the context and `length` tokens more, as far as it has room."""
        context = self._context.tokens
        if not self._held:
            self._begin_inner(self._context.prompt_length)
        self._compare()
        if len(context) > len(self._held) + self.inner.room():
            self._begin_inner(len(context) - 1)  # the run outgrew it; it starts afresh here
            self._compare()
        if self._agreed < len(context):
            self.inner.truncate(self._agreed, context[self._agreed :])
            self._held, self._agreed, self._laws = list(context), len(context), []
        # Tokens that it was right about are no draft any more.
        num_ahead = len(self._held) - len(context)
        self._laws = self._laws[len(self._laws) - num_ahead :]
        while len(self._laws) < self.length and self.inner.room() > 0:
            self._take(self.inner.step())

    def _begin_inner(self, prompt_length: int) -> None:
        prompt = self._context.tokens[:prompt_length]
        self._held = prompt + self.inner.begin(prompt, sequence=self._context.sequence)
        self._agreed, self._laws = prompt_length, []

    def _compare(self) -> None:
        context = self._context.tokens
        for ours, theirs in zip(self._held[self._agreed :], context[self._agreed :], strict=False):
            if ours != theirs:
                return
            self._agreed += 1

    def _take(self, record: StepRecord) -> None:
        rows = [0, *record.path]  # one more than tokens where processors ban every token
        for depth, (row, token) in enumerate(zip(rows, record.tokens, strict=False)):
            node = torch.tensor([row], device=record.draft.tokens.device)
            self._held.append(token)
            self._laws.append(record.laws.at(node, depth))


@cache
def _over(
    cls: type[Drafter],
    drafters: tuple[type[Drafter], ...],
    trees: tuple[Any, ...],
    rules: tuple[Any, ...],
) -> type[Drafter]:
    """The class over this inner engine; the same words give the same class."""
    exact = all(rule.lossless for rule in rules)
    traits = replace(
        cls.traits,
        laws="drawn" if exact else "none",
        synthetic=any(drafter.traits.synthetic for drafter in drafters),
    )
    reads = [drafter.traits.host_reads for drafter in drafters]
    reads += [tree.host_reads for tree in trees]
    facts = {"traits": traits, "inner_reads": sum(reads)}
    return type(cls.__name__, (cls,), {**facts, "__doc__": cls.__doc__, "__module__": __name__})
