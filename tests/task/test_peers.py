"""task=peers: both sides answer alike, and the report says what was timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import specframe
from specframe.errors import IncompatibleComponents
from specframe.task.base import Job
from specframe.task.peers import Peers, _forwards


def job(folder: Path, *overrides: str) -> Job:
    words = ["max_new_tokens=6", *overrides]
    drafter = next((word.partition("=")[2] for word in words if "drafter=" in word), "ngram")
    return Job(
        engine=specframe.load(words),
        config={"drafter": {"name": drafter}, "max_new_tokens": 6},
        output_dir=folder,
        prompt=None,
        prompts=folder / "prompts.txt",
        rebuild=lambda more: (
            specframe.load([*(w for w in words if "drafter" not in w), *more])
            if "drafter=none" in more
            else specframe.load([*words, *more])
        ),
    )


@pytest.mark.parametrize("drafter", ["ngram", "lm", "none", "hello"])
def test_report(drafter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "Tell me a long story about a long river.\n"
    (tmp_path / "prompts.txt").write_text(text, encoding="utf-8")
    task = Peers(rounds=1, per_category=1, lookup_tokens=4)
    assert task.run(job(tmp_path, f"drafter={drafter}")) == 0
    report = json.loads((tmp_path / "peers.json").read_text(encoding="utf-8"))
    names = [line["name"] for line in report["lines"]]
    assert names[:2] == ["drafter=none", "generate()"]
    assert len(names) == {"none": 2, "hello": 3}.get(drafter, 4)
    for line in report["lines"]:
        assert line["same_text"] == 1
        assert line["num_tokens"] == 6
        assert 0 < line["forward_s"] < line["wall_s"]
    assert report["lines"][0]["num_forwards"] == 6
    assert "outside forward" in capsys.readouterr().out


def test_a_toy_has_no_peer(tmp_path: Path) -> None:
    with pytest.raises(IncompatibleComponents, match="target=hf"):
        Peers(rounds=1, per_category=1, lookup_tokens=4).run(
            job(tmp_path, "target=toy", "drafter=ngram")
        )


def test_the_model_is_put_back() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    model = Model()
    with _forwards(model) as spent:
        model(torch.zeros(1))
    assert len(spent) == 1
    assert "forward" not in vars(model)
