"""tracker=wandb against a stand-in: it is no dependency, not even of the tests."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specframe.errors import MissingResource
from specframe.tracker import base
from specframe.tracker.base import TrackedRun
from specframe.tracker.wandb import WandB


def test_a_run_of_a_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(base, "is_installed", lambda package: True)
    seen: dict[str, Any] = {}

    class Made:
        def log(self, numbers: dict[str, float]) -> None:
            seen["numbers"] = numbers

        def finish(self, exit_code: int) -> None:
            seen["code"] = exit_code

    def init(**given: Any) -> Made:
        seen.update(given)
        return Made()

    fake: Any = ModuleType("wandb")
    fake.init, fake.Settings = init, dict
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run = TrackedRun(
        name="abc",
        sweep="swept",
        directory=tmp_path,
        status="failed",
        config={"seed": 1},
        numbers={"speedup": 1.5},
    )
    WandB(project="mine", mode="offline").log(run)
    assert (seen["mode"], seen["group"], seen["dir"]) == ("offline", "swept", str(tmp_path))
    assert (seen["numbers"], seen["code"]) == ({"speedup": 1.5}, 1)
    assert seen["config"] == {"seed": 1, "status": "failed"}


def test_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "is_installed", lambda package: False)
    with pytest.raises(MissingResource, match="tracker=wandb needs a package: pip install wandb"):
        WandB(project="mine", mode="offline")
