"""Contract suites: what every component of an axis must do, whoever wrote it.

A plugin's test subclasses a suite and says its word; the suites run through the real engine on
`target=toy`, so they need no weights:

    class TestHello(DrafterContract):
        word = "hello"
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe import catalogue, load
from specframe.binding import bind
from specframe.build import AXES
from specframe.cache.base import CACHES
from specframe.drafter.base import DRAFTERS
from specframe.errors import IncompatibleComponents
from specframe.generation import Engine
from specframe.registry import Registry
from specframe.runtime.base import RUNTIMES
from specframe.sampling import Sampling
from specframe.streams import Streams
from specframe.tree.base import TREES, TreePolicy
from specframe.tree.builder import TreeBuilder
from specframe.types import Budget, Draft, Frontier, How, Needs, Proposal

VOCAB = 11
PROMPTS = ((1, 2, 3, 1, 2), (4, 0, 4, 0, 5, 5, 4, 0))
NEW_TOKENS = 24
TAPS = re.compile(r"embed|resid:\d+|final_prenorm|final_postnorm")


def make(axis: str, word: str, **changes: Any) -> Any:
    """A component with the values of its YAML file and some changes."""
    registry: Registry[Any] = AXES[axis]
    with catalogue.configuration() as loader:
        values = catalogue.schema(loader, axis, word) | changes
    made = registry.get(word)
    return made(**bind(made, values, where=axis))


def plain_sampling(temperature: float = 0.0, processors: Sequence[Any] = ()) -> Sampling:
    """A law that is the softmax of the logits (its arg max at temperature 0)."""
    made = Sampling(
        temperature=temperature,
        processors=list(processors),  # type: ignore[arg-type]
        warpers=[],  # type: ignore[arg-type]
        vocabulary=VOCAB,
    )
    return made


def builder(
    *, how: How = "place", temperature: float = 1.0, root: int = 3, processors: Sequence[Any] = ()
) -> TreeBuilder:
    """A builder under a short context."""
    return TreeBuilder(
        context=torch.tensor([1, 2, root]),
        sampling=plain_sampling(temperature, processors),
        rng=Streams(seed=5),
        step=3,
        how=how,
    )


class Table:
    """A drafter for tree tests: logits by last token from a random table, branches at random."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        shape = (VOCAB, VOCAB)
        self.table = 2 * torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        """Logits [F, VOCAB]."""
        return [Proposal(logits=self.table[frontier.tokens.clamp_min(0)])]

    def native(self, budget: Budget) -> Sequence[Sequence[int]]:
        """Six branches as long as the budget, some with a common start."""
        size = (6, budget.depth)
        return torch.randint(0, 3, size, generator=self.generator).tolist()


def children(draft: Draft) -> dict[int, list[int]]:
    """Alive rows by parent row."""
    found: dict[int, list[int]] = {}
    for row, (parent, alive) in enumerate(
        zip(draft.parents.tolist(), draft.alive.tolist(), strict=True)
    ):
        if row and alive:
            found.setdefault(parent, []).append(row)
    return found


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """Token paths of the alive rows but the root, sorted."""
    found: dict[int, tuple[int, ...]] = {0: ()}
    for row in range(1, draft.num_rows):
        if draft.alive[row]:
            parent = int(draft.parents[row])
            found[row] = (*found[parent], int(draft.tokens[row]))
    return sorted(path for row, path in found.items() if row)


def check_draft(draft: Draft, budget: Budget, *, padded: bool = False) -> None:
    """The invariants of a draft; `padded` allows dead rows past the budget."""
    alive, parents, depths = draft.alive.tolist(), draft.parents.tolist(), draft.depths.tolist()
    assert (parents[0], alive[0], depths[0]) == (-1, True, 0)
    assert padded or draft.num_rows <= budget.rows
    assert draft.depth <= max(budget.depth, 0)
    for row in range(1, draft.num_rows):
        if alive[row]:
            assert 0 <= parents[row] < row, "a parent comes before its children"
            assert alive[parents[row]], "nothing lives under a dead row"
            assert depths[row] == depths[parents[row]] + 1 <= draft.depth
    for siblings in children(draft).values():
        tokens = draft.tokens[siblings].tolist()
        assert len(set(tokens)) == len(tokens), "alive siblings differ"
    check_visibility(draft)
    check_ids(draft)
    widths = [len(siblings) for siblings in children(draft).values()]
    assert not draft.chain or max(widths, default=0) <= 1


def check_visibility(draft: Draft) -> None:
    """Rows see themselves and what is above them; dead ones see and are seen by nobody else."""
    seen = draft.ancestors()
    for row in range(draft.num_rows):
        above, node = {row}, row
        while draft.alive[row] and int(draft.parents[node]) >= 0:
            node = int(draft.parents[node])
            above.add(node)
        assert set(seen[row].nonzero()[:, 0].tolist()) == above


