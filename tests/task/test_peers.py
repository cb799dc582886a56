"""Several sides in one benchmark: further compositions and other engines, timed in turns."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from rich.console import Console

import specframe
from specframe.compose.build import plan
from specframe.compose.overrides import compose, replaced
from specframe.errors import ConfigError
from specframe.plugins import bootstrap
from specframe.task.base import Job
from specframe.task.benchmark import Benchmark
from specframe.task.benchmark import peers as peers_module
from specframe.task.benchmark.contest import Contest, Rules
from specframe.task.benchmark.passes import watched_forwards
from specframe.task.benchmark.peer_side import PeerSide
from specframe.task.benchmark.peers import Peer, PeerQuestion, Way, peer, peers
from specframe.task.benchmark.sides import BASELINE, METHOD, Side
from tests.small_models import byte_tokenizer, model
from tests.task.test_benchmark import task as task_of

RANDOM = (
    *("target=random", "target.layers=2", "target.hidden=64", "target.intermediate=96"),
    *("drafter=ngram", "tree=chain", "max_new_tokens=6", "runtime=eager"),
)
LOOKUP = "generate(prompt_lookup_num_tokens=10)"
PROMPTS = ({"category": "one", "prompt": "abcabc"}, {"category": "two", "prompt": "xyzxy"})


def job(folder: Path, *words: str) -> Job:
    folder.mkdir(parents=True, exist_ok=True)
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(f"{json.dumps(one)}\n" for one in PROMPTS), encoding="utf-8")
    given = replaced(RANDOM, words)
    made = plan(compose(given))
    return Job(
        engine=made.load(),
        config=made.config,
        output_dir=folder,
        prompt=None,
        prompts=prompts,
        rebuild=lambda more: specframe.load(replaced(given, more)),
        overrides=given,
    )


def task(*entries: str, **given: Any) -> Benchmark:
    return task_of(**{"compare": list(entries), "warmup": 0, **given})


def comparison(folder: Path) -> dict[str, Any]:
    held = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["comparison"]
    return dict(held)


def sides(folder: Path) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in comparison(folder)["sides"]}


def test_sides_and_peers_beside_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = "drafter=oracle drafter.rates=[1.0] tree.depth=2"
    assert task("drafter=suffix", entry, "peers=transformers", rounds=2).run(job(tmp_path)) == 0
    found = sides(tmp_path)
    assert list(found) == [BASELINE, METHOD, "drafter=suffix", entry, "generate()", LOOKUP]
    for one in found.values():
        assert one["num_same_text"] == one["num_texts"] == 2
        assert one["num_tokens"] == 12
        assert one["exact"] == BASELINE
        if not one["synthetic"]:
            assert 0 < one["outside"] < 1
            assert one["tokens_per_s"] == pytest.approx(12 / one["seconds"])
            own = found[BASELINE]["seconds"] / one["seconds"]
            assert one["speedup"] == pytest.approx(own)
    assert found[BASELINE]["num_forwards"] == found["generate()"]["num_forwards"] == 12
    assert found[entry]["synthetic"] and found[entry]["speedup"] is None
    assert found[entry]["acceptance_length"] == pytest.approx(2.5)  # 3 and 2 of 5 tokens
    for ours, theirs in ((BASELINE, "generate()"), (METHOD, LOOKUP)):
        ratio = found[theirs]["seconds"] / found[ours]["seconds"]
        assert found[ours]["over_peer"] == pytest.approx(ratio)
    assert found["drafter=suffix"]["over_peer"] is None
    out = capsys.readouterr().out
    for word in ("drafter=none", LOOKUP, "over peer", "outside", "by category", "(synthetic)"):
        assert word in out
    assert "accepted by depth" not in out, "the method's own tables give way"


def test_rows_hold_every_side_and_a_killed_run_goes_on(tmp_path: Path) -> None:
    entries = ("drafter=suffix", "peers=transformers")
    task(*entries).run(job(tmp_path))
    file = tmp_path / "rows.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    held = [json.loads(line) for line in lines]
    assert all(len(row["sides"]) == 5 for row in held)
    turn = held[0]["sides"]["generate()"][0]
    assert turn["metrics"]["num_steps"] == 5 and turn["rounds"][0]["forward_s"] > 0
    file.write_bytes(lines[0] + lines[1][:50])
    assert task(*entries).run(job(tmp_path)) == 0
    again = file.read_bytes().splitlines(keepends=True)
    assert again[0] == lines[0] and len(again) == 2
    assert sides(tmp_path)["generate()"]["num_texts"] == 2
    with pytest.raises(ConfigError, match=r"made with sides="):
        task("drafter=suffix").run(job(tmp_path))


def test_ctrl_c_tells_of_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, calls = PeerSide.answer, []

    def stopped(self: PeerSide, prompt: Sequence[int], sequence: int) -> Any:
        calls.append(sequence)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return answer(self, prompt, sequence)

    monkeypatch.setattr(PeerSide, "answer", stopped)
    with pytest.raises(KeyboardInterrupt):
        task("peers=transformers", passes=[1]).run(job(tmp_path))
    assert sides(tmp_path)[METHOD]["num_texts"] == 1
    assert comparison(tmp_path)["machine"] is None


def test_sides_on_another_target_have_their_own_plain_one(tmp_path: Path) -> None:
    words = "target=random target.seed=5 target.vocab_size=500"
    task(f"{words} drafter=suffix", "runtime=packed drafter=none", f"{words} peers").run(
        job(tmp_path)
    )
    found = sides(tmp_path)
    plain = f"{words} drafter=none"
    assert list(found)[2:4] == [plain, f"{words} drafter=suffix"]
    assert found[plain]["exact"] == found[f"{words} drafter=suffix"]["exact"] == plain
    assert found[f"{words} generate()"]["exact"] == plain
    assert found["runtime=packed drafter=none"]["exact"] == BASELINE, "one model, another runtime"
    assert all(one["num_same_text"] == 2 for one in found.values())


def test_buffers_are_shared_where_nothing_else_is_said(tmp_path: Path) -> None:
    asked = job(tmp_path)
    made = task("drafter=suffix", "cache=static drafter=suffix")
    rules = Rules(rounds=1, split=False, code_is_right=None)
    contest = Contest(asked.engine, rules, baseline=True, reference=None)
    made._comparison(asked, contest)
    main = asked.engine.components
    _, _, same, other = (side.engine.components for side in contest.sides)
    assert same.cache is main.cache and same.runtime is main.runtime
    assert same.target is main.target is other.target
    assert other.cache is not main.cache


def test_a_side_that_cannot_be_is_left_out_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = ("drafter=eagle", "accept=rejection", "peers=transformers")
    assert task(*entries).run(job(tmp_path)) == 0
    reasons = comparison(tmp_path)["left_out"]
    assert set(reasons) == {"drafter=eagle", "accept=rejection"}
    assert "no head ships" in reasons["drafter=eagle"]
    told = capsys.readouterr()
    assert "drafter=eagle is left out: " in told.err
    assert "Left out: accept=rejection: " in told.out


@pytest.mark.parametrize(
    ("entry", "words", "named"),
    [
        ("drafter=sufix", (), "task.compare: 'drafter=sufix': .*Did you mean 'suffix'"),
        ("drafter=suffix tree.dept=3", (), "task.compare: 'drafter=suffix tree.dept=3': tree.dept"),
        ("peer", (), "task.compare: 'peer': write the words of one side"),
        (" ", (), "task.compare: '': write the words of one side"),
        ("peers peers=transformers", (), "write the words of one side"),
        ("peers drafter=suffix", (), "peers may differ in device, target, not in drafter"),
        ("max_new_tokens=5 drafter=suffix", (), "a side may differ in .*, not in max_new_tokens"),
        ("sampling.temperature=1", (), "not in sampling; give sampling.temperature=1 to the whole"),
        ("threads=2 drafter=suffix", (), "not in threads"),
        ("peers=nobody", (), r"peers=nobody: no such option\. Available: .*transformers"),
        ("peers", ("target=toy",), "peers run a model of transformers, .* use target=hf"),
        ("peers", ("sampling.temperature=1",), "decode greedily .* sampling.temperature"),
        ("peers", ("sampling.bad_words=[b]",), "decode greedily .* sampling.bad_words"),
        ("peers", ("sampling.no_repeat_ngram_size=2",), "sampling.no_repeat_ngram_size"),
    ],
)
def test_mistakes(entry: str, words: tuple[str, ...], named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named):
        task(entry).run(job(tmp_path, *words))
    assert not (tmp_path / "rows.jsonl").exists()


def test_no_side_is_there_twice(tmp_path: Path) -> None:
    other = "target.seed=3 drafter="
    entries = (f"{other}suffix", f"{other}none", f" {other}none ", "peers", "peers=transformers")
    assert task(*entries).run(job(tmp_path)) == 0
    found = list(sides(tmp_path))
    assert found[2:4] == [f"{other}none", f"{other}suffix"]
    assert found.count("generate()") == 1 and len(found) == len(set(found))
    assert len(comparison(tmp_path)["sides"]) == len(found)


def test_without_a_baseline_plain_decoding_of_a_side_serves(tmp_path: Path) -> None:
    assert task("drafter=suffix", baseline=False).run(job(tmp_path)) == 0
    found = sides(tmp_path)
    assert list(found) == [METHOD, "drafter=none", "drafter=suffix"]
    assert {one["exact"] for one in found.values()} == {"drafter=none"}
    assert found[METHOD]["speedup"] is not None


def test_other_weights_are_held_against_their_own_kind(tmp_path: Path) -> None:
    entries = ("target.dtype=bfloat16 drafter=suffix", "target.dtype=bfloat16 peers")
    assert task(*entries).run(job(tmp_path)) == 0
    found = sides(tmp_path)
    plain = "target.dtype=bfloat16 drafter=none"
    for name in entries[0], "target.dtype=bfloat16 generate()":
        assert found[name]["exact"] == plain
    assert found[BASELINE]["over_peer"] is None, "that peer has other weights"
    assert found[plain]["over_peer"] is not None


def test_a_side_whose_weights_are_rounded_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Side.answer

    def other(self: Side, prompt: Sequence[int], sequence: int) -> Any:
        sample = answer(self, prompt, sequence)
        if self.name.startswith("runtime"):
            sample.tokens[3] += 1
        return sample

    monkeypatch.setattr(Side, "answer", other)
    entry = "runtime=packed runtime.weights=int8 drafter=suffix"
    assert task(entry).run(job(tmp_path)) == 0
    held = json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))
    assert f"{entry}: 2 of 2 texts differ" in str(held["notes"])
    assert "rounded otherwise" in str(held["notes"])


def test_a_side_with_another_text_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Side.answer

    def other(self: Side, prompt: Sequence[int], sequence: int) -> Any:
        sample = answer(self, prompt, sequence)
        if self.name == "drafter=suffix":
            sample.tokens[3] += 1
        return sample

    monkeypatch.setattr(Side, "answer", other)
    assert task("drafter=suffix", "peers=transformers").run(job(tmp_path)) == 1
    held = json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))
    assert "drafter=suffix: 2 of 2 texts differ" in held["failures"][0]
    assert sides(tmp_path)["drafter=suffix"]["num_same_text"] == 0


def test_a_draft_that_the_target_names_assists(tmp_path: Path) -> None:
    asked = job(tmp_path)
    held = asked.engine.components.target.model  # type: ignore[attr-defined]
    draft = specframe.load([*RANDOM, "target.seed=9"]).components.target.model  # type: ignore[attr-defined]
    question = PeerQuestion(model=held, draft=draft, max_new_tokens=6, eos_ids=())
    ways = peers_module.Transformers().ways(question)
    assert [way.like for way in ways] == ["none", "ngram", "lm"]
    prompt = asked.engine.encode("hello")
    expected = asked.engine.generate(prompt).tokens
    held.generation_config.eos_token_id = expected[2]  # the run names no end, so there is none
    assert [way.answer(prompt) for way in ways] == [expected] * 3
    held.generation_config.eos_token_id = None


@pytest.mark.parametrize("drafts", ["other", "itself"])
def test_the_draft_is_the_targets_unless_it_is_the_target(drafts: str, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    for seed, name in enumerate(("model", "other")):
        made = model("llama", seed=seed, vocab_size=len(tokenizer))
        made.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    path = tmp_path / "model"
    draft = path if drafts == "itself" else tmp_path / "other"
    words = ["target=hf", f"target.path={path}", f"target.draft={draft}", "raw=true"]
    asked = job(tmp_path / "run", *words, "target.dtype=float64", "device=cpu")
    assert task("drafter=lm", "peers=transformers").run(asked) == 0
    found = sides(tmp_path / "run")
    label = "generate(assistant_model=LlamaForCausalLM)"
    assert (label in found) == (drafts == "other")
    if drafts == "other":
        assert found[label]["num_same_text"] == 2
        ratio = found[label]["seconds"] / found["drafter=lm"]["seconds"]
        assert found["drafter=lm"]["over_peer"] == pytest.approx(ratio)


def test_an_end_token_ends_a_peers_text_too(tmp_path: Path) -> None:
    # Texts count upwards: d is the third token after a.
    assert task("peers=transformers").run(job(tmp_path, "stop.eos=[102]")) == 0
    found = sides(tmp_path)
    assert found["generate()"]["num_tokens"] == found[BASELINE]["num_tokens"] < 12
    assert found[LOOKUP]["num_same_text"] == 2


class Echo(Peer):
    """Says the prompt's end, with no forward that anyone could see."""

    package: ClassVar[str] = "json"

    def ways(self, question: PeerQuestion) -> list[Way]:
        return [Way(label="echo", answer=lambda prompt: prompt[-question.max_new_tokens :])]

    def pass_of(
        self, question: PeerQuestion, context: Sequence[int]
    ) -> Callable[[Any], Any] | None:
        return None


