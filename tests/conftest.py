"""Session set-up: plugins are found before tests are collected, torch keeps to one thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from specframe.plugins import bootstrap
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
