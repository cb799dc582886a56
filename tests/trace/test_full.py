"""trace=full: the text is plain decoding's, and what it keeps is what the drafter gave."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from specframe import load
from specframe.compose import run_task
from specframe.compose.build import plan
from specframe.compose.overrides import compose
from specframe.drafter.base import DRAFTERS
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.task.replay.recorded import read_record
from specframe.testing.defaults import component
from specframe.testing.draft_checks import TableDrafter, builder, paths
from specframe.trace.full import FullTrace, OneToken
from specframe.tracing.traced_positions import ANSWERS_FILE, TracedAnswer
from specframe.tree.dynamic import Beams, DynamicTree
from specframe.types import Budget
from tests.small_models import Composition, decode, drafter_of, toy

TOY = ("target=toy", "max_new_tokens=16")
PROMPTS = ("abcab", "fedcba")


def record(folder: Path, *words: str, prompts: Sequence[str] = PROMPTS) -> Path:
    """Run the command with trace=full."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"turns": [one]}) + "\n" for one in prompts))
    told = {word.partition("=")[0] for word in words}
    plain = [word for word in TOY if word.partition("=")[0] not in told]
    given = [*plain, "trace=full", "task.stream=false", f"prompts={file}", *words]
    run_task.run(compose(given), output_dir=folder)
    return folder


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_that_of_no_draft(tmp_path: Path, temperature: float) -> None:
    words = ("drafter=lm", f"sampling.temperature={temperature}", "seed=3")
    answers = read_record(record(tmp_path, *words)).answers
    engine = load([*TOY, "drafter=none", *words[1:]])
    assert [one.tokens for one in answers] == [engine.generate(one).tokens for one in PROMPTS]
    held = [json.loads(line) for line in (tmp_path / "generations.jsonl").open()]
    assert [one["tokens"] for one in held] == [one.tokens for one in answers]
    assert {one["metrics"]["num_steps"] for one in held} == {15}


def test_every_position_holds_the_composed_tree_and_the_targets_law(tmp_path: Path) -> None:
    words = ("drafter=lm", "tree=dynamic", "tree.top_k=3", "tree.max_nodes=9", "tree.depth=4")
    (answer, _) = read_record(record(tmp_path, *words, "sampling.temperature=0.7")).answers
    engine = load([*TOY, *words, "sampling.temperature=0.7"])
    for place in answer.positions:
        loop = engine.decoding(max_new_tokens=answer.limit - len(place.context) + 1)
        loop.begin(place.context[:-1])
        loop.truncate(len(place.context) - 1, [place.context[-1]])
        with torch.inference_mode():
            draft = loop.propose()
        laws, known = place.recorded_laws, set(place.laws)
        assert known == {(), *paths(draft)}
        for path, row in place.laws.items():
            law = engine.components.target.law([*place.context, *path])  # type: ignore[attr-defined]
            law = (law / 0.7).softmax(-1)
            best = law.topk(6)
            assert torch.allclose(torch.from_numpy(laws.top[row]), best.values, atol=1e-6)
            assert laws.ids[row].tolist() == best.indices.tolist()
            if path:
                above = (engine.components.target.law([*place.context, *path[:-1]]) / 0.7).softmax(
                    -1
                )  # type: ignore[attr-defined]
                assert abs(laws.probs[row] - above[path[-1]].item()) < 1e-12


def test_top_k_and_the_tail(tmp_path: Path) -> None:
    folder = record(tmp_path, "drafter=lm", "trace.top_k=2", "sampling.temperature=1")
    for place in read_record(folder).answers[0].positions:
        laws = place.recorded_laws
        assert laws.ids.shape == (len(laws.nodes), 2)
        assert abs(laws.top.sum(-1) + laws.tail - 1).max() < 1e-6
        assert laws.tail.max() > 0


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("how", ["place", "coupled"])
def test_beams_draft_the_same_and_ask_for_all_smaller_ones(seed: int, how: Any) -> None:
    given = {"depth": 4, "top_k": 4, "max_nodes": 12, "proposal": how}
    whole, recorded = builder(how=how), builder(how=how)
    budget = Budget(rows=12, depth=4)
    DynamicTree(**given).grow(whole, TableDrafter(seed), budget)
    beams = DynamicTree(**given).for_trace()
    assert isinstance(beams, Beams)
    beams.grow(recorded, TableDrafter(seed), budget)
    assert paths(whole.build()) == paths(recorded.build())
    asked = _asked(recorded)
    assert len(asked) <= beams.max_expanded
    for top_k in range(1, 5):
        small = builder(how=how)
        DynamicTree(**{**given, "top_k": top_k}).grow(small, TableDrafter(seed), budget)
        assert _asked(small) <= asked


