"""Nothing is kept of the steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from specframe.generation import Engine
from specframe.trace.base import TRACES, Recorder, Trace


@TRACES.register("none")
class NoTrace(Trace):
    """Leaves the loop alone: no observer, no read, no file."""

    off: ClassVar[bool] = True

    def open(self, engine: Engine, folder: Path, config: dict[str, Any]) -> Recorder:
        return Recorder()
