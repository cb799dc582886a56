"""Passes by rows, memory, gaps between kernels, and the two experiments that print them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import specframe
from specframe.compose.build import plan
from specframe.compose.overrides import compose, replaced
from specframe.measure.metrics import peak_memory_bytes
from specframe.runtime.packed import Packed
from specframe.target.hf import HF
from specframe.task.base import Job
from specframe.task.benchmark.machine import footprint, host_gaps, idle_share, weights_bytes
from specframe.task.benchmark.peers import PeerQuestion, Transformers
from tests.commands import Command
from tests.small_models import CPU, model
from tests.task.test_peers import comparison, job, sides, task

ROOT = Path(__file__).resolve().parents[2]
TINY = ("target.layers=2", "target.hidden=64", "target.intermediate=96", "max_new_tokens=6")


def without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of passes start no process."""
    held = {"peak_bytes": 4e6, "before_bytes": 1e6, "weights_bytes": 2e6, "cache_bytes": 0}
    found = {**held, "ratio": 2.0}
    monkeypatch.setattr("specframe.task.benchmark.comparison.footprint", lambda words: found)


@pytest.mark.slow
def test_passes_of_ours_and_of_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_memory(monkeypatch)
    asked = job(tmp_path, "target.layers=6", "target.hidden=256")
    other = "target=random target.seed=3 drafter=suffix"
    entries = (other, "runtime=packed drafter=suffix", "peers=transformers")
    assert task(*entries, passes=[1, 8, 64]).run(asked) == 0
    mine, theirs, packed = comparison(tmp_path)["passes"]
    assert packed["runtime"] == "packed" and packed["target"] == mine["target"]
    assert mine["rows"] == theirs["rows"] == [1, 8, 64]
    assert mine["target"] != theirs["target"] and mine["runtime"] == "eager"
    assert mine["context"] == 128
    for one in (mine["forward_ms"], mine["step_ms"], mine["peers"]["transformers"]):
        assert len(one) == 3 and min(one) > 0
        assert one[2] > one[0], "64 rows of this shape take longer than one"
    assert all(step > pure for step, pure in zip(mine["step_ms"], mine["forward_ms"], strict=True))
    assert theirs["peers"] == {}, "no peer was asked for there"
    assert mine["moved"][0] == mine["moved"][2] > weights_of(asked)
    assert mine["copy_bytes_per_s"] > 1e8
    out = capsys.readouterr().out
    for word in ("a plain step", "of one row", "ours / transformers 1 row", "GB/s", "2.00 of one"):
        assert word in out


def weights_of(asked: Job) -> int:
    """Bytes of the linear layers, by hand: a pass reads no embedding."""
    held: Any = asked.engine.components.target.model  # type: ignore[attr-defined]
    table = held.get_input_embeddings().weight
    norms = sum(one.nbytes for one in held.parameters() if one.dim() == 1)
    return int(sum(one.nbytes for one in held.parameters()) - table.nbytes - norms)


def test_a_peers_pass_leaves_its_context(tmp_path: Path) -> None:
    held: Any = job(tmp_path).engine.components.target.model  # type: ignore[attr-defined]
    question = PeerQuestion(model=held, draft=None, max_new_tokens=4, eos_ids=())
    run = Transformers().pass_of(question, [1, 2, 3])
    assert run is not None
    first = run([4, 5]).logits
    run([9] * 7)
    assert first.equal(run([4, 5]).logits)
    assert first.shape[1] == 2


@pytest.mark.parametrize("rows", [[2, 4], [1, 4, 2], [1, 1], []])
def test_rows_must_grow_from_one(rows: list[int]) -> None:
    with pytest.raises(ValueError, match=r"task\.passes=.* must grow from 1"):
        task(passes=rows)


@pytest.mark.slow
def test_memory_of_a_process_of_its_own() -> None:
    shape = ["target.layers=8", "target.hidden=512", "target.intermediate=2048"]
    words = ["target=random", "drafter=none", "tree=chain", *shape]
    found = footprint([*words, "max_new_tokens=4"])
    assert "error" not in found
    # By hand: attention, MLP and norms of each block, embedding, head and the last norm.
    block = 4 * 512 * 512 + 3 * 512 * 2048 + 2 * 512
    assert found["weights_bytes"] == 4 * (8 * block + 2 * 1024 * 512 + 512)
    assert found["cache_bytes"] >= 8 * 2 * 4 * 512 * 256
    assert found["peak_bytes"] / found["weights_bytes"] > 0.9
    assert found["ratio"] == pytest.approx(
        found["peak_bytes"] / (found["weights_bytes"] + found["cache_bytes"])
    )


@pytest.mark.slow
def test_the_default_model_is_in_memory_once() -> None:
    found = footprint(["drafter=none", "tree=chain"])
    assert found["weights_bytes"] == 538_060_032
    assert 0.9 < found["ratio"] < 1.3


@pytest.mark.parametrize(("form", "size"), [("float32", 4), ("bfloat16", 2), ("int8", 1)])
def test_packed_weights_count_as_they_are_kept(form: Any, size: int) -> None:
    made = model("llama", hidden_size=64, head_dim=16).float()
    linear = [one for one in made.modules() if isinstance(one, torch.nn.Linear)]
    numel = sum(one.weight.numel() for one in linear)
    scales = 4 * sum(one.out_features for one in linear) if form == "int8" else 0
    rest = sum(one.nbytes for one in made.parameters()) - 4 * numel
    runtime = Packed(weights=form, drafts="int8", kernel="own", cuda=None, buckets=None)
    assert weights_bytes(HF.of(made, runtime=runtime)) == rest + size * numel + scales