def test_a_plugin_brings_a_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "PEERS", dict(peers_module.PEERS))
    peer("echo")(Echo)
    with pytest.raises(ValueError, match="echo: already registered"):
        peer("echo")(peers_module.Transformers)
    assert task("peers=echo").run(job(tmp_path)) == 0
    one = sides(tmp_path)["echo"]
    assert one["num_same_text"] == 0, "a peer's text is compared, never a failure"
    assert one["num_forwards"] is one["acceptance_length"] is one["outside"] is None
    assert one["seconds"] > 0
    monkeypatch.setattr(Echo, "package", "not_installed_anywhere")
    assert "Echo" not in [type(one).__name__ for one in peers()]
    task("peers=echo").run(job(tmp_path / "again"))
    assert "not_installed_anywhere is not installed" in str(comparison(tmp_path / "again"))


PLUGIN = """
from specframe.task.benchmark.peers import Peer, Way, peer

@peer("mine")
class Mine(Peer):
    package = "json"

    def ways(self, question):
        return [Way(label="mine", answer=lambda prompt: [1] * question.max_new_tokens)]
"""


def test_a_folder_is_all_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.py").write_text(PLUGIN, encoding="utf-8")
    monkeypatch.setattr(peers_module, "PEERS", dict(peers_module.PEERS))
    monkeypatch.setenv("SPECFRAME_PLUGINS", str(tmp_path))
    try:
        bootstrap()
        assert task("peers=mine").run(job(tmp_path / "run")) == 0
    finally:
        monkeypatch.undo()
        bootstrap()
        for name in [name for name in sys.modules if name.startswith("specframe.ext.mine")]:
            del sys.modules[name]
    assert sides(tmp_path / "run")["mine"]["num_tokens"] == 12


