"""trace=steps: what it writes is what happened, in the file while it happens."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from specframe import load
from specframe.compose import run_task
from specframe.compose.build import plan
from specframe.compose.overrides import compose
from specframe.errors import IncompatibleComponents
from specframe.law.target_laws import Laws
from specframe.records import StepRecord
from specframe.runtime import cudagraph
from specframe.task.base import TASKS
from specframe.task.generate import Generate
from specframe.testing.host_reads import HostReads
from specframe.trace.base import TracedPrompt
from specframe.trace.steps import TRACE_FILE, StepTrace, _Lines
from tests.commands import job_of
from tests.runtime.rehearsal import Rehearsal
from tests.small_models import Composition, stop_config, toy
from tests.test_syncs import compose as composed
from tests.test_syncs import declared, read_in, watch

TOY = ("target=toy", "max_new_tokens=24", "seed=7")  # explanations toss the same coins again
ASKED = TracedPrompt(
    number=3,
    id="x",
    category="qa",
    prompt="abcab",
    prompt_tokens=[0, 1, 2, 0, 1],
    sequence=5,
)
METHODS = [
    ("drafter=lm", "tree=dynamic"),
    ("drafter=lm", "tree=chain", "accept=rejection", "sampling.temperature=1"),
    ("drafter=lm", "tree=static", "accept=rejection", "sampling.temperature=1"),
    (
        "drafter=lm",
        "tree=static",
        "accept=rejection",
        "tree.proposal=iid",
        "sampling.temperature=1",
    ),
    ("drafter=lm", "tree=dynamic", "accept=typical"),
    ("drafter=lm", "tree=static", "accept=typical", "sampling.temperature=0.7"),
    ("drafter=ngram", "tree=native", "sampling.temperature=0.5"),
    ("drafter=router", "drafter.mode=merge", "tree=dynamic", "sampling.repetition_penalty=1.2"),
    ("drafter=lookahead", "tree=dynamic"),
    ("drafter=none", "tree=chain"),
]


class Kept:
    """Watches beside the trace."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []

    def observe(self, record: StepRecord) -> None:
        self.records.append(record)


def traced(
    folder: Path, words: Sequence[str], *, softmax: bool = True
) -> tuple[list[dict[str, Any]], list[StepRecord], list[int]]:
    """Lines of one answer, its records, and its tokens."""
    engine, kept = load([*TOY, *words]), Kept()
    with StepTrace(softmax=softmax).open(engine, folder, {}) as recorder:
        watchers = [kept, *recorder.begin(ASKED)]
        made = engine.generate(ASKED.prompt_tokens, sequence=ASKED.sequence, observers=watchers)
        recorder.end(made, {"prefill_s": 0.25, "num_steps": len(kept.records)})
    return lines(folder), kept.records, made.tokens


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / TRACE_FILE).read_text(encoding="utf-8")
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


@pytest.mark.parametrize("words", METHODS, ids=" ".join)
def test_a_line_a_step_says_what_happened(tmp_path: Path, words: tuple[str, ...]) -> None:
    (answer, *steps, end), records, tokens = traced(tmp_path, words)
    assert (answer["kind"], answer["answer"], answer["id"]) == ("answer", 3, "x")
    assert answer["prompt_tokens"] == list(ASKED.prompt_tokens)
    assert answer["prefill_ms"] > 0
    assert (end["kind"], end["finish_reason"], end["metrics"]["prefill_s"]) == (
        "end",
        "length",
        0.25,
    )
    emitted = [token for step in steps for token in step["emitted"]]
    assert answer["tokens"] + emitted == tokens
    texts = answer["texts"] + [text for step in steps for text in step["emitted_texts"]]
    assert "".join(texts) == end["text"]
    assert [step["step"] for step in steps] == list(range(len(records)))
    root = answer["tokens"][0]
    for step, record in zip(steps, records, strict=True):
        check(step, record)
        assert step["tokens"][0] == root
        root = step["emitted"][-1]


def check(step: dict[str, Any], record: StepRecord) -> None:
    """One line against the record that it was made of."""
    draft, aux = record.draft, record.draft.aux
    live = [row for row in range(draft.num_rows) if draft.alive[row]]
    assert step["tokens"] == draft.tokens[live].tolist()
    above = [live.index(parent) if parent >= 0 else -1 for parent in draft.parents[live].tolist()]
    assert step["parents"] == above
    assert step["rows"] == draft.num_rows + (0 if aux is None else len(aux.tokens))
    keys = ("texts", "parents", "target_probs", "target_softmax", "draft_probs", "sources", "why")
    assert {len(step[key]) for key in keys} == {len(live)}
    accepted = [row for row in record.verdict.path[0].tolist() if row >= 0][: record.num_accepted]
    assert [live[place] for place in step["path"]] == accepted
    assert step["num_accepted"] == record.num_accepted == len(step["path"])
    assert step["emitted"] == record.tokens
    assert set(step["ms"]) == {"draft", "verify", "accept", "commit", "host"}
    assert step["ms"]["host"] >= 0 <= step["trace_ms"]
    why, path = step["why"], {0, *step["path"]}
    assert why[0] is None
    for place in range(1, len(live)):
        assert (why[place] == "accepted") == (place in path)
        if step["parents"][place] in path and not record.was_cut:
            assert why[place] not in ("refused", "not reached"), "the rule has words for it"


