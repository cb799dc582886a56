"""Keeps the manifest of a run true from its first moment to its last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specframe.session.engine import Engine
from specframe.session.manifest import describe, hydra_words, json_bytes, surroundings, write_json
from specframe.session.warmup import prepared_s

_ROOM = 2048  # bytes behind a running manifest, for its end
_LONGEST_ERROR = 200  # characters of an error that is written into that room


@contextmanager
def recorded(output_dir: Path, *, engine: Engine | None, config: dict[str, Any]) -> Iterator[None]:
    """Keep manifest.json in `output_dir` true while the body runs.

    It is there from the start with state "running", and ends as "finished", "interrupted" or
    "failed". config: the resolved configuration, plain types. engine: None for a task that loads
    none.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    path = output_dir / "manifest.json"
    facts = surroundings(config) if engine is None else describe(engine, config)
    facts |= {"overrides": hydra_words(output_dir)}
    facts |= {"state": "running", "started": _now(), "ended": None, "error": None}
    write_json(path, facts)
    with path.open("a", encoding="utf-8") as file:
        file.write(" " * _ROOM)  # for its end, which must find a place on a full disk as well
    try:
        yield
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        state = "interrupted" if interrupted else "failed"
        text = None if interrupted else f"{type(error).__name__}: {error}"
        _end(path, facts | {"state": state, "ended": _now(), "error": text})
        raise
    if engine is not None:  # a baseline is made ready later
        facts["compile_s"] = prepared_s(engine.components.runtime.launch)
    try:
        write_json(path, facts | {"state": "finished", "ended": _now()})
    except OSError as error:
        text = f"{type(error).__name__}: {error}"
        _end(path, facts | {"state": "failed", "ended": _now(), "error": text})
        raise


def _end(path: Path, facts: dict[str, Any]) -> None:
    """Write how a run ended that did not finish; on a full disk, over the manifest that is there.

    What cannot be written is left: the error of the run itself says more.
    """
    with suppress(OSError):
        try:
            write_json(path, facts)
        except OSError:
            error = str(facts["error"] or "")[:_LONGEST_ERROR] or None
            content = json_bytes(facts | {"error": error})
            with path.open("r+b") as file:
                file.write(content.rstrip().ljust(path.stat().st_size - 1) + b"\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
