"""task=distill: the target's own text, batched, and a file that any kill leaves whole."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import specframe
from specframe.compose.overrides import compose
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.prompts.answers import Answer, read_answers, read_compact
from specframe.prompts.questions import NamedPrompt, Question, batches_of
from specframe.session.batched import Batched, packed
from specframe.session.engine import Engine
from specframe.session.settings import Settings
from specframe.target.hf import HF
from specframe.task.base import Job
from specframe.task.distill import Distill
from tests.commands import job_of
from tests.small_models import RUNTIME, VOCAB, Composition, model, sampling_config, stop_config
from tests.turns import rest_slow

EOS = (17, 36, 64, 96)  # answers of 2 to 32 tokens, and some that fill the limit
NEW = 40  # more than a segment
TEXTS = (
    "abc",
    "a quick brown fox",
    "z",
    "hello hello hello",
    "lorem ipsum dolor",
    "xyzzy",
    "q w e",
)


class Letters:
    """A tokenizer of single characters with a template of one letter a role."""

    chat_template = "{{ messages }}"
    tokenizer = None

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % VOCAB for letter in text]

    encode_plain = encode

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return self.encode("".join(f"{m['role'][0]}{m['content']}\n" for m in messages) + "a")

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(33 + token % 80) for token in ids)

    def decoder(self) -> Callable[[int], str]:
        return lambda token: self.decode([token])

    def vocabulary(self) -> dict[str, int]:
        return {str(token): token for token in range(VOCAB)}


def engine(*, temperature: float = 0.0, seed: int = 0, max_new_tokens: int = NEW) -> Engine:
    """A tiny random model in float64 with a tokenizer."""
    target = HF.of(model("llama", max_position_embeddings=512), runtime=RUNTIME)
    target.tokenizer = Letters()  # type: ignore[assignment]
    settings = Settings(
        seed=seed,
        max_new_tokens=max_new_tokens,
        sampling=sampling_config(temperature=temperature),
        stop=stop_config(eos=list(EOS)),
        raw=False,
    )
    return Engine(Composition(target=target).components, settings)


def distill(
    folder: Path, made: Engine, records: Sequence[dict[str, Any]], **options: Any
) -> list[Answer]:
    """Run the task and read what it wrote."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    values = {"output": str(folder / "answers.jsonl"), "compact": None, "batch_size": 3}
    values |= {"batch_tokens": 10_000, "window": 5, "max_prompt_tokens": 150, "packed": True}
    job = job_of(made, folder, prompts=prompts)
    assert Distill(**{**values, **options}).run(job) == 0
    return list(read_answers(folder / "answers.jsonl"))


def records() -> list[dict[str, Any]]:
    single = [{"id": f"p{i}", "turns": [text], "source": "s"} for i, text in enumerate(TEXTS)]
    chat = {"id": 7, "category": "chat", "turns": ["one", "two", "three"], "license": "MIT"}
    return [*single[:3], chat, *single[3:]]


def test_answers_are_the_engines_own(tmp_path: Path) -> None:
    made = engine()
    answers = distill(tmp_path, made, records())
    assert sorted(str(one.key) for one in answers) == sorted(
        str((one["id"], turn)) for one in records() for turn in range(len(one["turns"]))
    )
    for answer in answers:
        alone = made.generate(answer.prompt_tokens)
        assert alone.tokens == answer.tokens
        assert alone.finish_reason == answer.finish_reason
    assert {one.finish_reason for one in answers} == {"eos", "length"}
    assert len({len(one.tokens) for one in answers}) > 3
    first = next(one for one in answers if one.key == ("p0", 0))
    assert first.prompt_tokens == made.encode("abc") and first.source == "s"