def check_ids(draft: Draft) -> None:
    """origin and row_of are inverse to each other; padding has no id."""
    origin = draft.origin.tolist()
    ids = [node for node in origin if node >= 0]
    assert origin[0] == 0
    assert len(set(ids)) == len(ids)
    for row, node in enumerate(origin):
        if node >= 0:
            assert int(draft.row_of[node]) == row
    held = [row for row in draft.row_of.tolist() if row >= 0]
    assert len(held) == len(ids), "row_of points to rows that exist"


class _Suite:
    """`word` names the component; `words` are more words that it needs on target=toy."""

    word: str
    words: tuple[str, ...] = ()


class TreeContract(_Suite):
    """What every tree policy does."""

    def policy(self, word: str, **changes: Any) -> TreePolicy:
        """The policy with the numbers of its YAML, for placed nodes unless told."""
        return make("tree", word, **{"proposal": "place", **changes})

    @pytest.fixture
    def word(self) -> str:
        return type(self).word

    @pytest.mark.parametrize("seed", [0, 1])
    @pytest.mark.parametrize("how", ["place", "iid", "wor", "coupled"])
    def test_every_draft_is_well_formed_and_within_its_budget(
        self, word: str, how: How, seed: int
    ) -> None:
        for rows, depth, max_nodes in itertools.product((1, 2, 5, 40), (0, 1, 3, 9), (2, 7, 30)):
            policy = self.policy(word, depth=5, max_nodes=max_nodes, proposal=how)
            made = builder(how=how)
            budget = Budget(rows=min(rows, max_nodes), depth=depth)
            policy.grow(made, Table(seed), budget)
            assert made.num_rows == made.build().num_rows
            check_draft(made.build(), Budget(rows=budget.rows, depth=min(depth, 5)))

    def test_no_room_gives_the_bare_root(self, word: str) -> None:
        for rows, depth in ((1, 4), (8, 0)):
            made = builder()
            self.policy(word).grow(made, Table(0), Budget(rows=rows, depth=depth))
            draft = made.build()
            assert (draft.num_rows, draft.depth) == (1, 0)

    def test_room_is_used(self, word: str) -> None:
        made = builder()
        self.policy(word).grow(made, Table(0), Budget(rows=16, depth=4))
        assert made.build().depth >= 1

    @pytest.mark.parametrize("how", ["place", "iid", "wor"])
    def test_sizes_are_fixed_before_any_value(self, word: str, how: How) -> None:
        if TREES.get(word).needs_native:
            pytest.skip("its sizes come from host data that is known before")
        sizes = set()
        for seed in range(6):
            made = builder(how=how, root=seed)
            self.policy(word, proposal=how).grow(made, Table(seed), Budget(rows=12, depth=4))
            draft = made.build()
            sizes.add((draft.num_rows, draft.depth, len(draft.row_of)))
        assert len(sizes) == 1

    def test_padding_adds_dead_rows_only(self, word: str) -> None:
        made = builder()
        self.policy(word).grow(made, Table(0), Budget(rows=9, depth=4))
        bare, padded = made.build(), made.build(pad_to=32)
        assert padded.num_rows == 32
        assert not padded.alive[bare.num_rows :].any()
        assert paths(padded) == paths(bare)
        check_draft(padded, Budget(rows=9, depth=4), padded=True)

    def test_declared_expansions_bound_the_frontiers(self, word: str) -> None:
        table, fed = Table(0), []
        inner = table.expand

        def counted(frontier: Frontier) -> Sequence[Proposal]:
            fed.append(len(frontier))
            return inner(frontier)

        table.expand = counted  # type: ignore[method-assign]
        policy = self.policy(word)
        policy.grow(builder(), table, Budget(rows=policy.max_nodes, depth=policy.depth))
        assert sum(fed) <= policy.max_expanded

    def test_datasheet(self, word: str) -> None:
        text = inspect.getdoc(TREES.get(word)) or ""
        assert re.search(r"[Dd]ecides|[Cc]hooses", text), "does it decide before the draw?"


@cache
def _baseline(words: tuple[str, ...], prompt: tuple[int, ...]) -> tuple[int, ...]:
    engine = load(["target=toy", "drafter=none", "tree=chain", *words])
    return tuple(engine.generate(prompt, max_new_tokens=NEW_TOKENS).tokens)


def compositions(*fixed: str, axes: Sequence[Registry[Any]]) -> Iterator[tuple[list[str], Engine]]:
    """Engines on target=toy of every choice on `axes` that goes with `fixed`."""
    for chosen in itertools.product(*(registry.names() for registry in axes)):
        picked = zip(axes, chosen, strict=True)
        words = [*fixed, *(f"{registry.axis}={word}" for registry, word in picked)]
        try:
            yield words, load(["target=toy", *words])
        except IncompatibleComponents as error:
            assert "use " in str(error), f"{words}: the refusal names no way out: {error}"


