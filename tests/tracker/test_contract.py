"""A tracker that is a plugin keeps the contract, as the example of plugins/README.md does."""

from __future__ import annotations

import pytest

from specframe.testing.trackers import TrackerContract


class TestTensorBoard(TrackerContract):
    """tracker=tensorboard, where it is installed."""

    word = "tensorboard"

    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        pytest.importorskip("tensorboard")
