"""task=profile: what it measures is a table, what it says follows from the table, and only the
same machine with the same words finds it again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import specframe
from specframe.compose.build import plan
from specframe.compose.overrides import compose
from specframe.costs.ceilings import Ceilings, MeasuredPass, Weights, measured
from specframe.costs.costing import BusyClock, Costing, Extent, row_counts
from specframe.costs.fingerprint import differences, fingerprint, keep, kept, kept_at
from specframe.costs.supply import shares_of, shipped_shares, supplied
from specframe.errors import ConfigError
from specframe.planning.cost_table import CostTable, DraftCost
from specframe.session.engine import Engine
from specframe.task.base import Job
from specframe.task.profile import Profile
from specframe.task.profile.findings import Findings
from specframe.task.profile.roofline import roofline
from specframe.testing.drafts import CHEAP
from tests.small_models import PROMPT, Composition, decode, drafter_of, target

SMALL = Extent(rows=(1, 2, 4), contexts=(8, 24), widths=(1, 2), repeats=1)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path / "cache"))


def engine_of(*words: str) -> Engine:
    return specframe.load(["target=toy", "tree=chain", "seed=3", *words])


def config_of(*words: str) -> dict[str, Any]:
    return plan(compose(["target=toy", "tree=chain", "seed=3", *words])).config


def job(folder: Path, *words: str) -> Job:
    def rebuild(more: Any) -> Engine:
        raise AssertionError("nothing is composed again")

    return Job(
        engine=engine_of(*words),
        config=config_of(*words),
        output_dir=folder,
        prompt=None,
        prompts=None,
        rebuild=rebuild,
    )


def profile(**changes: Any) -> Profile:
    values: dict[str, Any] = {"rows": 4, "contexts": [8, 24], "widths": [1, 2], "repeats": 1}
    values |= {"calibration": None, "prompts": 1, "tokens": 8}
    return Profile(**{**values, **changes})


# Measuring


@pytest.mark.parametrize("drafter", ["ngram", "lm", "none", "router", "recycling"])
def test_a_run_leaves_a_table_that_can_be_given(
    drafter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"drafter={drafter}"]
    assert profile().run(job(tmp_path, *words)) == 0
    held = json.loads((tmp_path / "profile.json").read_text(encoding="utf-8"))
    costs = CostTable.of(held["costs"])
    assert costs.rows == (1, 2, 3, 4)
    assert costs.contexts == (8, 24)
    for whole, forward in zip(costs.pass_ms, costs.forward_ms, strict=True):
        assert all(0 < part <= total for part, total in zip(forward, whole, strict=True))
    networks = {"lm": {"lm"}, "router": {"lm"}, "recycling": {"recycling"}}.get(drafter, set())
    assert set(costs.drafts) == set(costs.right) == networks
    assert costs.looks_up == (drafter in ("ngram", "router"))
    assert (costs.lookup_ms > 0) == costs.looks_up
    said = capsys.readouterr().out
    assert "% target" in said and "a forward by rows" in said
    assert kept(held["fingerprint"]) == costs
    assert held["ceilings"]["bytes_per_s"] > 0
    assert not (tmp_path / "roofline.svg").exists(), "a table of probabilities has no weights"
    given = specframe.load(
        ["target=toy", *words, "tree=auto", f"tree.costs={tmp_path / 'profile.json'}"]
    )
    assert len(given.generate((1, 2, 3), max_new_tokens=8).tokens) == 8


def test_every_size_is_what_was_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes have the rows that the table says they have."""
    engine, seen = engine_of("drafter=ngram"), []
    score = engine.parts.target.score

    def counted(draft: Any, *args: Any, **more: Any) -> Any:
        seen.append(draft.num_rows)
        return score(draft, *args, **more)

    monkeypatch.setattr(engine.parts.target, "score", counted)
    Costing(engine, SMALL, capacity=None, tick=lambda _: None)._passes(engine.parts.drafter, 8)
    assert seen == [1, 2, 4] * 2