def test_probabilities_are_those_of_the_laws(tmp_path: Path) -> None:
    words = ("drafter=lm", "tree=static", "accept=rejection", "sampling.temperature=0.8")
    (_, *steps, _), _, tokens = traced(tmp_path, words)
    engine, seen = load([*TOY, *words]), 0
    target, model = engine.components.target, engine.components.drafter.model  # type: ignore[attr-defined]
    text = [*ASKED.prompt_tokens, tokens[0]]
    for step in steps:
        for place, parent in enumerate(step["parents"][1:], start=1):
            path, node = [], parent
            while node > 0:
                path.append(step["tokens"][node])
                node = step["parents"][node]
            prefix, token = [*text, *path[::-1]], step["tokens"][place]
            law = target.law(prefix)  # type: ignore[attr-defined]
            assert math.isclose(
                step["target_softmax"][place], law.exp()[token].item(), rel_tol=1e-5
            )
            q = (model.law(prefix) / 0.8).softmax(-1)[token].item()
            assert math.isclose(step["draft_probs"][place], q, rel_tol=1e-5)
            if parent in (0, *step["path"]):
                p = (law / 0.8).softmax(-1)[token].item()
                assert math.isclose(step["target_probs"][place], p, rel_tol=1e-5)
                seen += 1
            else:
                assert step["target_probs"][place] is None, "no law is made for the trace alone"
        text += step["emitted"]
    assert seen > 20


def test_sources_and_what_has_no_probability(tmp_path: Path) -> None:
    merged = ("drafter=router", "drafter.mode=merge", "tree=dynamic")
    (_, *steps, _), _, _ = traced(tmp_path, merged)
    assert {one for step in steps for one in step["sources"][1:]} == {"ngram", "lm"}
    (_, *steps, _), _, _ = traced(tmp_path, ("drafter=ngram", "tree=native"), softmax=False)
    nodes = [(step, place) for step in steps for place in range(1, len(step["tokens"]))]
    assert {step["sources"][place] for step, place in nodes} == {"ngram"}
    assert {step["draft_probs"][place] for step, place in nodes} == {None}
    assert {step["target_softmax"][place] for step, place in nodes} == {None}
    assert {step["target_probs"][place] for step, place in nodes} == {None, 0.0, 1.0}


def test_a_stop_cuts(tmp_path: Path) -> None:
    engine = Composition(target=toy(), drafter=load([*TOY, "drafter=lm"]).components.drafter)
    text = engine.engine(24).generate([0, 1, 2]).tokens
    found = 0
    for stop in set(text):
        engine.stop = stop_config(eos=[stop])
        made = engine.engine(24)
        with StepTrace(softmax=False).open(made, tmp_path, {}) as recorder:
            answer = made.generate([0, 1, 2], observers=recorder.begin(ASKED))
            recorder.end(answer, {"prefill_s": 0.0})
        *_, last, end = lines(tmp_path)
        assert end["finish_reason"] == "eos"
        if last["kind"] == "step" and last["was_cut"]:
            assert last["finish_reason"] == "eos"
            assert last["num_accepted"] == len(last["path"]) == len(last["emitted"])
            found += "cut by stop" in last["why"]
    assert found


