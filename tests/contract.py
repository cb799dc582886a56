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
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe import load
from specframe.cache.base import CACHES
from specframe.compose import catalogue
from specframe.compose.axes import AXES
from specframe.compose.binding import bind
from specframe.drafter.base import DRAFTERS
from specframe.errors import IncompatibleComponents
from specframe.registry import Registry
from specframe.runtime.base import RUNTIMES
from specframe.session.engine import Engine
from specframe.tree.base import TREES, TreePolicy
from specframe.types import Budget, Frontier, How, Needs, Proposal
from tests.drafts import CHEAP, Table, builder, check_draft, paths

PROMPTS = ((1, 2, 3, 1, 2), (4, 0, 4, 0, 5, 5, 4, 0))
NEW_TOKENS = 24
TAPS = re.compile(r"embed|resid:\d+|final_prenorm|final_postnorm")


def make(axis: str, word: str, **changes: Any) -> Any:
    """A component with the values of its YAML file and some changes."""
    registry: Registry[Any] = AXES[axis]
    with catalogue.configuration() as loader:
        values = catalogue.schema(loader, axis, word) | changes
    if axis == "tree" and "costs" in values:
        values["costs"] = CHEAP
    made = registry.get(word)
    return made(**bind(made, values, where=axis))


def costs_of(tree: str) -> list[str]:
    """The words that hand a tree its costs, if it asks: cheap rows, guesses often right."""
    with catalogue.configuration() as loader:
        asks = "costs" in catalogue.schema(loader, "tree", tree)
    return [f"tree.costs={Path(__file__).with_name('costs.json')}"] if asks else []


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
    def name(self) -> str:
        return type(self).word

    @pytest.mark.parametrize("seed", [0, 1])
    @pytest.mark.parametrize("how", ["place", "iid", "wor", "coupled"])
    def test_every_draft_is_well_formed_and_within_its_budget(
        self, name: str, how: How, seed: int
    ) -> None:
        for rows, depth, max_nodes in itertools.product((1, 2, 5, 40), (0, 1, 3, 9), (2, 7, 30)):
            policy = self.policy(name, depth=5, max_nodes=max_nodes, proposal=how)
            made = builder(how=how)
            budget = Budget(rows=min(rows, max_nodes), depth=depth)
            policy.grow(made, Table(seed), budget)
            assert made.num_rows == made.build().num_rows
            check_draft(made.build(), Budget(rows=budget.rows, depth=min(depth, 5)))

    def test_no_room_gives_the_bare_root(self, name: str) -> None:
        for rows, depth in ((1, 4), (8, 0)):
            made = builder()
            self.policy(name).grow(made, Table(0), Budget(rows=rows, depth=depth))
            draft = made.build()
            assert (draft.num_rows, draft.depth) == (1, 0)

    def test_room_is_used(self, name: str) -> None:
        made = builder()
        self.policy(name).grow(made, Table(0), Budget(rows=16, depth=4))
        assert made.build().depth >= 1

    @pytest.mark.parametrize("how", ["place", "iid", "wor"])
    def test_sizes_are_fixed_before_any_value(self, name: str, how: How) -> None:
        # Whole branches are host data, known before; all other values are the device's.
        host_data = TREES.get(name).needs_native
        sizes = set()
        for seed in range(6):
            made = builder(how=how, root=seed)
            table = Table(0 if host_data else seed)
            self.policy(name, proposal=how).grow(made, table, Budget(rows=12, depth=4))
            draft = made.build()
            sizes.add((draft.num_rows, draft.depth, len(draft.row_of)))
        assert len(sizes) == 1

    def test_padding_adds_dead_rows_only(self, name: str) -> None:
        made = builder()
        self.policy(name).grow(made, Table(0), Budget(rows=9, depth=4))
        bare, padded = made.build(), made.build(pad_to=32)
        assert padded.num_rows == 32
        assert not padded.alive[bare.num_rows :].any()
        assert paths(padded) == paths(bare)
        check_draft(padded, Budget(rows=9, depth=4), padded=True)

    def test_declared_expansions_bound_the_frontiers(self, name: str) -> None:
        table, fed = Table(0), []
        inner = table.expand

        def counted(frontier: Frontier) -> Sequence[Proposal]:
            fed.append(len(frontier))
            return inner(frontier)

        table.expand = counted  # type: ignore[method-assign]
        policy = self.policy(name)
        policy.grow(builder(), table, Budget(rows=policy.max_nodes, depth=policy.depth))
        assert sum(fed) <= policy.max_expanded

    def test_datasheet(self, name: str) -> None:
        text = inspect.getdoc(TREES.get(name)) or ""
        assert re.search(r"[Dd]ecides|[Cc]hooses", text), "does it decide before the draw?"


@cache
def _baseline(words: tuple[str, ...], prompt: tuple[int, ...]) -> tuple[int, ...]:
    engine = load(["target=toy", "drafter=none", "tree=chain", *words])
    return tuple(engine.generate(prompt, max_new_tokens=NEW_TOKENS).tokens)