def _asked(made: Any) -> set[tuple[int, ...]]:
    """Paths of the living nodes that were expanded."""
    draft, known = made.build(), {0: ()}
    for call in draft.calls:
        for parent, nodes, tokens in zip(
            call.parents.tolist(), call.nodes.tolist(), call.tokens.tolist(), strict=True
        ):
            for node, token in zip(nodes, tokens, strict=True):
                if token >= 0 and parent in known:
                    known.setdefault(node, (*known[parent], token))
    parents = [node for call in draft.calls for node in call.parents.tolist()]
    return {known[node] for node in parents if node in known}


def test_a_plain_beam_would_not_do() -> None:
    """Without that, some smaller beam's nodes are missing in a wider one."""
    missing = 0
    for seed in range(40):
        wide = builder()
        DynamicTree(depth=4, top_k=4, max_nodes=12, proposal="place").grow(
            wide, TableDrafter(seed), Budget(rows=12, depth=4)
        )
        chain = builder()
        DynamicTree(depth=4, top_k=1, max_nodes=12, proposal="place").grow(
            chain, TableDrafter(seed), Budget(rows=12, depth=4)
        )
        missing += not _asked(chain) <= _asked(wide)
    assert missing


LEARNING = [name for name in DRAFTERS.names() if DRAFTERS.get(name).traits.learns]


def test_what_learns_from_passes_says_so() -> None:
    assert LEARNING == ["cascade", "layer_skip", "lookahead", "ouroboros", "recycling"]


@pytest.mark.parametrize("words", [("lookahead",), ("recycling",), ("router", "[ngram,recycling]")])
def test_drafters_that_learn_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    more = [f"drafter.sources={words[1]}"] if len(words) > 1 else []
    with pytest.raises(IncompatibleComponents, match=r"learns from the rows of every pass.*use"):
        record(tmp_path, f"drafter={words[0]}", *more)


def test_whole_branches_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IncompatibleComponents, match=r"use tree=dynamic"):
        record(tmp_path, "drafter=ngram", "tree=native")


def test_an_answer_that_was_cut_short_is_not_there_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, inner = [], TracedAnswer.write

    def failing(self: TracedAnswer, path: Path) -> None:
        seen.append(path)
        if len(seen) == 2:
            raise KeyboardInterrupt
        inner(self, path)

    monkeypatch.setattr(TracedAnswer, "write", failing)
    with pytest.raises(KeyboardInterrupt):
        record(tmp_path, "drafter=lm")
    assert len(read_record(tmp_path).answers) == 1
    before = (tmp_path / "positions" / "00000.npz").stat().st_mtime_ns
    record(tmp_path, "drafter=lm")
    assert len(read_record(tmp_path).answers) == 2
    assert (tmp_path / "positions" / "00000.npz").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match=r"made with seed=0, this run has 1"):
        record(tmp_path, "drafter=lm", "seed=1")
    with pytest.raises(ConfigError, match="answer 1 there is of another prompt"):
        record(tmp_path, "drafter=lm", prompts=("cab",))
    assert len((tmp_path / ANSWERS_FILE).read_text().splitlines()) == 2


def test_one_token_is_the_targets_own() -> None:
    rule = OneToken()
    composition = Composition(target=toy(), drafter=drafter_of("noisy", "toy"), accept=rule)
    outcome = decode(composition, (1, 2, 3), 12)
    assert outcome.tokens == decode(Composition(target=toy()), (1, 2, 3), 12).tokens
    assert outcome.num_accepted == 0
    assert len(outcome.records) == 11


def test_it_takes_the_words_of_its_file() -> None:
    assert isinstance(component("trace", "full"), FullTrace)
    made = plan(compose(["target=toy", "drafter=lm", "trace=full", "trace.top_k=4"]))
    assert made.bound["trace"].make().top_k == 4
