"""drafter=oracle: the acceptance that was asked for, and the mark on every report."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from specframe import load
from specframe.accept.match import Match
from specframe.compose.overrides import compose
from specframe.compose.run_task import run
from specframe.drafter.oracle import Oracle
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.measure.meter import Meter
from specframe.measure.metrics import Metrics
from specframe.planning.rank_paths import expected_length, worth
from specframe.records import StepRecord
from specframe.session.engine import Engine
from specframe.terminal.answer import one_line
from specframe.testing.host_reads import HostReads
from specframe.tree.base import TreePolicy
from specframe.tree.chain import ChainTree
from specframe.tree.static import StaticTree
from specframe.types import Draft
from tests.small_models import PROMPT, Composition, decode, oracle, sampling_config, target, tree_of
from tests.test_syncs import read_in

PROMPT_TOY = (1, 2, 3, 1, 2)
RANKS = (0.6, 0.25, 0.15)


def made_of(words: Sequence[str], count: int) -> Engine:
    plain = ["target=toy", "target.vocab_size=26", "stop.eos=[]", f"max_new_tokens={count}"]
    return load([*plain, "drafter=oracle", *words])


def table(rates: Sequence[float], ranks: Sequence[float], depth: int) -> list[list[float]]:
    """[D][K] how often the guess of each rank is right."""
    return [[rates[min(d, len(rates) - 1)] * share for share in ranks] for d in range(depth)]


def shape_of(policy: TreePolicy, draft: Draft, width: int) -> tuple[tuple[int, ...], ...]:
    """The rank paths of a draft by a policy over `width` candidates a node."""
    if isinstance(policy, ChainTree):
        return tuple((0,) * depth for depth in range(1, draft.depth + 1))
    if isinstance(policy, StaticTree):
        return tuple(path for path in policy.paths if max(path) < width)
    paths: dict[int, tuple[int, ...]] = {0: ()}
    parents, origin = draft.parents.tolist(), draft.origin.tolist()
    for row in range(1, draft.num_rows):
        # `width` nodes are made for each parent, in order of rank.
        paths[row] = (*paths[parents[row]], (origin[row] - 1) % width)
    return tuple(list(paths.values())[1:])


def spread(rows: Sequence[Sequence[float]], paths: Sequence[tuple[int, ...]]) -> float:
    """Standard deviation of the accepted tokens of one step over these paths."""
    deepest = max(map(len, paths))
    reach = [sum(worth(rows, p) for p in paths if len(p) == d) for d in range(1, deepest + 1)]
    mean = sum(reach)
    return math.sqrt(sum((2 * d - 1) * p for d, p in enumerate(reach, 1)) - mean**2)


@pytest.mark.parametrize(
    ("tree", "temperature", "rates", "ranks"),
    [
        pytest.param("chain", 0.0, (0.8,), (1.0, 0.0), marks=pytest.mark.slow),
        pytest.param("chain", 1.0, (0.9, 0.5, 0.7), (1.0,), marks=pytest.mark.slow),
        pytest.param("chain", 1.0, (0.8, 0.6), (0.7, 0.3), marks=pytest.mark.slow),
        ("static", 0.0, (0.8,), RANKS),
        pytest.param("static", 1.0, (0.9, 0.6, 0.8, 0.3), RANKS, marks=pytest.mark.slow),
        ("dynamic", 1.0, (0.5, 0.9), RANKS),
    ],
)
def test_acceptance_is_what_was_asked_for(
    tree: str, temperature: float, rates: tuple[float, ...], ranks: tuple[float, ...]
) -> None:
    words = [f"tree={tree}", f"sampling.temperature={temperature}"]
    words += [f"drafter.rates={list(rates)}", f"drafter.ranks={list(ranks)}"]
    if tree == "dynamic":
        words += ["tree.top_k=3"]
    count = 1500 if tree == "chain" else 600
    engine = made_of(words, count)
    loop = engine.decoding()
    loop.begin(PROMPT_TOY)
    lengths: list[int] = []
    paths: set[tuple[tuple[int, ...], ...]] = set()
    while loop.finish_reason is None:
        record = loop.step()
        if len(loop.context) < len(PROMPT_TOY) + count - 10:  # the last drafts are cut by the limit
            lengths.append(len(record.tokens))
            paths.add(shape_of(engine.components.tree, record.draft, len(ranks)))
    assert len(paths) == 1, "the shape does not depend on what is right"
    (shape,) = paths
    rows = table(rates, ranks, 8)
    expected, deviation = expected_length(rows, shape), spread(rows, shape)
    assert abs(sum(lengths) / len(lengths) - expected) < 4 * deviation / math.sqrt(len(lengths))
    # The bound is tight enough to tell another rate.
    other = expected_length(table([0.8 * one for one in rates], ranks, 8), shape)
    assert abs(expected - other) > 4 * deviation / math.sqrt(len(lengths))


@pytest.mark.slow
def test_rates_by_depth_are_met_one_by_one() -> None:
    rates = (0.9, 0.4, 0.7)
    engine = made_of([f"drafter.rates={list(rates)}", "drafter.ranks=[1]"], 1500)
    meter = Meter(torch.device("cpu"))
    meter.begin()
    engine.generate(PROMPT_TOY, observers=[meter])
    counts = meter.end().depths
    for depth, count in enumerate(counts[:4]):
        rate = rates[min(depth, 2)]
        bound = 4 * math.sqrt(rate * (1 - rate) / count.reached)
        assert count.conditional_rate is not None
        assert abs(count.conditional_rate - rate) < bound


@pytest.mark.parametrize(("rate", "length"), [(0.0, 1.0), (1.0, 6.0)])
def test_always_and_never(rate: float, length: float) -> None:
    engine = made_of([f"drafter.rates=[{rate}]", "sampling.temperature=0.9"], 61)
    loop = engine.decoding()
    loop.begin(PROMPT_TOY)
    while loop.finish_reason is None:
        assert len(loop.step().tokens) == length
    assert length == 1.0 or len(loop.context) == len(PROMPT_TOY) + 61


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_text_is_the_targets(tree: str, temperature: float) -> None:
    plain = Composition(target=target("llama"), sampling=sampling_config(temperature))
    truth: Any = plain.decoding(40)
    drafter = Oracle(rates=[0.7], ranks=[0.5, 0.5], seed=0, truth=truth, target=target("llama"))
    composed = Composition(
        target=target("llama"),
        drafter=drafter,
        tree=tree_of(tree),
        accept=Match(),
        sampling=sampling_config(temperature),
    )
    outcome = decode(composed, PROMPT, 40)
    assert outcome.num_accepted > 5
    again = Composition(target=target("llama"), sampling=sampling_config(temperature))
    assert outcome.tokens == decode(again, PROMPT, 40).tokens
    if not temperature:
        assert outcome.tokens == oracle("llama", PROMPT, 40)


def test_its_coins_are_its_own() -> None:
    def drafts(*words: str) -> list[list[int]]:
        loop = made_of(words, 60).decoding()
        loop.begin(PROMPT_TOY)
        found = []
        while loop.finish_reason is None:
            found.append(loop.step().draft.tokens.tolist())
        return found

    assert drafts() == drafts()
    assert drafts() != drafts("drafter.seed=1")


def test_the_true_text_is_decoded_before_the_first_step() -> None:
    engine = made_of(["sampling.temperature=0.9"], 50)
    drafter = engine.components.drafter
    assert isinstance(drafter, Oracle)
    truth: Any = drafter._truth
    loop = engine.decoding()
    loop.begin(PROMPT_TOY)
    assert truth.room() == 0
    assert truth.components.cache is not engine.components.cache
    assert truth.components.target is engine.components.target
    truth.step = truth.begin = None  # nothing is decoded in a step
    while loop.finish_reason is None:
        loop.step()
    assert loop.context.tokens == truth.context.tokens
    assert engine.components.cache.lengths[0] == len(loop.context) - 1


def test_a_run_that_leaves_the_text_is_followed() -> None:
    engine = made_of(["drafter.rates=[1]"], 40)
    loop = engine.decoding()
    loop.begin(PROMPT_TOY)
    loop.step()
    loop.truncate(len(PROMPT_TOY) + 3, tail=[7, 7, 8])
    for _ in range(3):
        assert loop.step().num_accepted == 5
    longer = engine.decoding(max_new_tokens=100)
    longer.begin(PROMPT_TOY)
    while longer.finish_reason is None:
        record = longer.step()
        assert record.num_accepted == 5 or longer.finish_reason is not None


def test_the_end_of_the_text_is_the_end_of_the_draft() -> None:
    text = load(["target=toy", "drafter=none", "stop.eos=[]"]).generate(PROMPT_TOY).tokens
    words = ["target=toy", "drafter=oracle", "drafter.rates=[1]", f"stop.eos=[{text[12]}]"]
    answer = load(words).generate(PROMPT_TOY)
    assert answer.finish_reason == "eos"
    assert answer.tokens == text[: len(answer.tokens)]


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
def test_it_reads_nothing(tree: str) -> None:
    engine = made_of([f"tree={tree}", "sampling.temperature=0.8"], 40)
    for seen in read_in(engine.decoding(), HostReads(), PROMPT_TOY):
        assert len(seen) == 1, seen


# The mark


class _Marks:
    def __init__(self) -> None:
        self.seen: list[bool] = []

    def observe(self, record: StepRecord) -> None:
        self.seen.append(record.draft.synthetic)


@pytest.mark.parametrize(
    ("words", "marked"),
    [
        (["drafter=oracle"], True),
        (["drafter=router", "drafter.sources=[ngram,oracle]"], True),
        (["drafter=cascade", "drafter.model=toy", "drafter.inner=[oracle]"], True),
        (["drafter=router"], False),
        (["drafter=ngram"], False),
    ],
)
def test_every_report_says_that_it_is_synthetic(
    words: list[str], marked: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(compose(["target=toy", *words, "max_new_tokens=12", "prompt=abcab"]), output_dir=tmp_path)
    for name in ("manifest.json", "metrics.json"):
        assert json.loads((tmp_path / name).read_text())["synthetic"] is marked, name
    line = json.loads((tmp_path / "generations.jsonl").read_text().splitlines()[0])
    assert line["metrics"]["synthetic"] is marked
    assert ("synthetic" in capsys.readouterr().out) is marked
    watcher = _Marks()
    load(["target=toy", *words]).generate([1, 2, 3], max_new_tokens=9, observers=[watcher])
    assert set(watcher.seen) == {marked}


def test_one_synthetic_answer_marks_the_sum() -> None:
    total = Metrics()
    for synthetic in (False, True, False):
        total.add(Metrics(synthetic=synthetic))
    assert total.synthetic
    assert not Metrics().synthetic
    assert "synthetic" in one_line(total, "length")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["drafter.ranks=[0.5,0.2]"], r"drafter\.ranks=\[0\.5, 0\.2\] sum to 0\.7"),
        (["drafter.ranks=[]"], "give at least one"),
        (["drafter.rates=[]"], "give at least one"),
        (["drafter.rates=[1.5]"], r"drafter\.rates\[0\]=1\.5 is out of range; allowed 0 \.\. 1"),
        (["drafter.ranks=[0.25,0.25,0.25,0.125,0.125,0]"], "leaves at most 5"),
    ],
)
def test_mistakes(words: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load(["target=toy", "drafter=oracle", *words])


def test_it_gives_no_law() -> None:
    with pytest.raises(IncompatibleComponents, match="use accept=match"):
        load(["target=toy", "drafter=oracle", "accept=rejection"])
