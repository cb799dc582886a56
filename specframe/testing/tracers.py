"""The suite of tests for traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from specframe.compose import run_task
from specframe.compose.build import plan
from specframe.compose.overrides import compose
from specframe.session.engine import Engine
from specframe.testing.defaults import NEW_TOKENS, PROMPTS, ComponentContract
from specframe.trace.base import TRACES, TracedPrompt


def _composed(words: Sequence[str]) -> tuple[Engine, dict[str, Any]]:
    """The engine of these words, and what it was composed from."""
    made = plan(compose(words))
    return made.load(), made.config


class TraceContract(ComponentContract):
    """A trace watches a run, leaves its files in the run's folder, and changes no text.

    words: the composition that is traced.
    """

    words: ClassVar[tuple[str, ...]] = ("target=toy", "drafter=ngram", "tree=chain")

    def test_a_traced_run_leaves_its_files(self, name: str, tmp_path: Path) -> None:
        words = [*type(self).words, "prompt=abcab", f"max_new_tokens={NEW_TOKENS}"]
        left = {}
        for trace, keys in (("none", ()), (name, self.keys("trace"))):
            folder = tmp_path / f"run_{trace}"
            run_task.run(compose([*words, f"trace={trace}", *keys]), output_dir=folder)
            left[trace] = {file.name for file in folder.rglob("*") if file.is_file()}
        assert left["none"] <= left[name]
        assert TRACES.get(name).off or left[name] > left["none"], "the trace left no file"

    def test_text_is_that_of_an_untraced_run(self, name: str, tmp_path: Path) -> None:
        engine, config = _composed(type(self).words)
        trace = self.component("trace", name)
        expected = engine.generate(PROMPTS[0], max_new_tokens=NEW_TOKENS)
        traced: Any = trace.traced_engine(engine)
        with trace.open(traced, tmp_path, config) as tracer:
            observers = tracer.begin(
                TracedPrompt(number=0, id=None, category=None, prompt="", prompt_tokens=PROMPTS[0])
            )
            got = traced.generate(PROMPTS[0], max_new_tokens=NEW_TOKENS, observers=observers)
        assert got.tokens == expected.tokens

    def test_a_run_without_an_answer_can_be_closed(self, name: str, tmp_path: Path) -> None:
        engine, config = _composed(type(self).words)
        trace = self.component("trace", name)
        with (
            pytest.raises(KeyboardInterrupt),
            trace.open(trace.traced_engine(engine), tmp_path, config),
        ):
            raise KeyboardInterrupt
