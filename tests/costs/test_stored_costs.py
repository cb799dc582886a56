"""A stored table is found by its fingerprint alone."""

from __future__ import annotations

import json

import pytest

from specframe.costs.fingerprint import differences, fingerprint
from specframe.costs.stored_costs import costs_file, load_costs, save_costs
from specframe.testing.draft_checks import CHEAP
from tests.costs.toy_engines import config_of, engine_of


def test_a_table_is_kept_and_found_by_its_fingerprint_alone() -> None:
    engine, config = engine_of("drafter=ngram"), config_of("drafter=ngram")
    here = fingerprint(engine, config)
    assert load_costs(here) is None
    assert save_costs(here, CHEAP) == costs_file(here)
    assert load_costs(here) == CHEAP
    for name in ("cpu", "torch_threads", "torch", "runtime", "drafter", "target", "sampling"):
        assert name in here
        assert load_costs(here | {name: "another"}) is None, name
    assert differences(here | {"torch": "2"}, here | {"torch": "1"}) == [
        'torch: "1" there, "2" here'
    ]


def test_a_file_in_the_wrong_place_is_measured_again(capsys: pytest.CaptureFixture[str]) -> None:
    engine, config = engine_of("drafter=ngram"), config_of("drafter=ngram")
    here = fingerprint(engine, config)
    save_costs(here, CHEAP)
    text = (
        costs_file(here).read_text(encoding="utf-8").replace('"proposal": "place"', '"proposal": 1')
    )
    costs_file(here).write_text(text, encoding="utf-8")
    assert load_costs(here) is None
    costs_file(here).write_text("{", encoding="utf-8")
    assert load_costs(here) is None
    assert "measured again" in capsys.readouterr().err


def test_a_changed_figure_is_measured_again(capsys: pytest.CaptureFixture[str]) -> None:
    here = fingerprint(engine_of("drafter=ngram"), config_of("drafter=ngram"))
    save_costs(here, CHEAP)
    assert load_costs(here) == CHEAP
    file = costs_file(here)
    stored = json.loads(file.read_text(encoding="utf-8"))
    stored["costs"]["pass_ms"][0][1] *= 2
    file.write_text(json.dumps(stored), encoding="utf-8")
    assert load_costs(here) is None
    assert f"{file} is not what was stored there; measured again" in capsys.readouterr().err
