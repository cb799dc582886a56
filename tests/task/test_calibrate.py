"""task=calibrate: the table is the one that can be worked out, and its trees are loaded."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import specframe
from specframe.costs.calibration import Calibrator
from specframe.costs.rank_counts import RankCounts
from specframe.drafter.medusa import Medusa
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.planning.rank_paths import expected_length
from specframe.session.engine import Engine
from specframe.task.base import Job
from specframe.task.calibrate import Calibrate
from tests.heads.small_medusa_heads import jumps_target, perfect_medusa, words_for
from tests.small_models import RUNTIME, Composition, lm_of, sampling_config, target, tree_of

VOCAB = 6


def engine_of(*words: str) -> Engine:
    tree = [] if any(word.startswith("tree=") for word in words) else ["tree=chain"]
    return specframe.load(["target=toy", "drafter=lm", *tree, "seed=3", *words])


def job(folder: Path, engine: Engine, *, prompt: str | None = None, name: str = "lm") -> Job:
    def rebuild(more: Any) -> Engine:
        raise AssertionError("nothing is composed again")

    return Job(
        engine=engine,
        config={"drafter": {"name": name}, "sampling": {}},
        output_dir=folder,
        prompt=prompt,
        prompts=None if prompt else folder / "prompts.txt",
        rebuild=rebuild,
    )


def report(folder: Path) -> dict[str, Any]:
    held: dict[str, Any] = json.loads((folder / "calibration.json").read_text(encoding="utf-8"))
    return held


def by_hand(engine: Engine, prompts: list[str], depth: int, top_k: int) -> RankCounts:
    """The counts from the draft's table alone."""
    small = engine.components.drafter.model  # type: ignore[attr-defined]
    counts = RankCounts(depth=depth, top_k=top_k)
    for number, prompt in enumerate(prompts):
        made = engine.generate(prompt, sequence=number)
        text = [*made.prompt_tokens, *made.tokens]
        for root in range(len(made.prompt_tokens), len(text) - 1):
            ranks = []
            room = min(depth, len(text) - 1 - root)
            for here in range(root, root + room):
                law = small.law(text[: here + 1])
                rank = int((law > law[text[here + 1]]).sum())
                ranks.append(rank if rank < top_k else -1)
                if rank >= top_k:
                    break
            counts.add(ranks, room)
    return counts


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("top_k", [2, 6])
def test_the_table_on_the_toy(temperature: float, top_k: int, tmp_path: Path) -> None:
    engine = engine_of(f"sampling.temperature={temperature}", "max_new_tokens=25")
    prompts = ["abcab", "dead", "f"]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts), encoding="utf-8")
    assert Calibrate(max_nodes=12, depth=3, top_k=top_k).run(job(tmp_path, engine)) == 0
    wanted, held = by_hand(engine, prompts, 3, top_k), report(tmp_path)
    assert held["reached"] == wanted.reached()
    assert held["hits"] == wanted.hits()
    assert held["num_positions"] == 3 * 24
    # The last token of an answer has no child, the one before it one level.
    assert wanted.reached()[0] == 3 * 24
    for tree in held["trees"].values():
        paths = [tuple(path) for path in tree["paths"]]
        assert tree["expected_acceptance_length"] == expected_length(wanted.table(), paths)
        assert tree["counted_acceptance_length"] == wanted.counted_length(paths)


def test_shares_are_those_of_the_law(tmp_path: Path) -> None:
    """At T = 1 the text is a Markov chain, whose stationary law gives every share."""
    engine = engine_of("sampling.temperature=1", "max_new_tokens=500")
    Calibrate(max_nodes=8, depth=1, top_k=VOCAB).run(job(tmp_path, engine, prompt="abcab"))
    law = engine.components.target.table.exp()  # type: ignore[attr-defined]
    draft = engine.components.drafter.model.table  # type: ignore[attr-defined]
    pairs = torch.full((VOCAB, VOCAB), VOCAB**-2.0, dtype=torch.float64)
    for _ in range(400):
        pairs = torch.einsum("ab,abc->bc", pairs, law)
    ranked = law.gather(-1, draft.argsort(dim=-1, descending=True))
    shares = torch.einsum("ab,abk->k", pairs, ranked).tolist()
    held = report(tmp_path)
    count = held["reached"][0]
    for found, wanted in zip(held["accuracy"][0], shares, strict=True):
        # The chain mixes in a few tokens, which widens the interval.
        assert abs(found - wanted) < 6 * math.sqrt(wanted * (1 - wanted) / count) + 1e-9
    assert sum(shares) == pytest.approx(1)


def test_draws_are_ranked_in_their_order(tmp_path: Path) -> None:
    words = ["sampling.temperature=1", "max_new_tokens=25", "tree=static"]
    for how in ("wor", "iid"):
        engine = engine_of(*words, f"tree.proposal={how}")
        Calibrate(max_nodes=9, depth=2, top_k=VOCAB).run(job(tmp_path, engine, prompt="abc"))
        held = report(tmp_path)
        # Six draws without replacement are all six tokens.
        full = sum(held["hits"][0]) == held["reached"][0]
        assert full == (how == "wor")
        for tree in ("greedy", "sequoia"):
            file = tmp_path / f"tree_{tree}.json"
            again = engine_of(*words, f"tree.proposal={how}", f"tree.paths={file}")
            assert again.generate("abc").tokens == engine.generate("abc").tokens


