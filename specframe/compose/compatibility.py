"""Which words go together: one table of refusals, checked before any weight is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specframe.accept.base import AcceptRule
from specframe.cache.base import CacheManager
from specframe.compose.axes import BoundOption
from specframe.drafter.base import Drafter, Traits
from specframe.errors import IncompatibleComponents
from specframe.target.base import Target
from specframe.task.base import Task
from specframe.trace.base import Trace
from specframe.tree.base import ProposalKind, TreePolicy
from specframe.types import How


@dataclass(frozen=True, kw_only=True)
class Classes:
    """The classes of one composition, with the words that chose them (axis -> word)."""

    target: type[Target]
    drafter: type[Drafter]
    tree: type[TreePolicy]
    accept: type[AcceptRule]
    cache: type[CacheManager]
    words: dict[str, str]

    @classmethod
    def of(cls, bound: Mapping[str, BoundOption]) -> Classes:
        """Those of the options that were bound for a configuration, by axis."""
        return cls(
            **{axis: bound[axis].cls for axis in ("target", "drafter", "tree", "accept", "cache")},
            words={axis: option.word for axis, option in bound.items()},
        )

    def word(self, axis: str) -> str:
        """`axis=word`, as the user wrote it."""
        return f"{axis}={self.words[axis]}"


def resolve_proposal(proposal: ProposalKind, classes: Classes, *, greedy: bool) -> How:
    """How nodes are made from logits: `tree.proposal`, and for auto what rule and tree allow."""
    if proposal != "auto":
        return proposal
    has_laws = classes.drafter.traits.laws != "none"
    drawn = has_laws and classes.tree.decides_before_draw and not greedy
    return classes.accept.preferred if drawn else "place"


def check_trace(task: type[Task], trace: type[Trace], word: str) -> None:
    """Raises IncompatibleComponents for a trace, which takes time, in a task that measures time."""
    if not (trace.off or task.can_trace):
        raise IncompatibleComponents(
            f"trace={word}: this task keeps no steps, so that it slows down nothing that is "
            "measured; use task=generate with the same words"
        )


def check_batch(task: type[Task], trace: type[Trace], batch_size: int, *, task_word: str) -> None:
    """Raises IncompatibleComponents where answers are decoded one at a time."""
    if batch_size > 1 and not task.can_batch:
        raise IncompatibleComponents(
            f"batch_size={batch_size}: task={task_word} decodes one answer at a time; "
            "use task=generate or task=certify, or batch_size=1"
        )
    if batch_size > 1 and not trace.off:
        raise IncompatibleComponents(
            f"batch_size={batch_size}: a trace records one answer at a time; use trace=none, or "
            "batch_size=1"
        )


def check(classes: Classes, *, how: How, require_lossless: bool) -> None:
    """Check that the classes fit each other, as far as that can be said without weights.

    how: how nodes are made. Raises IncompatibleComponents with a sentence that says why they do
    not fit, and what to use instead.
    """
    for refuse in (_rule, _draws, _tree, _needs):
        reason = refuse(classes, how)
        if reason:
            raise IncompatibleComponents(reason)
    if require_lossless and not classes.accept.lossless:
        raise IncompatibleComponents(
            f"{classes.word('accept')} changes the target's distribution and require_lossless=true "
            "forbids that; use accept=match or accept=rejection"
        )


def _rule(classes: Classes, how: How) -> str | None:
    if classes.accept.preferred != "place" and classes.drafter.traits.laws == "none":
        reason = getattr(classes.drafter, "why_no_laws", "")
        why = f" ({reason})" if reason else ""
        return (
            f"{classes.word('accept')} {classes.word('drafter')}: {classes.words['drafter']} gives "
            f"no law{why}, so {classes.words['accept']} would only be match: "
            "use accept=match"
        )
    return None


def _draws(classes: Classes, how: How) -> str | None:
    """Checks each source that gives a law; children of the others are placed, which always fits."""
    own = classes.drafter.traits
    sources = [source for source in own.sources if source.laws != "none"] or [own]
    reasons = (_draws_of(classes, how, source) for source in sources)
    return next((reason for reason in reasons if reason), None)


def _draws_of(classes: Classes, how: How, source: Traits) -> str | None:
    if how not in classes.accept.reads:
        return (
            f"tree.proposal={how}: {classes.word('accept')} cannot judge such draws; use one of "
            f"{', '.join(sorted(classes.accept.reads))}, or accept=match"
        )
    if source.laws == "drawn":
        return _own_draws(classes)
    if how == "place":
        return None
    if source.laws == "none":
        return (
            f"tree.proposal={how}: {classes.word('drafter')} gives no law to draw from; use "
            "tree.proposal=place"
        )
    if not classes.tree.decides_before_draw and not classes.accept.any_draft:
        return (
            f"tree.proposal={how}: {classes.word('tree')} re-ranks nodes after they are drawn, "
            f"which biases {classes.word('accept')}; use tree.proposal=place or accept=match"
        )
    return None


def _own_draws(classes: Classes) -> str | None:
    """Checks a drafter that draws its tokens itself, independently of each other, in any tree."""
    if "iid" not in classes.accept.reads:
        return (
            f"{classes.word('accept')} cannot judge the tokens that {classes.word('drafter')} has "
            "drawn by itself; use accept=match or accept=rejection"
        )
    if not classes.tree.decides_before_draw and not classes.accept.any_draft:
        return (
            f"{classes.word('tree')} re-ranks the tokens that {classes.word('drafter')} has drawn "
            f"by itself, which biases {classes.word('accept')}; use tree=chain or accept=match"
        )
    return None


def _tree(classes: Classes, how: How) -> str | None:
    if classes.tree.needs_native and not classes.drafter.traits.native:
        return (
            f"{classes.word('tree')} takes whole branches and {classes.word('drafter')} has none; "
            "use tree=chain or tree=dynamic"
        )
    if classes.drafter.traits.drafts:
        return _draft(classes)
    return None


def _draft(classes: Classes) -> str | None:
    """Why a draft cannot be verified, or taken back, by these."""
    gives = classes.target.gives
    if not gives.tree_masks and not classes.tree.chain_only:
        return (
            f"{classes.word('target')} cannot score a tree in one pass, which "
            f"{classes.word('tree')} needs; use tree=chain"
        )
    if classes.accept.chains_only and not classes.tree.chain_only:
        return (
            f"{classes.word('accept')} judges chains only, and {classes.word('tree')} may give a "
            "node two children; use tree=chain"
        )
    if "none" in (gives.rollback, classes.cache.rollback):
        return (
            f"{classes.word('target')} with {classes.word('cache')} cannot roll back a rejected "
            "draft; use drafter=none or a target of full attention"
        )
    return None


def _needs(classes: Classes, how: How) -> str | None:
    needs, gives = classes.drafter.traits.needs, classes.target.gives
    missing = [tap for tap in needs.taps if not {"*", tap} & gives.taps]
    if needs.partial_layers and not gives.partial_layers:
        missing.append("partial layers")
    if missing:
        return (
            f"{classes.word('drafter')} needs {', '.join(missing)}, which {classes.word('target')} "
            "does not give; use target=hf or target=smollm2"
        )
    return None


def check_draft_model(where: str, word: str, target: type[Target]) -> None:
    """Raises IncompatibleComponents for a draft model that cannot forget what it drafted in vain.

    where: the key that names the model; word: the target option that it is.
    """
    if target.gives.rollback == "none":
        raise IncompatibleComponents(
            f"{where}: target={word} cannot roll back a rejected draft, so it cannot draft; use a "
            "model of full attention, or drafter=ngram"
        )


def check_taps(drafter: Drafter, target: Target) -> None:
    """Raises IncompatibleComponents for a loaded drafter that needs a tap which is not there."""
    if missing := [tap for tap in drafter.traits.needs.taps if tap not in target.gives.taps]:
        raise IncompatibleComponents(
            f"the drafter needs {', '.join(missing)}, which {target.name} does not give"
        )


def check_rows(word: str, drafter: Drafter, rows: int) -> None:
    """Raises IncompatibleComponents if auxiliary rows leave no room for a drafted one.

    word: the drafter's; rows: `tree.max_nodes`.
    """
    aux = drafter.traits.needs.aux_rows
    if aux and rows < aux + 2:
        raise IncompatibleComponents(
            f"tree.max_nodes={rows}: drafter={word} adds {aux} auxiliary rows to a pass and leaves "
            f"none for a guess; use tree.max_nodes={2 * (aux + 1)}, or smaller numbers of the "
            "drafter"
        )