def test_a_tied_head_counts_once() -> None:
    made = model("llama", tie_word_embeddings=True, hidden_size=64, head_dim=16).float()
    size = sum(one.nbytes for one in made.parameters())
    runtime = Packed(weights="float32", drafts="bfloat16", kernel="own", cuda=None, buckets=None)
    assert weights_bytes(HF.of(made, runtime=runtime)) == size
    toy = specframe.load(["target=toy", "drafter=none"]).components.target
    assert weights_bytes(toy) == 0


@pytest.mark.parametrize(
    ("errors", "told"), [("Traceback\nValueError: no\n", "ValueError: no"), ("", "exit code -9")]
)
def test_a_process_that_fails_is_told(
    errors: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], -9, stdout="half a line", stderr=errors)
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: done)
    assert footprint(["target=toy"]) == {"error": told}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is looked at in /proc")
def test_a_process_does_not_inherit_the_peak_of_who_started_it() -> None:
    held = bytearray(300_000_000)
    held[::4096] = b"x" * len(held[::4096])
    mine = peak_memory_bytes(CPU)
    code = "from specframe.measure.metrics import *; print(peak_memory_bytes(torch.device('cpu')))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert mine is not None and int(done.stdout) < mine - 200_000_000
    del held


@pytest.mark.parametrize(
    ("spans", "share"),
    [
        ([(0, 4), (6, 10)], 0.2),
        ([(6, 10), (0, 4)], 0.2),
        ([(0, 5), (1, 2), (4, 8), (9, 10)], 0.1),
        ([(3, 7)], 0.0),
        ([], None),
        ([(2, 2)], None),
    ],
)
def test_idle_share(spans: list[tuple[float, float]], share: float | None) -> None:
    found = idle_share(spans)
    assert found == (None if share is None else pytest.approx(share))


def test_a_cpu_has_no_gaps(tmp_path: Path) -> None:
    assert host_gaps(job(tmp_path).engine, [1, 2, 3]) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gaps_of_a_device(tmp_path: Path) -> None:
    engine = job(tmp_path, "device=cuda", "max_new_tokens=200").engine
    share = host_gaps(engine, [1, 2, 3])
    assert share is not None and 0 < share < 1


def gpu_check(tmp_path: Path, command: Command) -> str:
    """The experiment with small numbers; returns what it prints."""
    second = "target=random target.layers=3 drafter=ngram tree=chain"
    compare = f'["drafter.rates=[0.6]","drafter.rates=[0.9]","peers=transformers","{second}"]'
    words = ("experiment=gpu_check", "target=random", f"task.compare={compare}")
    numbers = ("max_new_tokens=24", "task.passes=[1,16,64]", f"hydra.run.dir={tmp_path}")
    done = command(*TINY, *words, *numbers)
    assert done.code == 0, done.err
    found = sides(tmp_path)
    assert len(found) == 8
    for one in found.values():
        assert one["num_same_text"] == one["num_texts"] == 6
    low, middle, high = (
        found[name] for name in ("drafter.rates=[0.6]", "method", "drafter.rates=[0.9]")
    )
    lengths = [one["acceptance_length"] for one in (low, middle, high)]
    assert lengths == sorted(lengths) and 1.5 < lengths[0] < lengths[2] < 6
    for one in (low, middle, high):
        assert one["synthetic"] and one["speedup_decode"] > 0
        ideal = one["speedup_decode"] / one["acceptance_length"]
        assert one["efficiency"] == pytest.approx(ideal)
        assert one["steps"]["draft"] > 0 and one["steps"]["verify"] > 0
    first, other = comparison(tmp_path)["passes"]
    assert first["rows"] == [1, 16, 64] and "transformers" in first["peers"]
    assert other["peers"] == {}
    for word in ("efficiency", "draft", "verify", "gaps", "n/a", "a plain step", "GB/s", "a copy"):
        assert word in done.out
    return done.out


@pytest.mark.slow
def test_gpu_check_from_end_to_end(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_memory(monkeypatch)
    gpu_check(tmp_path, command)


@pytest.mark.slow
def test_gpu_check_measures_memory_in_a_process_of_its_own(
    tmp_path: Path, command: Command
) -> None:
    out = gpu_check(tmp_path, command)
    assert re.search(r"memory of the composed method alone.*peak \d+ MB", out)


@pytest.mark.slow
def test_speed_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_memory(monkeypatch)
    words = ["experiment=speed", "target=random", "task.passes=[1,2]", "task.rounds=2", *TINY]
    made = plan(compose([*words, "task.per_category=1"]))
    asked = Job(
        engine=made.load(),
        config=made.config,
        output_dir=tmp_path,
        prompt=None,
        prompts=None,
        rebuild=lambda more: specframe.load(replaced(words, more)),
    )
    assert made.bound["task"].make().run(asked) == 0
    found = sides(tmp_path)
    expected = ["baseline", "method", "drafter=suffix tree=auto drafter.alpha=4", "generate()"]
    assert [name for name in expected if name in found] == expected
    assert len(found["method"]["categories"]) == 6
    left_out = comparison(tmp_path)["left_out"]
    assert list(left_out) == ["drafter=router tree=auto drafter.sources=[suffix,eagle3]"]
    assert "Left out: drafter=router" in capsys.readouterr().out


def test_no_peers_for_a_toy_is_one_line(command: Command) -> None:
    done = command("experiment=speed", "target=toy")
    assert done.code == 2
    lines = [line for line in done.err.splitlines() if "error" in line]
    assert len(lines) == 1 and "use target=hf" in lines[0]
    assert "Traceback" not in done.err
