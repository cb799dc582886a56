"""task=benchmark: numbers that can be worked out again, resumption, exact texts, quality bills."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from specframe.compose.build import plan
from specframe.compose.overrides import compose
from specframe.errors import ConfigError
from specframe.measure.meter import Meter
from specframe.measure.metrics import Metrics
from specframe.task.base import Job
from specframe.task.benchmark import Benchmark
from specframe.task.benchmark import sides as sides_module
from specframe.task.benchmark.quality import agreement, final_number, mean_logprob, number_is_right
from specframe.task.benchmark.sides import BASELINE, METHOD, Side, sides
from tests.turns import rest_slow

LINES = (
    {"id": 1, "category": "one", "prompt": "abcab"},
    {"id": 2, "category": "two", "turns": ["dead", "beef", "ad"]},
    {"id": 3, "category": "one", "prompt": "f"},
    {"id": 4, "category": "two", "prompt": "abc"},
)
TOY = ("target=toy", "drafter=lm", "tree=dynamic", "max_new_tokens=12", "seed=3")
ROWS, SUMMARY = "rows.jsonl", "metrics.json"


def task(**given: Any) -> Benchmark:
    values: dict[str, Any] = {
        "baseline": True,
        "reference": None,
        "rounds": 1,
        "warmup": 1,
        "per_category": None,
        "split": False,
        "run_code": False,
        "compare": None,
        "passes": None,
        "batch_sizes": None,
        "resamples": 100,
        "confidence": 0.95,
    }
    return Benchmark(**{**values, **given})


def job(folder: Path, *words: str, lines: Sequence[dict[str, Any]] = LINES) -> Job:
    folder.mkdir(parents=True, exist_ok=True)
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")

    def rebuild(more: Any) -> Any:
        raise AssertionError("nothing is composed again")

    given = {word.partition("=")[0] for word in words}
    kept = [word for word in TOY if word.partition("=")[0] not in given]
    made = plan(compose([*kept, *words]))
    return Job(
        engine=made.load(),
        config=made.config,
        output_dir=folder,
        prompt=None,
        prompts=prompts,
        rebuild=rebuild,
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / ROWS).read_text(encoding="utf-8").splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    held: dict[str, Any] = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    return held


def without_times(held: list[dict[str, Any]]) -> list[Any]:
    """Rows as far as two runs must agree."""
    return [
        {
            name: [(t["sequence"], t["tokens"], t["step_tokens"]) for t in turns]
            for name, turns in row["sides"].items()
        }
        | {"index": row["index"], "agreements": row["agreements"]}
        for row in held
    ]


def by_hand(given: Job) -> dict[str, Metrics]:
    """The sums by category, from plain generation."""
    found: dict[str, Metrics] = {"overall": Metrics()}
    sequence = 0
    for line in LINES:
        said: list[str] = []
        for turn in line.get("turns", [line.get("prompt")]):
            said.append(turn)
            meter = Meter(torch.device("cpu"))
            meter.begin()
            made = given.engine.generate("\n\n".join(said), sequence=sequence, observers=[meter])
            metrics = meter.end()
            for name in ("overall", str(line["category"])):
                found.setdefault(name, Metrics()).add(metrics)
            said.append(made.text)
            sequence += 1
    return found


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("sampling.temperature=1",),
        ("tree=chain", "tree.depth=3", "cache=static"),
        ("drafter=ngram", "tree=chain"),
    ],
    ids=" ".join,
)
def test_numbers_are_those_of_the_engine(words: tuple[str, ...], tmp_path: Path) -> None:
    given = job(tmp_path, *words)
    assert task(rounds=2).run(given) == 0
    held, expected = summary(tmp_path), by_hand(given)
    assert set(held["categories"]) == {"one", "two"}
    for name, metrics in expected.items():
        numbers = held["overall"] if name == "overall" else held["categories"][name]
        wanted = metrics.as_dict()
        for key in (k for k in wanted if k.startswith(("num_", "acceptance"))):
            assert numbers[METHOD][key] == wanted[key], key
        base = numbers[BASELINE]
        assert base["acceptance_length"] == 1
        assert base["num_accepted"] == base["num_drafted"] == 0
        assert base["num_tokens"] == numbers[METHOD]["num_tokens"]
        assert numbers["num_same_text"] == numbers["num_compared"]
    overall = held["overall"]
    chain = "tree=chain" in words
    assert (overall[METHOD]["acceptance_rate"] is not None) == chain
    speeds = [overall[side]["tokens_per_s"] for side in (METHOD, BASELINE)]
    assert overall["speedup"] == pytest.approx(speeds[0] / speeds[1])
    tau = overall[METHOD]["acceptance_length"]
    assert overall["efficiency"] == pytest.approx(overall["speedup"] / tau)
    ends = [overall[side]["tokens_per_s_end_to_end"] for side in (METHOD, BASELINE)]
    assert overall["speedup_end_to_end"] == pytest.approx(ends[0] / ends[1])


def test_both_means_are_there_and_named(tmp_path: Path) -> None:
    task().run(job(tmp_path))
    method = summary(tmp_path)["overall"][METHOD]
    lengths, tokens, steps = [], 0, 0
    for row in rows(tmp_path):
        turns = [one["metrics"] for one in row["sides"][METHOD]]
        own = [sum(one[key] for one in turns) for key in ("num_step_tokens", "num_steps")]
        lengths.append(own[0] / own[1])
        tokens, steps = tokens + own[0], steps + own[1]
    assert method["acceptance_length"] == pytest.approx(tokens / steps)
    mean = method["acceptance_length_mean_over_prompts"]
    assert mean == pytest.approx(sum(lengths) / len(lengths))
    assert mean != pytest.approx(tokens / steps)


def test_the_baseline_shares_everything_but_the_draft(tmp_path: Path) -> None:
    engine = job(tmp_path, "accept=typical", "accept.epsilon=0.1").engine
    base, method = sides(engine, baseline=True)
    for part in ("target", "cache", "runtime"):
        assert getattr(base.engine.components, part) is getattr(method.engine.components, part)
    assert base.engine.settings is method.engine.settings
    assert base.engine.components.accept.lossless


def test_a_conversation_keeps_each_sides_own_answers(tmp_path: Path) -> None:
    given = job(tmp_path, "accept=typical", "accept.epsilon=0.01", "sampling.temperature=1")
    task().run(given)
    turns = rows(tmp_path)[1]["sides"]
    assert turns[BASELINE][0]["text"] != turns[METHOD][0]["text"]
    for held in turns.values():
        text = "\n\n".join(["dead", held[0]["text"], "beef"])
        assert held[1]["num_prompt_tokens"] == len(given.engine.encode(text))
        made = given.engine.encode("\n\n".join([text, held[1]["text"], "ad"]))
        assert held[2]["num_prompt_tokens"] == len(made)


@pytest.mark.parametrize("temperature", rest_slow([1.0, 0.0]))
def test_a_killed_run_goes_on_from_any_byte(temperature: float, tmp_path: Path) -> None:
    words = (f"sampling.temperature={temperature}",)
    task().run(job(tmp_path, *words))
    whole = without_times(rows(tmp_path))
    content = (tmp_path / ROWS).read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == 10]
    for cut in (0, 5, ends[0], ends[1] - 1, ends[2] + 40, len(content)):
        (tmp_path / ROWS).write_bytes(content[:cut])
        asked = job(tmp_path, *words)
        task(warmup=2).run(asked)
        assert without_times(rows(tmp_path)) == whole or cut < ends[0]
        assert [row["index"] for row in rows(tmp_path)] == [0, 1, 2, 3]
        # What was there is not asked again.
        assert (
            (tmp_path / ROWS)
            .read_bytes()
            .startswith(content[: max([0, *filter(lambda end: end <= cut, ends)])])
        )


@pytest.mark.parametrize(
    "words",
    rest_slow(
        [
            (("drafter=suffix", "drafter.keep_outputs=9", "tree=native"),),
            (("drafter=recycling", "drafter.keep=true"),),
            (("drafter=ouroboros", "drafter.keep_pool=true", "tree=native"),),
            (
                (
                    "drafter=router",
                    "drafter.sources=[suffix,ngram]",
                    "drafter.suffix.keep_outputs=9",
                ),
            ),
        ],
        fast=2,
    ),
    ids=lambda words: words[0],
)
def test_what_a_drafter_keeps_is_of_counted_answers(words: tuple[str, ...], tmp_path: Path) -> None:
    once, often = tmp_path / "once", tmp_path / "often"
    assert task(warmup=0).run(job(once, *words)) == 0
    expected = without_times(rows(once))
    given = {"warmup": 2, "rounds": 3, "split": True}
    task(**given).run(job(often, *words))
    assert without_times(rows(often)) == expected
    # A run that is cut begins again with what the drafter knew.
    content = (often / ROWS).read_bytes()
    (often / ROWS).write_bytes(content[: content.index(b"\n", content.index(b"\n") + 1) + 1])
    task(**given).run(job(often, *words))
    assert without_times(rows(often)) == expected
    method = summary(once)["overall"][METHOD]
    starts = method["starts"]
    assert [starts[name]["num_answers"] for name in ("cold", "warm")] == [1, 5]
    turns = [turn for row in rows(once) for turn in row["sides"][METHOD]][1:]
    tokens, steps = (
        sum(one["metrics"][key] for one in turns) for key in ("num_step_tokens", "num_steps")
    )
    assert starts["warm"]["acceptance_length"] == tokens / steps


def test_another_file_behind_the_same_name_is_another_configuration(tmp_path: Path) -> None:
    paths = tmp_path / "paths.json"
    paths.write_text("[[0], [0, 0]]", encoding="utf-8")
    words = ("tree=static", f"tree.paths={paths}")
    task().run(job(tmp_path / "run", *words))
    assert task().run(job(tmp_path / "run", *words)) == 0
    paths.write_text("[[0], [1]]", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"made with content of tree.paths=.*another folder"):
        task().run(job(tmp_path / "run", *words))


def test_ctrl_c_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, calls = Side.answer, []

    def stopped(self: Side, prompt: Sequence[int], sequence: int) -> Any:
        calls.append(sequence)
        if len(calls) > 4:
            raise KeyboardInterrupt
        return answer(self, prompt, sequence)

    monkeypatch.setattr(Side, "answer", stopped)
    with pytest.raises(KeyboardInterrupt):
        task().run(job(tmp_path))
    assert len(rows(tmp_path)) == 1
    held = summary(tmp_path)
    assert held["overall"]["num_prompts"] == 1 and held["num_planned"] == 4
    monkeypatch.undo()
    assert task().run(job(tmp_path)) == 0
    assert len(rows(tmp_path)) == 4


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("tree.depth=2", "tree.depth"),
        ("sampling.temperature=0.5", "sampling.temperature"),
        ("max_new_tokens=13", "max_new_tokens"),
        ("seed=4", "seed"),
        ("target.table_seed=9", "target.table_seed"),
    ],
)
def test_another_configuration_is_never_mixed_in(word: str, named: str, tmp_path: Path) -> None:
    task().run(job(tmp_path))
    before = (tmp_path / ROWS).read_bytes()
    with pytest.raises(ConfigError, match=f"hydra.run.dir=.*{named}=.*another folder"):
        task().run(job(tmp_path, word))
    with pytest.raises(ConfigError, match=r"made with prompts="):
        task().run(job(tmp_path, lines=LINES[:2]))
    assert (tmp_path / ROWS).read_bytes() == before


def test_texts_are_compared_with_those_of_an_earlier_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, own = tmp_path / "base", tmp_path / "own"
    assert task().run(job(base, "drafter=none", "tree=chain")) == 0
    assert list(rows(base)[0]["sides"]) == [METHOD], "plain decoding has no other baseline"
    alone = {"baseline": False, "reference": str(base / ROWS)}
    assert task(**alone).run(job(own)) == 0
    assert list(rows(own)[0]["sides"]) == [METHOD]
    assert summary(own)["overall"]["num_same_text"] == 6
    assert "speedup" not in summary(own)["overall"]
    assert "all 6 texts equal" in capsys.readouterr().out
    # The control: one token of one exact text is another.
    held = rows(base)
    tokens = held[3]["sides"][METHOD][0]["tokens"]
    tokens[4] = (tokens[4] + 1) % 6
    (base / ROWS).write_text("".join(f"{json.dumps(row)}\n" for row in held), encoding="utf-8")
    assert task(**alone).run(job(tmp_path / "again")) == 1
    [failure] = summary(tmp_path / "again")["failures"]
    assert "1 of 6 texts differ" in failure and "prompt 4 at token 5" in failure
    assert "logit gap -" in failure, "the target prefers what the method said"


def test_rounded_weights_may_give_another_text_than_a_reference(tmp_path: Path) -> None:
    base = tmp_path / "base"
    assert task().run(job(base, "drafter=none", "tree=chain")) == 0
    held = rows(base)
    tokens = held[3]["sides"][METHOD][0]["tokens"]
    tokens[4] = (tokens[4] + 1) % 6
    (base / ROWS).write_text("".join(f"{json.dumps(row)}\n" for row in held), encoding="utf-8")
    alone = {"baseline": False, "reference": str(base / ROWS)}
    assert task(**alone).run(job(tmp_path / "own", "runtime.weights=int8")) == 0
    [note] = summary(tmp_path / "own")["notes"]
    assert "1 of 6 texts differ" in note and "runtime.weights=int8 rounds" in note


def test_a_reference_must_be_of_the_same_text(tmp_path: Path) -> None:
    base = tmp_path / "base"
    task().run(job(base, "drafter=none", "tree=chain"))
    given = {"baseline": False, "reference": str(base)}
    for word in ("max_new_tokens=13", "target.table_seed=9", "sampling.top_k=2"):
        with pytest.raises(ConfigError, match=f"task.reference=.*{word.partition('=')[0]}="):
            task(**given).run(job(tmp_path / word, word))
    with pytest.raises(ConfigError, match="no answer to a prompt of this run"):
        task(**given).run(job(tmp_path / "other", lines=[{"prompt": "eee"}]))
    with pytest.raises(ConfigError, match="no such file"):
        task(baseline=False, reference="nowhere.jsonl").run(job(tmp_path / "none"))
    own = tmp_path / "drafted"
    task(baseline=False).run(job(own))
    with pytest.raises(ConfigError, match="it has no baseline"):
        task(baseline=False, reference=str(own)).run(job(tmp_path / "x", "tree.depth=2"))


def test_the_bill_of_a_lossy_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = job(tmp_path, "accept=typical", "accept.epsilon=0.01", "sampling.temperature=1")
    assert task().run(given) == 0
    held = summary(tmp_path)["overall"]
    for side in (METHOD, BASELINE):
        total, count = 0.0, 0
        for row in rows(tmp_path):
            said: list[str] = []
            for turn, one in zip(
                LINES[row["index"]].get("turns", [LINES[row["index"]].get("prompt")]),
                row["sides"][side],
                strict=True,
            ):
                said.append(str(turn))
                prompt = given.engine.encode("\n\n".join(said))
                text = [*prompt, *one["tokens"]]
                for place in range(len(prompt), len(text)):
                    law = given.engine.components.target.law(text[:place])  # type: ignore[attr-defined]
                    total += float(law[text[place]])
                    count += 1
                said.append(one["text"])
        assert held[side]["target_logprob"] == pytest.approx(total / count, abs=1e-5)
    pairs = [
        agreement(one["tokens"], other["tokens"])
        for row in rows(tmp_path)
        for one, other in zip(row["sides"][METHOD], row["sides"][BASELINE], strict=True)
    ]
    longer = sum(one.num_longer for one in pairs)
    assert held["agreement_prefix"] == sum(one.num_common for one in pairs) / longer
    assert held["agreement_tokens"] == sum(one.num_equal for one in pairs) / longer
    assert 0 < held["agreement_prefix"] < held["agreement_tokens"] < 1
    out = capsys.readouterr().out
    assert "mean log-probability" in out and "the rule is lossy" in out


def test_agreement_by_hand() -> None:
    found = agreement([1, 2, 3, 4], [1, 2, 9, 4, 5])
    assert (found.num_common, found.num_equal, found.num_longer, found.same) == (2, 3, 5, False)
    assert agreement([1, 2], [1, 2]).same
    assert not agreement([1], [1, 2]).same


def test_log_probability_of_a_long_text_is_that_of_its_pieces(tmp_path: Path) -> None:
    engine = job(tmp_path, "max_new_tokens=300").engine
    made = engine.generate("abcab")
    laws = engine.components.target.law  # type: ignore[attr-defined]
    text = [*made.prompt_tokens, *made.tokens]
    single = [float(laws(text[:i])[text[i]]) for i in range(5, len(text))]
    found = mean_logprob(engine, made.prompt_tokens, made.tokens)
    assert found == pytest.approx(sum(single) / len(single), abs=1e-6)
    assert mean_logprob(engine, made.prompt_tokens[:1], made.prompt_tokens[1:]) < 0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 3 + 4 = 7.", 7),
        ("It costs $1,234.50 in all", 1234.5),
        ("#### 12\nI hope that helps 3", 12),
        ("a loss of -5", -5),
        ("none", None),
        ("#### Step 1\n9 + 9 = 18\n#### Final answer\nShe has 18 of the 20 eggs: 18", 18),
        ("#### 1. Add\n9 + 9\n#### 2. Answer\nIt is 18.", 18),
        ("3 of them\n#### $1,234.", 1234),
        ("so 5 more, on pages 10-18", 18),
        ("x = 7-(-2) = .5", 0.5),
        ("it falls by \u22125", -5),
    ],
)
def test_the_number_an_answer_ends_with(text: str, number: float | None) -> None:
    assert final_number(text) == number


def test_scores_of_gsm8k(tmp_path: Path) -> None:
    assert number_is_right("so it is 18", "9 + 9 = <<9+9=18>>18\n#### 18") is True
    assert number_is_right("so it is 17", "#### 18") is False
    assert number_is_right("nothing", "#### 18") is False
    assert number_is_right("18", "a summary of 18 words") is None
    lines = [{"prompt": "abc", "reference": ["x #### 3"]}, {"prompt": "de"}]
    task().run(job(tmp_path, lines=lines))
    wrong = {"num_judged": 1, METHOD: 0.0, BASELINE: 0.0}
    assert summary(tmp_path)["overall"]["scores"] == {"number": wrong}


def test_prompts_that_cannot_be_answered_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"prompt": "XYZ"}, {"prompt": "abc"}]
    assert task().run(job(tmp_path, lines=lines)) == 1
    assert (
        "prompt 1: the prompt 'XYZ' has nothing of the vocabulary of target=toy"
        in capsys.readouterr().err
    )
    assert summary(tmp_path)["num_errors"] == 1
    assert summary(tmp_path)["overall"]["num_prompts"] == 1
    assert task().run(job(tmp_path, lines=lines)) == 1, "a second look changes nothing"


def test_a_later_turn_that_does_not_fit_stops_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"prompt": "abc"}, {"turns": ["dead", "beef" * 60]}, {"prompt": "fade"}]
    words = ("cache=static", "cache.capacity=100")
    for _ in range(2):
        assert task().run(job(tmp_path, *words, lines=lines)) == 1
        held = rows(tmp_path)
        assert [row["error"] is None for row in held] == [True, False, True]
    assert "turn 2: cache.capacity=100 cannot hold" in held[1]["error"]
    assert "prompt 2: turn 2: cache.capacity=100" in capsys.readouterr().err
    assert summary(tmp_path)["overall"]["num_prompts"] == 2


@pytest.mark.slow
def test_the_split_is_apart_and_covers_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = job(tmp_path)
    drafter = given.engine.components.drafter
    expand, prefill = drafter.expand, given.engine.components.target.prefill

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.01)
        return expand(*args, **kwargs)

    def slow_prefill(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.02)
        return prefill(*args, **kwargs)

    monkeypatch.setattr(drafter, "expand", slow)
    monkeypatch.setattr(given.engine.components.target, "prefill", slow_prefill)
    assert task(split=True).run(given) == 0
    overall = summary(tmp_path)["overall"]
    for side in (METHOD, BASELINE):
        split = overall[side]["split"]
        parts = [ms for key, ms in split.items() if key not in ("wall_ms", "covered")]
        assert sum(parts) == pytest.approx(split["wall_ms"], rel=0.02)
        assert split["prefill_ms"] >= 6 * 20
    method = overall[METHOD]
    assert method["split"]["draft_ms"] >= 10 * method["num_steps"]
    assert method["prefill_s"] >= 6 * 0.02 and "draft_ms" not in method
    assert "The time of the method, by a clock that waits: prefill" in capsys.readouterr().out


def test_a_split_with_a_hole_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = Side.split

    def holed(self: Side, prompt: Sequence[int], sequence: int) -> Any:
        found = inner(self, prompt, sequence)
        return type(found)(phases=found.phases, wall_ms=1.2 * found.wall_ms)

    monkeypatch.setattr(Side, "split", holed)
    assert task(split=True).run(job(tmp_path)) == 1
    assert "cover 8" in summary(tmp_path)["failures"][0]


@pytest.mark.parametrize("name", ["num_accepted", "num_steps", "num_cut", "num_tokens"])
def test_a_count_that_is_off_by_one_is_caught(name: str) -> None:
    engine = plan(compose(TOY)).load()
    meter = Meter(torch.device("cpu"))
    meter.begin()
    loop = engine.decoding(observers=[meter])
    counts = [len(loop.begin(engine.encode("abcab")))]
    while loop.finish_reason is None:
        counts.append(len(loop.step().tokens))
    metrics = meter.end()
    sides_module._check(metrics, counts)
    setattr(metrics, name, getattr(metrics, name) + 1)
    with pytest.raises(AssertionError):
        sides_module._check(metrics, counts)


def test_what_is_printed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task(per_category=1).run(job(tmp_path, "tree=chain"))
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\r" not in out
    for word in ("category", "acceptance_length", "speedup", "accepted by depth", "peak memory"):
        assert word in out
    with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [line["category"] for line in table] == ["one", "two", "overall"]
    overall = summary(tmp_path)["overall"]
    assert float(table[-1]["method.acceptance_length"]) == overall[METHOD]["acceptance_length"]
    assert float(table[-1]["intervals.speedup.low"]) == overall["intervals"]["speedup"][0]
    first = overall[METHOD]["acceptance_by_depth"][0]
    assert int(table[-1]["method.acceptance_by_depth.1.num_accepted"]) == first["num_accepted"]
    low, high = overall["intervals"]["acceptance_length"]
    assert low <= overall[METHOD]["acceptance_length"] <= high
    assert table[0]["intervals.speedup.low"] == "", "one prompt has no interval"


def test_latencies_are_of_steps_shared_by_their_tokens(tmp_path: Path) -> None:
    task().run(job(tmp_path))
    steps, tokens = [], []
    for row in rows(tmp_path):
        for turn in row["sides"][METHOD]:
            for ms, count in zip(turn["rounds"][0]["step_ms"], turn["step_tokens"], strict=True):
                steps.append(ms)
                tokens += [ms / count] * count
    method = summary(tmp_path)["overall"][METHOD]
    assert len(tokens) == method["num_step_tokens"]
    middle = torch.tensor(sorted(tokens), dtype=torch.float64).quantile(0.5)
    assert method["between_tokens_p50_ms"] == pytest.approx(float(middle))
    high = torch.tensor(sorted(steps), dtype=torch.float64).quantile(0.95)
    assert method["between_steps_p95_ms"] == pytest.approx(float(high))
    assert method["first_token_p50_ms"] > 0