def test_economize_is_asked_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Model:
        def __init__(self, *configs: Any, decoding: Any) -> None:
            self.made = (configs, decoding)

        def decode(self, ids: torch.Tensor, count: int, *, stop: Any) -> Any:
            asked.append((*self.made, ids.tolist(), count, stop))
            return types.SimpleNamespace(tokens=torch.tensor([7, 8]))

    fake = types.ModuleType("economize")
    fake.DecodeConfig = lambda **given: given  # type: ignore[attr-defined]
    fake.apply = lambda model, *configs, decoding: Model(*configs, decoding=decoding)  # type: ignore[attr-defined]
    lookup = types.ModuleType("economize.techniques.lookup")
    lookup.LookupConfig = lambda **given: given  # type: ignore[attr-defined]
    for name, module in (
        ("economize", fake),
        ("economize.techniques", types.ModuleType("economize.techniques")),
        ("economize.techniques.lookup", lookup),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    model = types.SimpleNamespace(device=torch.device("cpu"))
    question = PeerQuestion(model=model, draft=None, max_new_tokens=5, eos_ids=(2,))
    plain, guessed = peers_module.Economize().ways(question)
    assert plain.answer([1, 3]) == guessed.answer([1, 3]) == [7, 8]
    assert (plain.like, guessed.like) == ("none", "ngram")
    assert asked[0] == ((), {"cycle_length": 1, "cuda_graphs": False}, [1, 3], 5, [2])
    assert asked[1][:2] == (({"max_ngram": 3},), {"cycle_length": 6, "cuda_graphs": False})


def test_the_model_is_put_back() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    model = Model()
    with watched_forwards(model, torch.device("cpu")) as spent:
        model(torch.zeros(1))
        model(torch.zeros(1))
    assert len(spent.seconds()) == 2 and min(spent.seconds()) > 0
    assert "forward" not in vars(model)
    model.forward = hook = lambda x: x  # type: ignore[method-assign]
    with watched_forwards(model, torch.device("cpu")):
        pass
    assert vars(model)["forward"] is hook


@pytest.mark.parametrize("width", [80, 200])
def test_a_narrow_terminal_cuts_no_column(
    width: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    monkeypatch.setattr("specframe.task.benchmark.printout.plain_console", lambda: console)
    entry = "target=random target.seed=5 target.vocab_size=500 drafter=suffix"
    task(entry, "peers=transformers", split=True).run(job(tmp_path))
    out = capsys.readouterr().out
    assert "\u2026" not in out
    assert max(map(len, out.splitlines()[:20])) <= width
    for heading in ("tokens/s", "over peer", "efficiency", "acceptance", "same text", "gaps"):
        assert heading in out
    table = out.partition("written to")[0]  # the conclusion names it once more
    assert table.count("generate()") == (2 if width == 80 else 1)