def test_a_killed_run_keeps_its_lines(tmp_path: Path) -> None:
    engine = load([*TOY, "drafter=lm"])
    recorder = StepTrace(softmax=True).open(engine, tmp_path, {})
    loop = engine.decoding(observers=recorder.begin(ASKED))
    loop.begin(ASKED.prompt_tokens)
    for done in range(3):
        loop.step()
        kinds = [line["kind"] for line in lines(tmp_path)]
        assert kinds == ["answer", *["step"] * done], "the step before is on the disk"
    recorder.close()
    assert [line["kind"] for line in lines(tmp_path)] == ["answer", *["step"] * 3]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    ("drafter", "tree", "rule", "how"),
    [
        ("noisy", "dynamic", "match", "place"),
        ("noisy", "static", "rejection", "wor"),
        ("ngram", "chain", "typical", "place"),
    ],
)
def test_it_reads_once_a_step(
    drafter: str,
    tree: str,
    rule: str,
    how: Any,
    temperature: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.small_models import sampling_config

    given = composed("toy", drafter, tree, rule, how, sampling=sampling_config(temperature))
    reads = HostReads()
    watch(reads, given.target, given.cache, monkeypatch)
    with StepTrace(softmax=True).open(given.engine(), tmp_path, {}) as recorder:
        loop = given.decoding(16, recorder.begin(ASKED))
        for seen in read_in(loop, reads, (1, 2, 1, 2)):
            assert len(seen) == declared(given, loop) + StepTrace.host_reads, seen


def test_through_the_command(tmp_path: Path) -> None:
    words = ["drafter=lm", "trace=steps", "max_new_tokens=6", "target=toy", "prompt=abca"]
    run_task.run(compose(words), output_dir=tmp_path)
    held = lines(tmp_path)
    assert [line["kind"] for line in held][:: len(held) - 1] == ["answer", "end"]
    assert held[0]["prompt"] == "abca"
    (line,) = (tmp_path / "generations.jsonl").read_text(encoding="utf-8").splitlines()
    assert held[-1]["text"] == json.loads(line)["text"]
    assert held[-1]["metrics"] == json.loads(line)["metrics"]


def test_several_answers_and_one_that_cannot_be_given(tmp_path: Path) -> None:
    engine = load([*TOY, "drafter=lm", "target.max_positions=20"])
    prompts = tmp_path / "p.jsonl"
    long = "a" * 30
    turns = [["ab"], [long], ["ba"]]
    prompts.write_text("".join(json.dumps({"turns": one}) + "\n" for one in turns))
    job = job_of(engine, tmp_path, prompts=prompts, trace=StepTrace(softmax=False))
    assert Generate(stream=True, colour="never", show_rejected="auto").run(job) == 1
    assert [line["answer"] for line in lines(tmp_path) if line["kind"] == "end"] == [0, 2]
    assert [line["prompt"] for line in lines(tmp_path) if line["kind"] == "answer"] == ["ab", "ba"]


def test_one_token_has_no_step(tmp_path: Path) -> None:
    engine = load([*TOY, "drafter=lm"])
    with StepTrace(softmax=False).open(engine, tmp_path, {}) as recorder:
        made = engine.generate([1, 2], max_new_tokens=1, observers=recorder.begin(ASKED))
        recorder.end(made, {"prefill_s": 0.5})
    answer, end = lines(tmp_path)
    assert (answer["tokens"], answer["prefill_ms"], end["text"]) == (made.tokens, 500.0, made.text)


@pytest.mark.parametrize("task", [name for name in TASKS.names() if not TASKS.get(name).can_trace])
def test_what_is_measured_is_never_traced(task: str) -> None:
    words = ["target=toy", "drafter=lm", "trace=steps", f"task={task}"]
    given = {"train": "task.answers=x.jsonl", "replay": "task.trace=x", "report": "task.runs=x"}
    words += [given[task]] if task in given else []
    with pytest.raises(IncompatibleComponents, match=r"trace=steps: .*use task=generate"):
        plan(compose(words))


def test_nothing_large_is_kept_past_a_step(tmp_path: Path) -> None:
    """A record's tensors live until the next pass: what waits to be written has none of them."""
    engine = load([*TOY, "drafter=lm"])
    recorder: Any = StepTrace(softmax=True).open(engine, tmp_path, {})
    loop = engine.decoding(observers=recorder.begin(ASKED))
    loop.begin(ASKED.prompt_tokens)
    record = loop.step()
    left = recorder._pending
    held = [one for one in vars(left).values() if isinstance(one, torch.Tensor)]
    for one in (record.draft.tokens, record.out.logits, record.verdict.path):
        assert all(one.data_ptr() != mine.data_ptr() for mine in held)
    recorder.close()


def test_a_captured_rule_leaves_the_same_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replays make the laws out of sight, so the trace asks the rule itself for them."""
    monkeypatch.setattr(cudagraph, "_capturer", Rehearsal)
    asked_again: list[bool] = []
    gathered = _Lines._gathered

    def watched(self: _Lines, record: StepRecord) -> Any:
        assert isinstance(record.laws, Laws)
        asked_again.append(record.laws.is_empty)
        return gathered(self, record)

    monkeypatch.setattr(_Lines, "_gathered", watched)
    words = ("drafter=lm", "tree=static", "accept=rejection", "sampling.temperature=0.8")
    written = []
    for runtime in ("eager", "cudagraph"):
        found, _, _ = traced(tmp_path, (*words, f"runtime={runtime}"))
        written.append([line | dict.fromkeys(("ms", "trace_ms", "prefill_ms")) for line in found])
    steps = len(written[0]) - 2
    assert not any(asked_again[:steps]) and any(asked_again[steps:])
    assert any(step["target_probs"][1] for step in written[0][1:-1])
    # The last step has less room, and a captured tree keeps its size.
    assert written[0][:-2] == written[1][:-2]