def test_the_files_are_trees_that_are_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = engine_of("sampling.temperature=1", "max_new_tokens=150")
    Calibrate(max_nodes=10, depth=4, top_k=4).run(job(tmp_path, engine, prompt="abcab"))
    shown = capsys.readouterr().out
    for name in ("greedy", "sequoia"):
        word = f"tree.paths={tmp_path / f'tree_{name}.json'}"
        assert word in shown
        again = engine_of(
            "sampling.temperature=1", "tree=static", word, "tree.max_nodes=10", "tree.depth=4"
        )
        loop = again.decoding(max_new_tokens=150)
        loop.begin(again.encode("abcab"))
        lengths = Counter[int]()
        while loop.finish_reason is None:
            record = loop.step()
            lengths[len(record.tokens)] += 1
        held = json.loads((tmp_path / f"tree_{name}.json").read_text(encoding="utf-8"))
        assert held["max_nodes"] == 1 + len(held["paths"]) == 10
        measured = sum(size * times for size, times in lengths.items()) / lengths.total()
        assert measured == pytest.approx(held["counted_acceptance_length"], rel=0.2)
    picture = ElementTree.parse(tmp_path / "heatmap.svg").getroot()
    texts = [node.text for node in picture.findall(".//{*}text")]
    shares = json.loads((tmp_path / "calibration.json").read_text(encoding="utf-8"))["accuracy"]
    assert all(f"{100 * share:.1f}" in texts for row in shares for share in row)
    assert {"rank 0", "rank 3", "depth (judged)"} <= set(texts)


def counted(composed: Composition, prompt: Any, depth: int) -> RankCounts:
    counts = RankCounts(depth=depth, top_k=3)
    Calibrator(composed.engine(16), counts).count(prompt, sequence=0)
    return counts


@pytest.mark.parametrize("heads", [2, 4])
def test_perfect_heads_are_always_right(heads: int) -> None:
    model = jumps_target()
    drafter = Medusa.of(perfect_medusa(model, heads=heads), target=model, runtime=RUNTIME)
    composed = Composition(target=model, drafter=drafter, tree=tree_of("dynamic"))
    counts = counted(composed, (5, 17, 42), 4)
    right = [1.0] * heads + [0.0] * (4 - heads)
    assert [row[0] for row in counts.table()] == right
    assert counts.reached() == [15, 14, 13, 12][: heads + 1] + [0] * (3 - heads)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_perfect_draft_model_has_the_likeliest_token_first(temperature: float) -> None:
    composed = Composition(
        target=target("llama"),
        drafter=lm_of(target("llama"), target("llama")),
        sampling=sampling_config(temperature),
    )
    counts = counted(composed, (5, 17, 42), 3)
    if temperature == 0:
        assert counts.hits() == [[15, 0, 0], [14, 0, 0], [13, 0, 0]]
    assert counts.num_positions == 15


@pytest.mark.parametrize("drafter", ["ngram", "medusa", "hello"])
def test_any_drafter(drafter: str, tmp_path: Path) -> None:
    words = words_for("toy", tmp_path / "heads") if drafter == "medusa" else ()
    engine = specframe.load(["target=toy", f"drafter={drafter}", *words, "max_new_tokens=30"])
    expected = engine.generate("abcab").tokens
    task = Calibrate(max_nodes=8, depth=3, top_k=3)
    assert task.run(job(tmp_path, engine, prompt="abcab", name=drafter)) == 0
    held = report(tmp_path)
    assert held["reached"][0] == 29
    assert engine.generate("abcab").tokens == expected


def test_an_interrupted_run_keeps_what_was_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Calibrator.count

    def stopped(self: Calibrator, prompt: str, *, sequence: int) -> int:
        if sequence == 2:
            raise KeyboardInterrupt
        return inner(self, prompt, sequence=sequence)

    monkeypatch.setattr(Calibrator, "count", stopped)
    (tmp_path / "prompts.txt").write_text("abc\nde\nf\n", encoding="utf-8")
    given = job(tmp_path, engine_of("max_new_tokens=8"))
    with pytest.raises(KeyboardInterrupt):
        Calibrate(max_nodes=8, depth=2, top_k=3).run(given)
    assert report(tmp_path)["num_positions"] == 2 * 7
    assert (tmp_path / "tree_greedy.json").is_file()


def test_what_cannot_be_done_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = Calibrate(max_nodes=8, depth=2, top_k=3)
    with pytest.raises(IncompatibleComponents, match="choose a drafter"):
        task.check({"drafter": {"name": "none"}})
    with pytest.raises(ConfigError, match="raise max_new_tokens"):
        task.run(job(tmp_path, engine_of("max_new_tokens=1"), prompt="abc"))
    (tmp_path / "prompts.txt").write_text("XYZ\nabc\n", encoding="utf-8")
    assert task.run(job(tmp_path, engine_of("max_new_tokens=8"))) == 1
    assert (
        "prompt 1: the prompt 'XYZ' has nothing of the vocabulary of target=toy"
        in capsys.readouterr().err
    )
    assert report(tmp_path)["num_positions"] == 7