def compositions(*fixed: str, shift: int = 0) -> Iterator[tuple[list[str], Engine]]:
    """Engines on target=toy with every tree that goes with `fixed`, and a cache in turn: `shift`
    by one gives each tree the next."""
    caches = CACHES.names()
    for turn, tree in enumerate(TREES.names(), shift):
        cache = caches[turn % len(caches)]
        words = [*fixed, f"tree={tree}", *costs_of(tree), f"cache={cache}"]
        try:
            yield words, load(["target=toy", *words])
        except IncompatibleComponents as error:
            if "use " not in str(error):
                raise AssertionError(f"{words}: the refusal names no way out") from error


class DrafterContract(_Suite):
    """What every drafter does: whatever it proposes, the text is the target's own."""

    @pytest.fixture
    def name(self) -> str:
        return type(self).word

    @pytest.fixture
    def extra(self) -> tuple[str, ...]:
        return type(self).words

    @pytest.mark.parametrize(("shift", "temperature"), [(0, 0.0), (1, 0.9)])
    def test_text_is_that_of_no_draft(
        self, name: str, extra: tuple[str, ...], shift: int, temperature: float
    ) -> None:
        settings = (f"sampling.temperature={temperature}", "seed=7")
        expected = _baseline(settings, PROMPTS[0])
        ran = 0
        for words, engine in compositions(f"drafter={name}", *extra, *settings, shift=shift):
            answer = engine.generate(PROMPTS[0], max_new_tokens=NEW_TOKENS)
            assert tuple(answer.tokens) == expected, words
            ran += 1
        assert ran, "no tree takes this drafter"

    def test_a_prompt_leaves_nothing_to_the_next(self, name: str, extra: tuple[str, ...]) -> None:
        engine = load(["target=toy", f"drafter={name}", *extra])
        runs = [self.steps(engine, prompt) for prompt in (*PROMPTS, PROMPTS[0])]
        assert runs[0] == runs[2]
        fresh = load(["target=toy", f"drafter={name}", *extra])
        assert runs[1] == self.steps(fresh, PROMPTS[1])

    def steps(self, engine: Engine, prompt: Sequence[int]) -> list[list[int]]:
        """Emitted tokens by step."""
        loop = engine.decoding(max_new_tokens=NEW_TOKENS)
        emitted = [loop.begin(prompt)]
        while loop.finish_reason is None:
            emitted.append(loop.step().tokens)
        return emitted

    @pytest.mark.parametrize("tail", [(), (2, 5, 1)])
    def test_truncate(self, name: str, extra: tuple[str, ...], tail: tuple[int, ...]) -> None:
        """Going back leaves what a run over that prefix would have, with or without a tail."""
        engine = load(["target=toy", f"drafter={name}", *extra])
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

    def test_needs_are_declared(self, name: str) -> None:
        needs = DRAFTERS.get(name).traits.needs
        assert isinstance(needs, Needs)
        assert needs.aux_rows >= 0
        assert all(TAPS.fullmatch(tap) for tap in needs.taps)

    def test_datasheet(self, name: str) -> None:
        text = inspect.getdoc(DRAFTERS.get(name)) or ""
        for field in ("ossless", "[Nn]eeds|[Ff]orward", "Paper|Source|arXiv|[Bb]aseline"):
            assert re.search(field, text), f"the data sheet lacks {field}"


class RuntimeContract(_Suite):
    """A runtime computes what the function computes."""

    @pytest.fixture
    def name(self) -> str:
        return type(self).word

    def test_wrapped_functions_compute_the_same(self, name: str) -> None:
        runtime = make("runtime", name)

        def fn(fed: tuple[Tensor, ...], held: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            held[0].index_copy_(0, fed[1], fed[0])
            return (fed[0] @ held[0].T).softmax(-1), held[0].sum(0)

        ours, theirs = torch.rand(8, 3), torch.zeros(8, 3)
        theirs.copy_(ours)
        for step, rows in enumerate((1, 4, 1, 4, 4, 1)):
            fed = torch.rand(rows, 3), torch.arange(step, step + rows) % 8
            got = runtime.wrap(fn, ("test", rows))(fed, (ours,))
            torch.testing.assert_close(got, fn(fed, (theirs,)))
            torch.testing.assert_close(ours, theirs)

    def test_buckets_are_the_next_that_fits(self, name: str) -> None:
        runtime = make("runtime", name, buckets=[1, 4, 16])
        asked = [runtime.bucket(rows, 10) for rows in (1, 2, 4, 5, 10)]
        assert asked == [1, 4, 4, 5, 10]
        assert make("runtime", name, buckets=None).bucket(3, 10) == 3

    def test_bad_buckets_are_named(self, name: str) -> None:
        for bad in ([4, 1], [2, 2], [0, 3], []):
            with pytest.raises(ValueError, match=r"runtime\.buckets"):
                make("runtime", name, buckets=bad)

    def test_padded_passes_change_no_text(self, name: str) -> None:
        assert name in RUNTIMES.names()
        for tree in TREES.names():
            words = ["target=toy", "drafter=ngram", f"runtime={name}", f"tree={tree}"]
            words += costs_of(tree)
            words.append("sampling.temperature=0.8")
            bare = load(words).generate(PROMPTS[0], max_new_tokens=NEW_TOKENS)
            padded = load([*words, "runtime.buckets=[3,8,32]"]).generate(
                PROMPTS[0], max_new_tokens=NEW_TOKENS
            )
            assert padded == bare
