"""Every trace, plugins included, keeps the contract."""

from __future__ import annotations

import pytest

from specframe.testing.tracers import TraceContract
from specframe.trace.base import TRACES


@pytest.mark.parametrize("name", TRACES.names())
class TestTraces(TraceContract):
    """The suite over the registry."""