def test_a_conversation_goes_on_from_the_models_own_answers(tmp_path: Path) -> None:
    made = engine()
    chat = sorted((one for one in distill(tmp_path, made, records()) if one.id == 7), key=turn_of)
    messages: list[dict[str, str]] = []
    for turn, answer in enumerate(chat):
        messages.append({"role": "user", "content": ["one", "two", "three"][turn]})
        assert answer.prompt_tokens == made.encode(messages)
        assert answer.turns == ("one", "two", "three")[: turn + 1] and answer.category == "chat"
        messages.append({"role": "assistant", "content": made.decode(answer.tokens)})


def turn_of(answer: Answer) -> int:
    return answer.turn


@pytest.mark.parametrize("temperature", rest_slow([1.0, 0.0]))
def test_a_file_cut_anywhere_is_completed_to_the_same_answers(
    tmp_path: Path, temperature: float
) -> None:
    whole = distill(tmp_path, engine(temperature=temperature), records())
    file = tmp_path / "answers.jsonl"
    content = file.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == 10]
    for cut in (0, 1, ends[0], ends[1] - 1, ends[4] + 17, ends[-2], len(content) - 1, len(content)):
        file.write_bytes(content[:cut])
        again = distill(tmp_path, engine(temperature=temperature), records())
        assert len(again) == len(whole)
        assert {one.key: one for one in again} == {one.key: one for one in whole}


def test_noise_depends_on_the_seed(tmp_path: Path) -> None:
    texts = []
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        state = torch.random.get_rng_state()
        answers = distill(folder, engine(temperature=1.0, seed=seed), records())
        assert torch.equal(state, torch.random.get_rng_state())
        texts.append({one.key: one.tokens for one in answers})
    assert texts[0] != texts[1]


def slow_run(folder: str) -> None:
    """What the killed process runs: a batch takes a fifth of a second."""
    answer = Batched.answer

    def slow(self: Batched, *args: Any, **values: Any) -> list[list[int]]:
        time.sleep(0.2)
        return answer(self, *args, **values)

    Batched.answer = slow  # type: ignore[method-assign]
    distill(Path(folder), engine(), records(), batch_size=1)