class DrafterContract(_Suite):
    """What every drafter does: whatever it proposes, the text is the target's own."""

    @pytest.fixture
    def word(self) -> str:
        return type(self).word

    @pytest.mark.parametrize("temperature", [0.0, 0.9])
    def test_text_is_that_of_no_draft(self, word: str, temperature: float) -> None:
        settings = (f"sampling.temperature={temperature}", "seed=7")
        expected = _baseline(settings, PROMPTS[0])
        ran = 0
        for words, engine in compositions(
            f"drafter={word}", *self.words, *settings, axes=(TREES, CACHES)
        ):
            answer = engine.generate(PROMPTS[0], max_new_tokens=NEW_TOKENS)
            assert tuple(answer.tokens) == expected, words
            ran += 1
        assert ran >= 2, "no tree takes this drafter"

    def test_a_prompt_leaves_nothing_to_the_next(self, word: str) -> None:
        engine = load(["target=toy", f"drafter={word}", *self.words])
        runs = [self.steps(engine, prompt) for prompt in (*PROMPTS, PROMPTS[0])]
        assert runs[0] == runs[2]
        fresh = load(["target=toy", f"drafter={word}", *self.words])
        assert runs[1] == self.steps(fresh, PROMPTS[1])

    def steps(self, engine: Engine, prompt: Sequence[int]) -> list[list[int]]:
        """Emitted tokens by step."""
        loop = engine.decoding(max_new_tokens=NEW_TOKENS)
        emitted = [loop.begin(prompt)]
        while loop.finish_reason is None:
            emitted.append(loop.step().tokens)
        return emitted

    @pytest.mark.parametrize("tail", [(), (2, 5, 1)])
    def test_truncate(self, word: str, tail: tuple[int, ...]) -> None:
        """Going back leaves what a run over that prefix would have, with or without a tail."""
        engine = load(["target=toy", f"drafter={word}", *self.words])
        loop = engine.decoding(max_new_tokens=NEW_TOKENS)
        loop.begin(PROMPTS[1])
        for _ in range(3):
            loop.step()
        kept = len(PROMPTS[1]) + 2
        prefix = [*loop.context.tokens[:kept], *tail]
        loop.truncate(kept, tail)
        while loop.finish_reason is None:
            loop.step()
        expected = load(["target=toy", "drafter=none"]).generate(
            prefix, max_new_tokens=len(PROMPTS[1]) + NEW_TOKENS - len(prefix)
        )
        assert loop.context.tokens == [*prefix, *expected.tokens]

    def test_needs_are_declared(self, word: str) -> None:
        needs = DRAFTERS.get(word).needs
        assert isinstance(needs, Needs)
        assert needs.aux_rows >= 0
        assert all(TAPS.fullmatch(tap) for tap in needs.taps)

    def test_datasheet(self, word: str) -> None:
        text = inspect.getdoc(DRAFTERS.get(word)) or ""
        for field in ("ossless", "[Nn]eeds|[Ff]orward", "Paper|Source|arXiv|[Bb]aseline"):
            assert re.search(field, text), f"the data sheet lacks {field}"


class RuntimeContract(_Suite):
    """A runtime computes what the function computes."""

    @pytest.fixture
    def word(self) -> str:
        return type(self).word

    def test_wrapped_functions_compute_the_same(self, word: str) -> None:
        runtime = make("runtime", word)

        def fn(left: Tensor, right: Tensor) -> Tensor:
            return (left @ right).softmax(-1)

        for rows in (1, 4, 1):
            left, right = torch.rand(rows, 3), torch.rand(3, 5)
            wrapped = runtime.wrap(fn, ("test", rows))
            torch.testing.assert_close(wrapped(left, right), fn(left, right))

    def test_buckets_are_the_next_that_fits(self, word: str) -> None:
        runtime = make("runtime", word, buckets=[1, 4, 16])
        asked = [runtime.bucket(rows, 10) for rows in (1, 2, 4, 5, 10)]
        assert asked == [1, 4, 4, 5, 10]
        assert make("runtime", word, buckets=None).bucket(3, 10) == 3

    def test_bad_buckets_are_named(self, word: str) -> None:
        for bad in ([4, 1], [2, 2], [0, 3], []):
            with pytest.raises(ValueError, match=r"runtime\.buckets"):
                make("runtime", word, buckets=bad)

    def test_padded_passes_change_no_text(self, word: str) -> None:
        assert word in RUNTIMES.names()
        for tree in TREES.names():
            words = ["target=toy", f"runtime={word}", f"tree={tree}", "sampling.temperature=0.8"]
            bare = load(words).generate(PROMPTS[0], max_new_tokens=NEW_TOKENS)
            padded = load([*words, "runtime.buckets=[3,8,32]"]).generate(
                PROMPTS[0], max_new_tokens=NEW_TOKENS
            )
            assert padded == bare
