"""No trace: the steps leave nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from specframe.session.engine import Engine
from specframe.trace.base import TRACES, Trace, Tracer


@TRACES.register("none")
class NoTrace(Trace):
    """Leaves the loop alone: it adds no observer, no host read and no file."""

    off: ClassVar[bool] = True

    def open(self, engine: Engine, folder: Path, config: dict[str, Any]) -> Tracer:
        return Tracer()