@pytest.mark.parametrize(("repeats", "most"), [(1, 12), (3, 24)])
def test_progress_counts_every_pass(repeats: int, most: int) -> None:
    ticks: list[int] = []
    extent = replace(SMALL, repeats=repeats)
    Costing(engine_of("drafter=none"), extent, capacity=None, tick=ticks.append).table()
    assert sum(ticks) == extent.num_steps == most


def test_row_counts() -> None:
    assert row_counts(5, None) == (1, 2, 3, 4, 6, 8)
    assert row_counts(1, None) == (1,)
    assert row_counts(20, [4, 16, 64]) == (1, 4, 16, 32)


def test_contexts_fit_the_model_and_the_cache() -> None:
    wide = replace(SMALL, contexts=(8, 100_000))
    engine = Composition(target=target("llama"), drafter=drafter_of("ngram", "llama")).engine()
    made = Costing(engine, wide, capacity=None, tick=lambda _: None)
    assert made.extent.contexts[0] == 8
    assert made.extent.contexts[-1] < 128
    assert made.table().contexts == made.extent.contexts
    tight = Costing(engine, wide, capacity=64, tick=lambda _: None)
    assert tight.extent.contexts[-1] < 64


def test_levels_are_timed_by_their_width() -> None:
    engine = Composition(target=target("llama"), drafter=drafter_of("noisy", "llama")).engine()
    costs = Costing(engine, SMALL, capacity=None, tick=lambda _: None).table()
    assert set(costs.drafts) == {"lm"}
    assert costs.drafts["lm"].widths == (1, 2)
    assert min(costs.drafts["lm"].level_ms) > 0 and costs.drafts["lm"].root_ms > 0


def test_one_thread_counts_its_own_time() -> None:
    import time

    clock = BusyClock(torch.device("cpu"))
    start = clock.now()
    time.sleep(0.05)
    assert (clock.now() - start < 0.04) == (torch.get_num_threads() == 1)


# What it says


def findings(costs: CostTable, **more: Any) -> Findings:
    given = {"shares": costs.right, "split": {}, "rows": 32, "closed": False}
    return Findings(costs=costs, **{**given, **more})


def test_it_names_the_best_tree_and_the_price_of_others() -> None:
    line = (10.0, 10.5, 11.0, 40.0)
    costs = CostTable(
        rows=(1, 2, 4, 8), contexts=(8,), pass_ms=(line,), right={"net": ((0.5, 0.3, 0.1, 0.1),)}
    )
    (text,) = findings(costs, rows=8).sentences()
    # 1.9 tokens in 11 ms; of two rows 1.5 in 10.5; a fifth row takes 18.25 for 2 tokens.
    assert text.startswith("net: 4 nodes are best here, 1 deep (1.90 tokens a pass, 1.73 times")
    assert "2 cost 21 % more a token" in text
    many = replace(costs, right={"net": ((0.5, 0.3, 0.1, 0.1), (0.5, 0.3, 0.1, 0.0))})
    (text,) = findings(many, rows=8).sentences()
    assert "7 cost" in text and "% more a token" in text


def test_it_says_where_nothing_pays() -> None:
    dear = replace(CHEAP, rows=(1, 2), pass_ms=((10.0, 20.0),))
    (text,) = findings(dear).sentences()
    # 20.1 ms for 1.5 tokens beside 10 for one.
    assert text == "table: no tree pays here; 2 cost 34 % more a token"
    never = replace(dear, right={"table": ((0.0, 0.0),)})
    assert findings(never).sentences() == ["table: no tree pays here; its guesses were never right"]


def test_it_says_where_the_time_goes() -> None:
    split = {"draft": 21.0, "verify": 58.0, "accept": 3.0, "commit": 1.0, "host": 17.0}
    text = findings(CHEAP, split=split).sentences()[0]
    assert text == "time after prefill, as composed: 62 % target, 21 % draft, 17 % host"


