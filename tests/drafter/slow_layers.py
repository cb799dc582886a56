"""Drafters without any cache, slow and plain, that the fast ones must agree with node by node,
and the combinations in which they do."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from specframe.accept.base import AcceptRule
from specframe.accept.match import Match
from specframe.accept.rejection import Rejection
from specframe.drafter.base import Drafter, Traits
from specframe.records import Context, StepRecord
from specframe.types import Frontier, Proposal, TargetOutput
from tests.small_models import TINY, Composition, Outcome, raw, target, tree_of

# ([F, T] whole texts down to each node, place of the root) -> [F, V] logits after the last tokens
Logits = Callable[[Sequence[Sequence[int]], int], Tensor]


class Slow(Drafter):
    """Asks a function for the logits of each node, given the whole text down to it."""

    traits = Traits(laws="logits")

    def __init__(self, logits: Logits) -> None:
        self.logits = logits

    def begin(self, context: Context, out: TargetOutput) -> None:
        self.context = context

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        root = len(self.context) - 1
        texts = [
            [*self.context.tokens, *(max(one, 0) for one in path)]
            for path in frontier.paths.tolist()
        ]
        return [Proposal(logits=self.logits(texts, root))]


@torch.no_grad()
def last_logits(made: Any, texts: Sequence[Sequence[int]]) -> Tensor:
    """[F, V] logits after each of some texts of one length, by one pass without a cache."""
    logits: Tensor = made(torch.tensor(texts), use_cache=False).logits
    return logits[:, -1]


def blocks_of(made: Any) -> Any:
    """The list of a model's blocks."""
    return made.transformer.h if hasattr(made, "transformer") else made.model.layers


def parts_of(block: Any) -> dict[str, Any]:
    """The two sub-layers of a block."""
    return {"attention": getattr(block, "attn", None) or block.self_attn, "mlp": block.mlp}


@lru_cache
def shortened(family: str, layer: int) -> Any:
    """A model of the first `layer` blocks, with its own norm and head."""
    made = copy.deepcopy(raw(family))
    del blocks_of(made)[layer:]
    made.config.num_hidden_layers = layer
    return made


def first_layers(family: str, layer: int) -> Logits:
    """What early_exit should say."""
    return lambda texts, root: last_logits(shortened(family, layer), texts)


@lru_cache
def without(family: str, skip: frozenset[str]) -> Logits:
    """What layer_skip should say: from the root on, `skip` writes zeros; the text before it is the
    whole model's."""
    made = copy.deepcopy(raw(family))
    start = [0]

    def silence(module: Any, given: Any, output: Any) -> Any:
        stream = output[0] if isinstance(output, tuple) else output
        stream = stream.clone()
        stream[:, start[0] :] = 0
        return (stream, *output[1:]) if isinstance(output, tuple) else stream

    for name in skip:
        kind, block = name.split(":")
        parts_of(blocks_of(made)[int(block)])[kind].register_forward_hook(silence)

    def logits(texts: Sequence[Sequence[int]], root: int) -> Tensor:
        start[0] = root
        return last_logits(made, texts)

    return logits


def count_blocks(made: Any) -> dict[str, list[int]]:
    """Sub-layer name -> rows of each of its calls from now on."""
    calls: dict[str, list[int]] = {}
    for index, block in enumerate(blocks_of(made)):
        for kind, part in parts_of(block).items():
            calls[f"{kind}:{index}"] = []
            inner, seen = part.forward, calls[f"{kind}:{index}"]
            part.forward = _counted(inner, seen)
    return calls


def _counted(inner: Callable[..., Any], seen: list[int]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        stream = args[0] if args else kwargs["hidden_states"]
        seen.append(stream.shape[1])
        return inner(*args, **kwargs)

    return run


# Combinations

TREES = ("chain", "static", "dynamic")
WAYS: list[tuple[AcceptRule, Any, float]] = [
    (Match(), "place", 0.0),
    (Match(), "place", 0.9),
    (Match(), "coupled", 0.9),
    (Rejection(), "place", 0.9),
    (Rejection(), "wor", 0.9),
    (Rejection(), "iid", 0.9),
]


def composed(tree: str, how: Any = "place", family: str = "llama", **more: Any) -> Composition:
    return Composition(target=target(family), tree=tree_of(tree, how), how=how, **more)


def shape(outcome: Outcome) -> list[tuple[list[int], list[int], list[int]]]:
    """What each step drafted, where it lay in the tree, and what it emitted."""
    drafts = [(record.draft, record.tokens) for record in outcome.records]
    return [
        (torch.where(one.alive, one.tokens, -1).tolist(), one.parents.tolist(), tokens)
        for one, tokens in drafts
    ]


Case = tuple[str, str, AcceptRule, Any, float]  # family, tree, rule, how, temperature


def cases() -> list[Case]:
    """(family, tree, rule, how, temperature): every way on one family, two on each of the others;
    rejection does not judge draws that are re-ranked."""
    found = []
    for family, tree, (rule, how, temperature) in itertools.product(TINY, TREES, WAYS):
        reranked = tree == "dynamic" and how in ("wor", "iid")
        few = how == "coupled" if tree == "dynamic" else how == "wor"
        if not reranked and (family == "llama" or temperature == 0 or few):
            found.append((family, tree, rule, how, temperature))
    return found


def full_cases() -> list[Case]:
    """Those in which a perfect drafter is accepted down to a leaf: placed children are accepted as
    often as the target says them, and a re-ranking may leave the right draw out."""
    return [
        case for case in cases() if case[4] == 0 or (case[3] != "place" and case[1] != "dynamic")
    ]


def ends_on_a_leaf(record: StepRecord) -> bool:
    """Whether nothing drafted stands below the last accepted row."""
    draft, last = record.draft, record.path[-1] if record.path else 0
    return not bool((draft.alive & (draft.parents == last)).any())
