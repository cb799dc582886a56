"""Session set-up: plugins are found before tests are collected, torch keeps to one thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from specframe.plugins import bootstrap
from specframe.session import manifest
from tests import composing
from tests.commands import Command, in_process

bootstrap()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder of the checkout."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command line within this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return in_process(monkeypatch, capsys)


@pytest.fixture(scope="session", autouse=True)
def _cheap_composition() -> Iterator[None]:
    with composing.cheap():
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_look_at_git() -> Iterator[None]:
    """Manifests of this process start no git each; the checkout stays as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "git_state", cache(manifest.git_state))
        yield


# Files that take longest, the longest first: what is started last should be short.
LONGEST = (
    "tests/test_smollm2.py",
    "tests/task/test_replay.py",
    "tests/test_lossless.py",
    "tests/test_cli.py",
    "tests/test_loop.py",
    "tests/drafter/test_layer_skip.py",
    "tests/sweep/test_sweeps.py",
    "tests/task/test_passes.py",
    "tests/test_pairs.py",
    "tests/drafter/test_early_exit.py",
    "tests/drafter/test_ouroboros.py",
    "tests/drafter/test_mtp.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; the order within a file stays."""
    places = {file: place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file goes to one worker as a whole, so that its models and texts are made once."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)
