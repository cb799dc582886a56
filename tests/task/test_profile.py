"""task=profile: what it measures is a table, what it says follows from the table, and only the
same machine with the same words finds it again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import specframe
from specframe.costs.stored_costs import load_costs
from specframe.errors import ConfigError
from specframe.planning.cost_table import CostTable
from specframe.session.engine import Engine
from specframe.task.base import Job
from specframe.task.profile import Profile
from specframe.task.profile.advice import Advice
from specframe.testing.draft_checks import CHEAP
from tests.costs.toy_engines import config_of, engine_of


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path / "cache"))


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
    assert (
        "% target" in said and "a forward by rows" in said and "of one row: how many times" in said
    )
    assert load_costs(held["fingerprint"]) == costs
    assert held["ceilings"]["bytes_per_s"] > 0
    assert not (tmp_path / "roofline.svg").exists(), "a table of probabilities has no weights"
    given = specframe.load(
        ["target=toy", *words, "tree=auto", f"tree.costs={tmp_path / 'profile.json'}"]
    )
    assert len(given.generate((1, 2, 3), max_new_tokens=8).tokens) == 8


# What it says


def advice(costs: CostTable, **more: Any) -> Advice:
    given = {"shares": costs.right, "split": {}, "max_rows": 32, "closed": False}
    return Advice(costs=costs, **{**given, **more})


def test_it_names_the_best_tree_and_the_price_of_others() -> None:
    line = (10.0, 10.5, 11.0, 40.0)
    costs = CostTable(
        rows=(1, 2, 4, 8), contexts=(8,), pass_ms=(line,), right={"net": ((0.5, 0.3, 0.1, 0.1),)}
    )
    (text,) = advice(costs, max_rows=8).sentences()
    # 1.9 tokens in 11 ms; of two rows 1.5 in 10.5; a fifth row takes 18.25 for 2 tokens.
    assert text.startswith("net: 4 nodes are best here, 1 deep (1.90 tokens a pass, 1.73 times")
    assert "2 cost 21 % more a token" in text
    many = replace(costs, right={"net": ((0.5, 0.3, 0.1, 0.1), (0.5, 0.3, 0.1, 0.0))})
    (text,) = advice(many, max_rows=8).sentences()
    assert "7 cost" in text and "% more a token" in text


def test_it_says_where_nothing_pays() -> None:
    dear = replace(CHEAP, rows=(1, 2), pass_ms=((10.0, 20.0),))
    (text,) = advice(dear).sentences()
    # 20.1 ms for 1.5 tokens beside 10 for one.
    assert text == "table: no tree pays here; 2 cost 34 % more a token"
    never = replace(dear, right={"table": ((0.0, 0.0),)})
    assert advice(never).sentences() == ["table: no tree pays here; its guesses were never right"]


def test_it_says_where_the_time_goes() -> None:
    split = {"draft": 21.0, "verify": 58.0, "accept": 3.0, "commit": 1.0, "host": 17.0}
    text = advice(CHEAP, split=split).sentences()[0]
    assert text == (
        "The time after prefill, as composed, goes to: 62 % target, 21 % draft, 17 % host."
    )


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
