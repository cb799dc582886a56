"""Session set-up: plugins are found before tests are collected, torch keeps to one thread."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from specframe.plugins import bootstrap

bootstrap()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder of the checkout."""
    return Path(__file__).resolve().parents[1]