def test_sigkill_loses_and_repeats_nothing(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    file = tmp_path / "answers.jsonl"
    for at_least in (1, 3):
        process = fork.Process(target=slow_run, args=(str(tmp_path),))
        process.start()
        deadline = time.monotonic() + 60
        while not file.exists() or file.read_bytes().count(b"\n") < at_least:
            assert process.is_alive() and time.monotonic() < deadline
            time.sleep(0.02)
        process.kill()
        process.join()
    assert 3 <= file.read_bytes().count(b"\n") < 10
    cut = distill(tmp_path, engine(), records())
    (tmp_path / "other").mkdir()
    whole = distill(tmp_path / "other", engine(), records())
    assert sorted(map(repr, cut)) == sorted(map(repr, whole))


def test_ctrl_c_keeps_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer, calls = Batched.answer, []

    def interrupted(self: Batched, *args: Any, **values: Any) -> list[list[int]]:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return answer(self, *args, **values)

    monkeypatch.setattr(Batched, "answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        distill(tmp_path, engine(), records())
    monkeypatch.undo()
    kept = list(read_answers(tmp_path / "answers.jsonl"))
    assert 3 < len(kept) < 10
    assert f"{len(kept)} answers in" in capsys.readouterr().err
    assert len(distill(tmp_path, engine(), records())) == 10


@pytest.mark.parametrize(
    ("change", "key"),
    [({"max_new_tokens": 5}, "max_new_tokens=40, this run has 5"), ({"temperature": 0.5}, "samp")],
)
def test_other_settings_are_not_mixed(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    distill(tmp_path, engine(), records())
    before = (tmp_path / "answers.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=f"task.output=.*{key}"):
        distill(tmp_path, engine(**change), records())
    assert (tmp_path / "answers.jsonl").read_bytes() == before


def test_other_prompts_are_refused_by_id_and_text(tmp_path: Path) -> None:
    distill(tmp_path, engine(), records())
    before = (tmp_path / "answers.jsonl").read_bytes()
    other = [one | {"turns": ["abd"]} if one["id"] == "p0" else one for one in records()]
    message = r"task\.output=.*prompt 'p0' was made with turns=\[\"abc\"\], this run has \[\"abd"
    with pytest.raises(ConfigError, match=message):
        distill(tmp_path, engine(), other)
    with pytest.raises(ConfigError, match=r"'p0' was made with turns=\[\"abc\"\].* null; give the"):
        distill(tmp_path, engine(), records()[1:])
    assert (tmp_path / "answers.jsonl").read_bytes() == before


def test_sampled_answers_are_of_one_set_of_prompts_and_one_seed(tmp_path: Path) -> None:
    """Its noise is keyed by the prompts of a batch, so more prompts would be another run."""
    distill(tmp_path, engine(temperature=1.0), records()[:4])
    with pytest.raises(
        ConfigError, match=r"prompts_sha256=\"[0-9a-f]+\.\.\., this run has \"[0-9a-f]"
    ):
        distill(tmp_path, engine(temperature=1.0), records())
    with pytest.raises(ConfigError, match="seed=0, this run has 1"):
        distill(tmp_path, engine(temperature=1.0, seed=1), records()[:4])
    with pytest.raises(ConfigError, match=r"task\.batch_size=3, this run has 2"):
        distill(tmp_path, engine(temperature=1.0), records()[:4], batch_size=2)


def test_another_model_is_refused_by_the_key_that_makes_it(tmp_path: Path) -> None:
    """A random model leaves no file of weights, so its seed and shape stand for them."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "turns": ["xy"]}\n', encoding="utf-8")
    task = Distill(
        output=str(tmp_path / "answers.jsonl"),
        compact=None,
        batch_size=1,
        batch_tokens=100,
        window=1,
        max_prompt_tokens=9,
        packed=False,
    )
    shape = ["layers=1", "hidden=16", "intermediate=16", "heads=2", "kv_heads=2", "vocab_size=256"]
    words = ["target=random", "drafter=none", "device=cpu", "max_new_tokens=2"]
    words += [f"target.{one}" for one in shape]
    for seed in (0, 0):
        assert task.run(random_job(tmp_path, prompts, [*words, f"target.seed={seed}"])) == 0
    with pytest.raises(ConfigError, match=r"were made with target\.seed=0, this run has 1;"):
        task.run(random_job(tmp_path, prompts, [*words, "target.seed=1"]))


def random_job(folder: Path, prompts: Path, words: list[str]) -> Job:
    """The task's job for a command's words."""
    config = compose(words)
    return job_of(specframe.load(words), folder, prompts=prompts, config=config)


def test_compact_answers_of_other_settings_are_not_written_over(tmp_path: Path) -> None:
    small = tmp_path / "c" / "answers.npz"
    distill(tmp_path, engine(), records(), compact=str(small))
    before = small.read_bytes()
    with pytest.raises(ConfigError, match=r"task\.compact=.*max_new_tokens=40, this run has 5"):
        distill(
            tmp_path,
            engine(max_new_tokens=5),
            records(),
            compact=str(small),
            output=str(tmp_path / "other.jsonl"),
        )
    assert small.read_bytes() == before and not (tmp_path / "other.jsonl").exists()


def test_a_longer_prompt_file_only_adds(tmp_path: Path) -> None:
    distill(tmp_path, engine(), records()[:4])
    before = (tmp_path / "answers.jsonl").read_bytes()
    assert len(distill(tmp_path, engine(), records())) == 10
    assert (tmp_path / "answers.jsonl").read_bytes().startswith(before)


def test_prompts_that_do_not_fit_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = {"id": "long", "turns": ["x" * 149, "then"]}
    answers = distill(tmp_path, engine(), [*records(), long])
    assert len(answers) == 10 and "2 left out" in capsys.readouterr().err


def test_a_prompt_without_an_id_goes_by_its_text(tmp_path: Path) -> None:
    same = [{"prompt": "abc"}, {"prompt": "abc"}, {"prompt": "xyz"}]
    assert len(distill(tmp_path, engine(), same)) == 2
    with pytest.raises(ConfigError, match="the id a stands for two prompts"):
        distill(tmp_path, engine(), [{"id": "a", "prompt": "b"}, {"id": "a", "prompt": "c"}])


def test_toy_and_settings_of_a_whole_prefix_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IncompatibleComponents, match=r"task=distill needs .* use target=hf"):
        distill(tmp_path, specframe.load(["target=toy", "drafter=none"]), records())
    made = engine()
    penalised = sampling_config(temperature=0.0, repetition_penalty=1.2)
    settings = Settings(
        seed=0, max_new_tokens=4, sampling=penalised, stop=made.settings.stop, raw=False
    )
    with pytest.raises(ConfigError, match=r"sampling.repetition_penalty=1.2: .*=null"):
        distill(tmp_path, Engine(made.components, settings), records())


def test_the_compact_form_holds_the_same_tokens(tmp_path: Path) -> None:
    answers = distill(tmp_path, engine(), records(), compact=str(tmp_path / "c" / "answers.npz"))
    small = read_compact(tmp_path / "c" / "answers.npz")
    beside = tmp_path / "c" / "answers.settings.json"
    assert beside.read_text() == next(tmp_path.glob("*.settings.json")).read_text()
    held = [(one.id, one.turn, one.tokens, one.finish_reason) for one in small]
    assert held == [(one.id, one.turn, one.tokens, one.finish_reason) for one in answers]


def test_the_models_own_generation_settings_play_no_part() -> None:
    made = model("llama")
    batched = Batched(made, eos=(), max_new_tokens=4, options={})
    plain = batched.answer([[5, 6, 7]], seed=0, tick=lambda count: None)
    made.generation_config.repetition_penalty = 50.0
    made.generation_config.eos_token_id = plain[0][0]
    held = made.generation_config
    assert batched.answer([[5, 6, 7]], seed=0, tick=lambda count: None) == plain
    assert made.generation_config is held


def test_packed_layers_compute_the_same_and_are_put_back() -> None:
    layers = nn.Sequential(
        nn.Linear(16, 32), nn.Linear(32, 8, bias=False), nn.Linear(8, 8).double()
    )
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        plain = layers[:2](x)
        with packed(layers, rows=4):
            assert "forward" in vars(layers[0]) and "forward" not in vars(layers[2])
            assert torch.allclose(layers[:2](x), plain, atol=1e-5)
    assert not any("forward" in vars(layer) for layer in layers)


def test_batches_keep_to_both_limits() -> None:
    prompt = NamedPrompt(id="a", record=None)  # type: ignore[arg-type]
    lengths = [5, 90, 7, 40, 41, 5, 6, 300]
    asked = [Question(prompt=prompt, turn=0, tokens=[1] * length) for length in lengths]
    batches = list(batches_of(asked, room=10, max_rows=3, max_tokens=120))
    sizes = [[len(one.tokens) for one in batch] for batch in batches]
    assert sizes == [[5, 5, 6], [7, 40], [41], [90], [300]]


def test_a_prompt_that_the_template_refuses_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Strict(Letters):
        def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
            if "refused" in messages[-1]["content"]:
                raise ConfigError("the chat template refuses these messages")
            return super().encode_chat(messages)

    made = engine()
    made.components.target.tokenizer = Strict()  # type: ignore[assignment]
    given = [
        {"id": "a", "prompt": "abc"},
        {"id": "b", "prompt": "refused"},
        {"id": 1, "prompt": "d"},
    ]
    assert {one.id for one in distill(tmp_path, made, given)} == {"a", 1}
    told = capsys.readouterr().err
    assert "prompt b: the chat template refuses these messages\n" in told
    assert "1 left out: refused, or longer than task.max_prompt_tokens=150 or than the" in told
