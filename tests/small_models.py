"""The small models, trees and drafters of these tests, beside what the testing room gives."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from string import ascii_lowercase

import torch

from specframe.cache.base import CacheManager
from specframe.cache.dynamic import DynamicCache
from specframe.cache.static import StaticCache
from specframe.drafter.base import Drafter
from specframe.drafter.lm import LM
from specframe.drafter.ngram import Ngram
from specframe.drafter.none import NoDraft
from specframe.records import Context
from specframe.runtime.base import Launch
from specframe.target.base import Target
from specframe.target.hf import HF
from specframe.target.toy import Toy
from specframe.testing.compositions import CPU as CPU
from specframe.testing.compositions import PROMPT as PROMPT
from specframe.testing.compositions import RUNTIME as RUNTIME
from specframe.testing.compositions import Composition as Composition
from specframe.testing.compositions import Outcome as Outcome
from specframe.testing.compositions import decode as decode
from specframe.testing.compositions import sampling_config as sampling_config
from specframe.testing.compositions import stop_config as stop_config
from specframe.testing.tiny_models import LAYERS as LAYERS
from specframe.testing.tiny_models import TINY as TINY
from specframe.testing.tiny_models import VOCAB as VOCAB
from specframe.testing.tiny_models import WINDOW as WINDOW
from specframe.testing.tiny_models import assert_fresh as assert_fresh
from specframe.testing.tiny_models import byte_tokenizer as byte_tokenizer
from specframe.testing.tiny_models import config as config
from specframe.testing.tiny_models import fresh_keys as fresh_keys
from specframe.testing.tiny_models import full_logits as full_logits
from specframe.testing.tiny_models import greedy_text, shared_model
from specframe.testing.tiny_models import model as model
from specframe.tree.base import ProposalKind, TreePolicy
from specframe.tree.chain import ChainTree
from specframe.tree.dynamic import DynamicTree
from specframe.tree.native import NativeTree
from specframe.tree.static import StaticTree
from specframe.types import Frontier, Proposal, Rows, TargetOutput

raw, oracle = shared_model, greedy_text
LONG_PROMPT = (5, 17, 42, 17, 42, 8, 61, 3, 90, 17, 42, 8, 33, 2)  # longer than WINDOW

CACHE_MAKERS: dict[str, Callable[..., CacheManager]] = {  # they take `launch=`
    "dynamic": DynamicCache,
    "static": partial(StaticCache, capacity=None, block=16),
}
RANK_PATHS = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [1, 1], [0, 1, 0], [1, 0, 0], [1, 0, 0, 0]]


@lru_cache
def target(name: str) -> HF:
    """The shared target of a family, equal to `raw(name)`."""
    return HF.of(copy.deepcopy(raw(name)), runtime=RUNTIME)


@lru_cache
def draft(name: str, kind: str) -> HF:
    """Draft of a family: `perfect` (a copy), `noisy` (often right), `bad` (another seed)."""
    made = model(name, seed=1) if kind == "bad" else copy.deepcopy(raw(name))
    if kind == "noisy":
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for weight in made.parameters():
                noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
                weight.add_(0.05 * noise * weight.std())
    return HF.of(made, runtime=RUNTIME)


def toy(
    *,
    blend: float = 0.0,
    vocab_size: int = 6,
    spread: float = 3.0,
    max_positions: int | None = None,
) -> Toy:
    """A table; `blend` > 0 makes it a draft of the one without."""
    return Toy(
        vocab_size=vocab_size,
        table_seed=1,
        spread=spread,
        blend=blend,
        max_positions=max_positions,
        device=CPU,
        runtime=RUNTIME,
        draft=None,
    )


def small_table(blend: float = 0.0) -> Toy:
    """A toy of three tokens with flat laws, whose texts can be enumerated."""
    return toy(vocab_size=3, spread=1.5, blend=blend)


def tree_of(name: str, how: ProposalKind = "place") -> TreePolicy:
    """A small tree of each kind."""
    if name == "static":
        return StaticTree(depth=4, max_nodes=12, proposal=how, paths=RANK_PATHS)
    if name == "dynamic":
        return DynamicTree(depth=4, top_k=3, max_nodes=9, proposal=how)
    if name == "native":
        return NativeTree(depth=6, max_nodes=12, proposal=how)
    return ChainTree(depth=4, max_nodes=8, proposal=how)


def drafter_of(kind: str, family: str, cache: str = "dynamic") -> Drafter:
    """none, ngram, or lm with the draft perfect, noisy or bad of a family (or of the toy)."""
    if kind == "none":
        return NoDraft()
    if kind == "ngram":
        return Ngram(n_max=3, n_min=1, length=6, max_matches=4)
    if family == "toy":
        blends = {"perfect": 0.0, "noisy": 0.2, "bad": 1.0}
        return lm_of(toy(blend=blends[kind]), toy(), cache)
    return lm_of(draft(family, kind), target(family), cache)


def lm_of(
    small: Target,
    large: Target,
    cache: str = "dynamic",
    *,
    trust: bool = False,
    launch: Launch | None = None,
) -> LM:
    """drafter=lm composed by hand."""
    new_cache = partial(CACHE_MAKERS[cache], launch=launch)
    return LM(model=small, target=large, new_cache=new_cache, trust_vocabulary=trust)


class Scripted(Drafter):
    """Knows the whole text and offers its next token at place `rank` of `width` candidates."""

    def __init__(self, text: Sequence[int], *, rank: int = 0, width: int = 1) -> None:
        self.text, self.rank, self.width = list(text), rank, width

    def begin(self, context: Context, out: TargetOutput) -> None:
        self.context = context

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        place = len(self.context) + frontier.depth
        if place >= len(self.text):
            return []
        offsets = torch.arange(self.width, device=frontier.tokens.device) - self.rank
        candidates = ((self.text[place] + offsets) % VOCAB).expand(len(frontier), -1)
        return [Proposal(candidates=candidates, source="scripted")]


# A tree of seven rows with three branches; tokens are arbitrary.
TREE_TOKENS = (8, 11, 12, 13, 14, 15, 16)
TREE_PARENTS = (-1, 0, 0, 1, 1, 2, 3)


def tree_paths() -> list[list[int]]:
    """Rows from the root down to each row of the tree, itself included."""
    paths: list[list[int]] = []
    for row, parent in enumerate(TREE_PARENTS):
        paths.append([*(paths[parent] if parent >= 0 else []), row])
    return paths


def tree_rows(cache: CacheManager, order: Sequence[int] = range(7)) -> Rows:
    """The test tree behind what is committed, its rows in the slots that `order` says."""
    fresh, length = cache.reserve([len(TREE_TOKENS)]), cache.lengths[0]
    paths, places = tree_paths(), torch.tensor(order)
    columns = fresh.columns[places]
    sees = torch.zeros((len(paths), fresh.extent), dtype=torch.bool)
    for row, path in enumerate(paths):
        sees[row, columns[path]] = True
    return Rows(
        tokens=torch.tensor(TREE_TOKENS),
        positions=torch.tensor([length + len(path) - 1 for path in paths]),
        slots=fresh.slots[places],
        prefix=torch.full_like(columns, length),
        sees=sees,
    )


def prefilled(made: Target, prompt: Sequence[int], cache: str = "dynamic") -> CacheManager:
    """A cache that holds the prompt."""
    held = CACHE_MAKERS[cache]()
    with torch.inference_mode():
        held.open(0, columns=len(prompt) + 64, device=CPU)
        made.prefill(prompt, held)
    return held


@lru_cache
def speller() -> HF:
    """A tiny model over bytes that writes lower-case letters."""
    tokenizer = byte_tokenizer()
    made = model("llama", vocab_size=len(tokenizer), max_position_embeddings=512)
    letters = [token for word, token in tokenizer.get_vocab().items() if word in ascii_lowercase]
    with torch.no_grad():
        kept = made.lm_head.weight[letters].clone()
        made.lm_head.weight.zero_()
        made.lm_head.weight[letters] = kept
    return HF.of(made, runtime=RUNTIME, tokenizer=tokenizer)
