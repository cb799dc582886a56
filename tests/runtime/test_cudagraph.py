"""Captured work computes what is written: rehearsed on a CPU, within a graph's own limits."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe import load
from specframe.accept.base import AcceptRule
from specframe.accept.match import Match
from specframe.capture import wrappers
from specframe.capture.graphs import CapturedGraph, Graphs
from specframe.capture.purity import pure
from specframe.compose.build import plan
from specframe.compose.overrides import compose
from specframe.drafter.base import Drafter
from specframe.drafter.eagle import Eagle
from specframe.drafter.eagle3 import Eagle3
from specframe.drafter.medusa import Medusa
from specframe.drafter.mtp import MTP
from specframe.errors import ConfigError
from specframe.law.streams import Streams
from specframe.law.target_laws import Laws
from specframe.records import StepRecord
from specframe.runtime import cudagraph
from specframe.runtime.base import Runtime, Tensors
from specframe.runtime.cudagraph import CudaGraph, GraphLaunch
from specframe.session.engine import Engine
from specframe.target.hf import HF
from specframe.testing.defaults import component
from specframe.testing.host_reads import HostReads
from specframe.testing.runtimes import RuntimeContract
from specframe.types import Draft, How, Verdict
from tests.heads.small_heads import LAYERS, eagle3_net, eagle_net, mtp_net
from tests.heads.small_medusa_heads import medusa_net
from tests.runtime.rehearsal import Rehearsal, rehearsed
from tests.small_models import (
    CACHE_MAKERS,
    CPU,
    LONG_PROMPT,
    PROMPT,
    RUNTIME,
    Composition,
    Outcome,
    decode,
    draft,
    drafter_of,
    lm_of,
    model,
    raw,
    sampling_config,
    tree_of,
)

Rule = tuple[str, How, float]  # word, how nodes are made, temperature

TEXTS = ((PROMPT, 8), (LONG_PROMPT, 7), (PROMPT, 8))
DRAFTERS = ("none", "ngram", "lm", "medusa", "eagle", "eagle3", "mtp")
RULES: tuple[Rule, ...] = (
    ("match", "place", 0.0),
    ("match", "coupled", 1.0),
    ("rejection", "place", 0.9),
    ("rejection", "wor", 0.8),
    ("match", "iid", 0.9),
    ("typical", "place", 0.0),
    ("typical", "iid", 0.7),
)
PARTS = ("tokens", "parents", "alive", "depths", "origin", "row_of", "slots")


def drafter_on(kind: str, target: HF, runtime: Runtime, cache: str) -> Drafter:
    """A drafter of a kind on a runtime, with a random head if it has one."""
    given: dict[str, Any] = {"target": target, "runtime": runtime}
    if kind == "medusa":
        return Medusa.of(medusa_net(), **given)
    if kind == "lm":
        small = model("llama")
        small.load_state_dict(draft("llama", "noisy").model.state_dict())
        return lm_of(HF.of(small, runtime=runtime), target, cache, launch=runtime.launch)
    if kind not in ("eagle", "eagle3", "mtp"):
        return drafter_of(kind, "llama", cache)
    given["cache"] = CACHE_MAKERS[cache](launch=runtime.launch)
    if kind == "eagle":
        return Eagle.of(eagle_net(), **given)
    if kind == "eagle3":
        return Eagle3.of(eagle3_net(), layers=LAYERS, **given)
    return MTP.of(mtp_net(modules=2), **given)


def composed(
    kind: str, tree: str, rule: Rule, cache: str, runtime: Runtime, **sampling: Any
) -> Composition:
    """Everything on one runtime, over a model of its own."""
    word, how, temperature = rule
    target = HF.of(copy.deepcopy(raw("llama")), runtime=runtime)
    return Composition(
        target=target,
        drafter=drafter_on(kind, target, runtime, cache),
        tree=tree_of(tree, how),
        accept=component("accept", word),
        cache=CACHE_MAKERS[cache](launch=runtime.launch),
        runtime=runtime,
        how=how,
        sampling=sampling_config(temperature, **sampling),
    )


def outcomes(made: Composition) -> Iterator[Outcome]:
    """Several texts of different lengths by one set of components."""
    for sequence, (prompt, count) in enumerate(TEXTS):
        # `Counting` draws for levels that it then gives up, and again at the next step.
        yield decode(made, prompt, count, sequence=sequence, checked=False)


def same(one: Outcome, other: Outcome) -> bool:
    """The same text by the same drafts, laws and paths."""
    if one.tokens != other.tokens or len(one.records) != len(other.records):
        return False
    for mine, theirs in zip(one.records, other.records, strict=True):
        if mine.path != theirs.path or len(mine.draft.calls) != len(theirs.draft.calls):
            return False
        pairs: list[tuple[Tensor | None, Tensor | None]] = [(mine.out.logits, theirs.out.logits)]
        pairs += [(getattr(mine.draft, name), getattr(theirs.draft, name)) for name in PARTS]
        calls = zip(mine.draft.calls, theirs.draft.calls, strict=True)
        pairs += [(call.law, twin.law) for call, twin in calls]
        pairs.append((known(mine, one), known(theirs, other)))
        if not all(is_close(a, b) for a, b in pairs):
            return False
    return True


def known(record: StepRecord, outcome: Outcome) -> Tensor:
    """By the laws that the rule asked for; a captured rule asked out of sight, and asks again."""
    rule, laws = outcome.loop.components.accept, record.laws
    assert isinstance(laws, Laws)
    if laws.is_empty:
        assert isinstance(rule, wrappers.CapturedRule)
        rule.rule.decide(record.draft, laws, outcome.loop.lane.rng)
    return laws.known()


def is_close(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and torch.allclose(one, other, equal_nan=True)


def equal(mine: Composition, theirs: Composition) -> bool:
    """Whether all texts came about alike."""
    pairs = zip(outcomes(mine), outcomes(theirs), strict=True)
    return all(same(one, other) for one, other in pairs)


def launch_of(runtime: Runtime) -> GraphLaunch:
    assert isinstance(runtime.launch, GraphLaunch)
    return runtime.launch


def rehearsal_of(runtime: Runtime) -> Rehearsal:
    capturer = launch_of(runtime).capturer
    assert isinstance(capturer, Rehearsal)
    return capturer


def cases() -> list[Any]:
    """(drafter, tree, rule, cache) that go together; a rule in turn of every third pair is fast."""
    found: list[Any] = []
    turn = 0
    for kind in DRAFTERS:
        for tree in ("chain", "static", "dynamic"):
            fit = [rule for rule in RULES if fits(kind, tree, rule)]
            for place, rule in enumerate(fit):
                chosen = turn % 3 == 0 and place == turn % len(fit)
                cache = ("static", "dynamic")[(turn + place) % 2]
                marks = () if chosen else (pytest.mark.slow,)
                found.append(pytest.param(kind, tree, rule, cache, marks=marks))
            turn += 1
    return found


def fits(kind: str, tree: str, rule: Rule) -> bool:
    word, how, _ = rule
    if how == "place":
        return True
    return kind not in ("none", "ngram") and (tree != "dynamic" or word == "match")


@pytest.mark.parametrize(("kind", "tree", "rule", "cache"), cases())
def test_replays_are_what_is_written(kind: str, tree: str, rule: Rule, cache: str) -> None:
    runtime = rehearsed()
    assert equal(
        composed(kind, tree, rule, cache, runtime), composed(kind, tree, rule, cache, RUNTIME)
    )
    assert rehearsal_of(runtime).replays > 12
    assert not launch_of(runtime)._refused


EAGLE: tuple[str, str, Rule, str] = ("eagle", "static", ("match", "coupled", 1.0), "static")


def test_warm_up_is_bounded_and_addresses_stay() -> None:
    runtime = rehearsed(warmup=2)
    made, capturer = composed(*EAGLE, runtime), rehearsal_of(runtime)
    for _ in range(4):  # buffers reach their size in the first
        list(outcomes(made))
    known, warmed = len(capturer.made), capturer.warmed
    places = [[one.data_ptr() for one in graph.inputs] for graph in capturer.made]
    list(outcomes(made))
    assert (len(capturer.made), capturer.warmed) == (known, warmed)
    assert places == [[one.data_ptr() for one in graph.inputs] for graph in capturer.made]
    assert warmed <= 2 * len(launch_of(runtime)._calls)
    # Verify pass, its rows, the draft, the decision: one launch each; feeding what was accepted.
    before, loop = capturer.replays, made.decoding(10)
    loop.begin(PROMPT, sequence=0)
    loop.step()
    assert capturer.replays - before <= 6


def test_a_full_house_runs_the_rest_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    cudagraph._say.cache_clear()
    runtime = rehearsed(max_graphs=3)
    assert equal(composed(*EAGLE, runtime), composed(*EAGLE, RUNTIME))
    assert launch_of(runtime).num_graphs == 3
    assert capsys.readouterr().err.count("runtime.max_graphs=3 are kept") == 1


def test_buffers_that_are_gone_make_room() -> None:
    runtime = rehearsed(max_graphs=1)
    for size in (3, 4, 5):
        buffers = (torch.zeros(size),)
        for _ in range(3):
            runtime.launch.wrap(add, ("add", size))((torch.ones(()),), buffers)
        assert launch_of(runtime).num_graphs == 1
        assert buffers[0].tolist() == [3.0] * size
        rehearsal_of(runtime).made.clear()


@pytest.mark.slow
def test_what_is_forgotten_keeps_nothing_alive() -> None:
    runtime = rehearsed()
    made = composed(*EAGLE, runtime)
    list(outcomes(made))
    gone = [weakref.ref(one) for one in (made.drafter, made.tree, made.accept)]
    assert launch_of(runtime).num_graphs > 0
    del made
    gc.collect()
    assert all(one() is not None for one in gone)
    launch_of(runtime).forget()
    rehearsal_of(runtime).__init__()  # type: ignore[misc]
    gc.collect()
    assert not any(one() is not None for one in gone)
    assert launch_of(runtime).num_graphs == 0
    assert equal(composed(*EAGLE, runtime), composed(*EAGLE, RUNTIME))


def add(inputs: Tensors, buffers: Tensors) -> Tensors:
    buffers[0].add_(inputs[0])
    return ()


@pytest.mark.parametrize("kind", ["eagle", "lm"])
def test_going_back(kind: str) -> None:
    texts = []
    for runtime in (rehearsed(), RUNTIME):
        made = composed(kind, "static", ("match", "place", 0.0), "dynamic", runtime)
        list(outcomes(made))
        loop = made.decoding(24)
        loop.begin(PROMPT)
        for _ in range(4):
            loop.step()
        loop.truncate(len(PROMPT) + 2, tail=[9, 11, 13])
        while loop.finish_reason is None:
            loop.step()
        texts.append(loop.context.tokens)
    assert texts[0] == texts[1]


def test_what_depends_on_the_path_is_not_captured() -> None:
    rule, runtime = ("match", "place", 0.8), rehearsed()
    more = {"repetition_penalty": 1.4}
    assert equal(
        composed("medusa", "static", rule, "static", runtime, **more),
        composed("medusa", "static", rule, "static", RUNTIME, **more),
    )
    assert not [
        key for key in launch_of(runtime)._calls if isinstance(key, tuple) and rule[0] in str(key)
    ]


@pytest.mark.parametrize(
    ("kind", "tree"), [("none", "chain"), ("medusa", "static"), ("eagle", "dynamic")]
)
def test_one_read_a_step(kind: str, tree: str) -> None:
    """While warming up, while capturing, and afterwards."""
    made = composed(kind, tree, ("match", "place", 0.7), "static", rehearsed())
    for prompt, count in TEXTS:
        loop, reads = made.decoding(count), HostReads()
        loop.begin(prompt)
        while loop.finish_reason is None:
            reads.seen.clear()
            with reads.counting():
                loop.step()
            assert len(reads.seen) == 1, reads.seen


# What must be caught.


def test_control_a_position_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    def frozen(device: torch.device, position: int, sequence: int) -> list[Tensor]:
        return [torch.full((), 9), torch.full((), sequence)]

    def within(verb: Any) -> Any:
        def run(*given: Any) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(wrappers, "_counters", frozen)
                return verb(*given)

        return run

    theirs = composed(*EAGLE, RUNTIME)
    for kind, verb in ((wrappers.CapturedRule, "decide"), (wrappers.CapturedTree, "_grown")):
        with monkeypatch.context() as patch:
            patch.setattr(kind, verb, within(getattr(kind, verb)))
            assert not equal(composed(*EAGLE, rehearsed()), theirs)


@pure
class Counting(Match):
    """Says that it keeps nothing, and yet every fourth decision rejects all."""

    calls = 0

    def decide(self, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        self.calls += 1
        verdict = super().decide(draft, laws, rng)
        if self.calls % 4:
            return verdict
        tokens = torch.where(torch.arange(draft.depth + 1) == 0, verdict.tokens, -1)
        return Verdict(path=verdict.path * 0 - 1, tokens=tokens, count=(tokens >= 0).sum(1))


def test_control_a_number_of_the_host() -> None:
    def made(runtime: Runtime) -> Composition:
        one = composed("lm", "chain", ("match", "place", 0.0), "static", runtime)
        one.accept = Counting()
        return one

    assert equal(made(RUNTIME), made(RUNTIME))
    assert not equal(made(rehearsed()), made(RUNTIME))


def test_control_a_buffer_that_moved() -> None:
    runtime = rehearsed()
    wrapped = runtime.launch.wrap(add, "add")
    first, second = torch.zeros(2), torch.zeros(2)
    for _ in range(3):
        wrapped((torch.ones(()),), (first,))
    wrapped((torch.ones(()),), (second,))
    assert (first.tolist(), second.tolist()) == ([3.0, 3.0], [1.0, 1.0])
    assert launch_of(runtime).num_graphs == 2
    # A graph itself knows its own buffers only.
    rehearsal_of(runtime).made[0]((torch.ones(()),))
    assert first.tolist() == [4.0, 4.0]
    # A runtime that trusted the key alone would write to the wrong ones.
    launch = launch_of(runtime)
    launch._captured = {
        ("add", ((second.data_ptr(), second.shape),)): next(iter(launch._captured.values()))
    }
    wrapped((torch.ones(()),), (second,))
    assert second.tolist() == [1.0, 1.0]


def test_control_outputs_that_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = CapturedGraph.__call__

    def shared(self: CapturedGraph, inputs: Tensors) -> Tensors:
        inner(self, inputs)
        return self.outputs

    monkeypatch.setattr(CapturedGraph, "__call__", shared)
    with pytest.raises((AssertionError, ConfigError, IndexError, RuntimeError)):
        assert equal(composed(*EAGLE, rehearsed()), composed(*EAGLE, RUNTIME))


@pure
class Nosy(Match):
    """Reads its own verdict."""

    def decide(self, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        verdict = super().decide(draft, laws, rng)
        assert int(verdict.count) > 0
        return verdict


@pure
class Made(Match):
    """Makes a tensor of the host's numbers."""

    def decide(self, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        verdict = super().decide(draft, laws, rng)
        verdict.tokens.add_(torch.tensor(0))
        return verdict


class Unsaid(Counting):
    """Inherits what its parent said of itself."""


def test_a_subclass_must_say_so_itself() -> None:
    made, theirs = composed(*EAGLE, rehearsed()), composed(*EAGLE, RUNTIME)
    made.accept, theirs.accept = Unsaid(), Unsaid()
    assert equal(made, theirs)


@pytest.mark.parametrize("rule", [Nosy, Made])
def test_what_waits_for_the_device_runs_as_written(
    rule: type[AcceptRule], capsys: pytest.CaptureFixture[str]
) -> None:
    cudagraph._say.cache_clear()
    runtime = rehearsed()
    made, theirs = composed(*EAGLE, runtime), composed(*EAGLE, RUNTIME)
    made.accept = rule()
    assert equal(made, theirs)
    assert all(
        isinstance(key, tuple) and key[0] is made.accept for key in launch_of(runtime)._refused
    )
    err = capsys.readouterr().err
    assert err.count("waits for the device") == 1
    assert "such passes run as eager" in err


# Where there is nothing to capture on.


def test_without_a_device_it_says_so_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cudagraph._say.cache_clear()
    made = [component("runtime", "cudagraph") for _ in range(2)]
    assert capsys.readouterr().err == (
        "specframe: runtime=cudagraph: no CUDA device here; running as eager\n"
    )
    launch = launch_of(made[0])
    assert launch.wrap(add, "add") is add
    assert not launch.captures
    assert launch.columns(5, 300) == 5


def test_reasons_name_the_devices() -> None:
    graphs, here, other = Graphs(), torch.zeros(1), torch.zeros(1, device="meta")
    assert graphs.refusal([here]) == "no CUDA graph on cpu"
    reason = graphs.refusal([here, other])
    assert reason == "a pass over several devices (cpu, meta) is no CUDA graph"


def test_tensors_of_another_device_run_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    cudagraph._say.cache_clear()
    runtime = rehearsed()
    launch_of(runtime).capturer = Graphs()
    assert equal(composed(*EAGLE, runtime), composed(*EAGLE, RUNTIME))
    assert capsys.readouterr().err.count("no CUDA graph on cpu; running as eager") == 1
    assert launch_of(runtime).num_graphs == 0


def test_widths_are_few() -> None:
    launch = launch_of(rehearsed(columns=16))
    widths = {launch.columns(needed, 100) for needed in range(1, 101)}
    assert widths == {16, 32, 64, 100}


class TestRehearsed(RuntimeContract):
    """The suite of all runtimes, captured."""

    word = "cudagraph"

    @pytest.fixture(autouse=True)
    def _rehearse(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cudagraph, "_capturer", Rehearsal)


# A CUDA device chooses it.


@contextmanager
def on(device: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr("specframe.compose.build.device_of", lambda name: torch.device(device))
        yield


@pytest.mark.parametrize(
    ("words", "device", "expected"),
    [
        ([], "cuda", "cudagraph"),
        ([], "cuda:1", "cudagraph"),
        ([], "cpu", "packed"),
        (["runtime.weights=bfloat16"], "cuda", "cudagraph"),
        (["runtime.cuda=null"], "cuda", "packed"),
        (["runtime.cuda=eager"], "cuda", "eager"),
        (["runtime=eager"], "cuda", "eager"),
        (["runtime=cudagraph"], "cpu", "cudagraph"),
    ],
)
def test_the_device_chooses(
    words: Sequence[str], device: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on(device, monkeypatch):
        made = plan(compose(["target=toy", "drafter=ngram", *words]))
    assert made.config["runtime"]["name"] == made.bound["runtime"].word == expected
    assert made.device == torch.device(device)


def test_shared_keys_go_along(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["target=toy", "drafter=ngram"]
    with on("cuda", monkeypatch):
        own = plan(compose(words)).config["runtime"]
        given = plan(compose([*words, "runtime.buckets=[3,9]"])).config["runtime"]
        with pytest.raises(
            ConfigError, match=r"runtime\.cuda=cudagrph: no such runtime; use .*eag"
        ):
            plan(compose([*words, "runtime.cuda=cudagrph"]))
    assert own["buckets"][0] == 1
    assert given == own | {"buckets": [3, 9]}
    assert "weights" not in given


# With a device.


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["none", "ngram", "medusa", "eagle", "eagle3", "mtp"])
@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
def test_graphs_are_what_is_written(kind: str, tree: str) -> None:
    runs = []
    for runtime in (component("runtime", "cudagraph"), RUNTIME):
        target = HF.of(copy.deepcopy(raw("llama")).to("cuda"), runtime=runtime)
        made = Composition(
            target=target,
            drafter=drafter_on(kind, target, runtime, "static"),
            tree=tree_of(tree),
            cache=CACHE_MAKERS["static"](launch=runtime.launch),
            runtime=runtime,
            sampling=sampling_config(0.8),
        )
        runs.append([one.tokens for _ in range(2) for one in outcomes(made)])
        if isinstance(runtime, CudaGraph):
            assert launch_of(runtime).num_graphs >= 3
            assert not launch_of(runtime)._refused
    assert runs[0] == runs[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_broken_capture_leaves_the_device_usable() -> None:
    runtime = component("runtime", "cudagraph")

    def reading(inputs: Tensors, buffers: Tensors) -> Tensors:
        return (inputs[0] + int(inputs[0].sum()),)

    def double(inputs: Tensors, buffers: Tensors) -> Tensors:
        return (2 * inputs[0],)

    ones = torch.ones(3, device="cuda")
    for _ in range(5):
        assert runtime.launch.wrap(reading, "reading")((ones,), ())[0].tolist() == [4.0] * 3
        (doubled,) = runtime.launch.wrap(double, "double")((ones,), ())
        assert doubled.tolist() == [2.0] * 3
    assert (launch_of(runtime).num_graphs, len(launch_of(runtime)._refused)) == (1, 1)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_a_run_by_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudagraph, "_capturer", Rehearsal)
    words = ["target=toy", "drafter=lm", "tree=dynamic", "sampling.temperature=0.8"]
    plain = load([*words, "runtime=eager"])
    engine = load([*words, "runtime=cudagraph"])
    prompts = ((1, 2, 3, 1, 2), (4, 0, 4), (1, 2, 3, 1, 2))
    for sequence, prompt in enumerate(prompts):
        assert engine.generate(prompt, sequence=sequence) == plain.generate(
            prompt, sequence=sequence
        )
    assert engine.components.target.device == CPU


@pytest.mark.parametrize("rule", [("match", "coupled", 1.0), ("rejection", "iid", 1.0)])
def test_a_graph_of_one_seed_is_never_replayed_for_another(rule: Rule) -> None:
    first, plain = (
        composed("medusa", "static", rule, "static", each).engine()
        for each in (rehearsed(), RUNTIME)
    )

    def drafts_and_text(made: Engine, seed: int) -> tuple[list[Any], list[int]]:
        watcher = Drafts()
        engine = Engine(made.components, replace(made.settings, seed=seed))
        text = engine.generate(PROMPT, max_new_tokens=20, observers=[watcher]).tokens
        return watcher.tokens, text

    for seed in (0, 7):
        for _ in range(2):
            assert drafts_and_text(first, seed) == drafts_and_text(plain, seed)


class Drafts:
    """The live drafted tokens of every step."""

    def __init__(self) -> None:
        self.tokens: list[list[int]] = []

    def observe(self, record: StepRecord) -> None:
        draft = record.draft
        self.tokens.append(draft.tokens[draft.alive].tolist())