def test_a_pass_reads_every_weight_once() -> None:
    composed = Composition(target=target("llama"))
    loop = decode(composed, PROMPT, 4).loop
    weights = Weights.of(composed.target, composed.cache)
    assert weights is not None
    # 3 layers of 32: q and o 32 x 32, k and v 32 x 16, three of 32 x 48; the head 97 x 32.
    linear = 3 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48) + 97 * 32
    assert weights.parameters == linear
    assert weights.bytes == 8 * linear
    assert (weights.token_elements, weights.queries) == (3 * 2 * 16, 2)
    one = weights.of_pass(4, 10, 2.0)
    assert one.bytes == 8 * linear + 10 * 8 * 96
    assert one.operations == 4 * (2 * linear + 2 * 96 * 2 * 10)
    assert loop.finish_reason == "length"


def test_the_roof_is_the_nearer_of_two_limits() -> None:
    ceilings = Ceilings(bytes_per_s=1e9, operations_per_s=4e9)
    narrow = MeasuredPass(rows=1, context=8, bytes=1e6, operations=1e6, ms=2.0)
    wide = MeasuredPass(rows=16, context=8, bytes=1e6, operations=16e6, ms=8.0)
    assert narrow.limit_ms(ceilings) == pytest.approx(1.0)
    assert wide.limit_ms(ceilings) == pytest.approx(4.0)
    svg = roofline([narrow, wide], ceilings, title="a < b")
    tree = ElementTree.fromstring(svg)
    texts = [node.text for node in tree.iter() if node.text]
    assert "a < b" in texts and "1" in texts and "16" in texts
    found = measured(target("llama"), BusyClock(torch.device("cpu")).now)
    assert found.bytes_per_s > 1e8 and found.operations_per_s > 1e8


def test_no_pass_lies_above_the_roof() -> None:
    low = Ceilings(bytes_per_s=1e9, operations_per_s=4e9)
    quick = MeasuredPass(rows=1, context=8, bytes=1e6, operations=1e5, ms=0.5)
    wide = MeasuredPass(rows=64, context=8, bytes=1e6, operations=16e6, ms=3.0)
    raised = low.above([quick, wide])
    assert raised.bytes_per_s == pytest.approx(2e9)
    assert raised.operations_per_s == pytest.approx(16e9 / 3)
    for one in (quick, wide):
        assert one.limit_ms(raised) <= one.ms * (1 + 1e-12)
    assert raised.above([]) == raised
    # Of several tries the best counts: the others were held up.
    times = iter([0.0, 9.0, 9.0, 10.0] + [20.0, 25.0] * 100)
    assert measured(target("llama"), lambda: next(times)).bytes_per_s == 2e3 * 2**26


# Whose table it is


def test_a_table_is_kept_and_found_by_its_fingerprint_alone() -> None:
    engine, config = engine_of("drafter=ngram"), config_of("drafter=ngram")
    here = fingerprint(engine, config)
    assert kept(here) is None
    assert keep(here, CHEAP) == kept_at(here)
    assert kept(here) == CHEAP
    for name in ("cpu", "torch_threads", "torch", "runtime", "drafter", "target", "sampling"):
        assert name in here
        assert kept(here | {name: "another"}) is None, name
    assert differences(here | {"torch": "2"}, here | {"torch": "1"}) == [
        'torch: "1" there, "2" here'
    ]


def test_a_file_in_the_wrong_place_is_measured_again(capsys: pytest.CaptureFixture[str]) -> None:
    engine, config = engine_of("drafter=ngram"), config_of("drafter=ngram")
    here = fingerprint(engine, config)
    keep(here, CHEAP)
    text = kept_at(here).read_text(encoding="utf-8").replace('"proposal": "place"', '"proposal": 1')
    kept_at(here).write_text(text, encoding="utf-8")
    assert kept(here) is None
    kept_at(here).write_text("{", encoding="utf-8")
    assert kept(here) is None
    assert "measured again" in capsys.readouterr().err


