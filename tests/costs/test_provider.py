"""tree=auto takes the table that it is given, else a stored one, else it measures one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import specframe
from specframe.costs.fingerprint import fingerprint
from specframe.costs.provider import provide_costs
from specframe.errors import ConfigError
from specframe.testing.draft_checks import CHEAP
from tests.costs.toy_engines import config_of, engine_of


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
    assert provide_costs(engine, config, file=str(file)) == CHEAP
    assert capsys.readouterr().err == ""
    there = here | {"cpu": "a fast one"}
    file.write_text(json.dumps({"fingerprint": there, "costs": CHEAP.as_dict()}), encoding="utf-8")
    provide_costs(engine, config, file=str(file))
    assert 'cpu: "a fast one" there' in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "{", "[]", '{"fingerprint": {}, "costs": {"rows": [1]}}'])
def test_what_is_no_table_is_refused(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tree\.costs=.*make one"):
        specframe.load(["target=toy", "drafter=ngram", "tree=auto", f"tree.costs={file}"])