def test_without_a_table_a_short_one_is_measured_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["target=toy", "drafter=ngram", "tree=auto", "tree.max_nodes=4"]
    specframe.load(words)
    assert capsys.readouterr().err.count("costs measured on this machine in") == 1
    specframe.load(words)
    assert capsys.readouterr().err == ""
    specframe.load([*words[:3], "tree.max_nodes=8"])
    assert "costs measured" in capsys.readouterr().err, "larger passes were not measured"


def test_a_given_table_of_another_machine_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, config = engine_of("drafter=ngram"), config_of("drafter=ngram")
    here = fingerprint(engine, config)
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({"fingerprint": here, "costs": CHEAP.as_dict()}), encoding="utf-8")
    assert supplied(engine, config, file=str(file)) == CHEAP
    assert capsys.readouterr().err == ""
    there = here | {"cpu": "a fast one"}
    file.write_text(json.dumps({"fingerprint": there, "costs": CHEAP.as_dict()}), encoding="utf-8")
    supplied(engine, config, file=str(file))
    assert 'cpu: "a fast one" there' in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "{", "[]", '{"fingerprint": {}, "costs": {"rows": [1]}}'])
def test_what_is_no_table_is_refused(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tree\.costs=.*make one"):
        specframe.load(["target=toy", "drafter=ngram", "tree=auto", f"tree.costs={file}"])


def test_shares_of_another_sampling_are_not_taken() -> None:
    engine, config = engine_of("drafter=lm"), config_of("drafter=lm")
    held = {"sampling": config["sampling"], "proposal": "place", "accuracy": [[0.5, 0.1]]}
    assert shares_of(held, engine, config) == ((0.5, 0.1),)
    hot = config["sampling"] | {"temperature": 1.0}
    assert shares_of(held | {"sampling": hot}, engine, config) is None
    assert shares_of(held | {"proposal": "wor"}, engine, config) is None


@pytest.mark.parametrize("word", ["eagle", "eagle3", "medusa"])
def test_a_shipped_head_brings_its_shares(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, config = engine_of("drafter=ngram"), config_of("drafter=ngram")
    monkeypatch.setattr(engine.parts.target, "name", "package://smollm2")
    config["drafter"] = {"name": word, "path": None}
    shares = shipped_shares(engine, config, word)
    assert shares is not None and 0.3 < shares[0][0] < 0.5
    assert all(sum(row) <= 1 for row in shares)
    config["drafter"] = {"name": "router", "sources": ["ngram", word]}
    assert shipped_shares(engine, config, word) == shares
    config["drafter"] = {"name": word, "path": "another/head"}
    assert shipped_shares(engine, config, word) is None


def test_its_own_calibration_is_taken_and_a_wrong_one_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of("drafter=lm")
    file = tmp_path / "calibration.json"
    held = {"sampling": config["sampling"], "proposal": "place", "accuracy": [[0.0, 0.0]]}
    file.write_text(json.dumps(held), encoding="utf-8")
    profile(calibration=str(file)).run(job(tmp_path, "drafter=lm"))
    assert "no tree pays here; its guesses were never right" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"task\.calibration="):
        profile(calibration=str(tmp_path / "none.json")).run(job(tmp_path, "drafter=lm"))


@pytest.mark.parametrize("values", [[], [8, 4], [4, 4]])
def test_what_does_not_grow_is_named(values: list[int]) -> None:
    with pytest.raises(ValueError, match=r"task\.contexts="):
        profile(contexts=values)


def test_a_draft_cost_without_levels() -> None:
    assert DraftCost(root_ms=1.0, widths=(1,), level_ms=(0.0,)).ms([1, 4, 4]) == 1.0
