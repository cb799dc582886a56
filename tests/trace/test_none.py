"""trace=none leaves the loop alone: nobody watches, nothing is written, nothing is computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specframe import load
from specframe.accept.base import RULES, AcceptRule
from specframe.law.target_laws import Laws
from specframe.task.base import Job
from specframe.task.generate import Generate
from specframe.trace.base import TRACES, TracedPrompt
from specframe.trace.none import NoTrace
from tests.commands import job_of


def job(folder: Path, *words: str, **more: Any) -> Job:
    engine = load(["target=toy", "drafter=lm", "max_new_tokens=12", *words])
    folder.mkdir(exist_ok=True)
    return job_of(engine, folder, prompt="abc", **more)


def test_it_is_off_and_the_default_of_a_job(tmp_path: Path) -> None:
    assert [name for name in TRACES.names() if TRACES.get(name).off] == ["none"]
    assert isinstance(job(tmp_path).trace, NoTrace)
    engine = load(["target=toy", "drafter=none"])
    recorder = NoTrace().open(engine, tmp_path, {})
    asked = TracedPrompt(number=0, id=None, category=None, prompt="a", prompt_tokens=[0])
    assert (NoTrace().traced_engine(engine), list(recorder.begin(asked))) == (engine, [])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rule", RULES.names())
def test_no_diagnostic_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    def never(name: str) -> Callable[..., Any]:
        def fail(*args: Any, **kwargs: Any) -> Any:
            raise AssertionError(f"{name} is for traces")

        return fail

    monkeypatch.setattr(Laws, "known", never("known"))
    for cls in (AcceptRule, RULES.get(rule)):
        monkeypatch.setattr(cls, "explain", never("explain"))
    task = Generate(stream=False, colour="never", show_rejected=False)
    words = (f"accept={rule}", "tree=chain", "sampling.temperature=0.8")
    assert task.run(job(tmp_path, *words)) == 0
    assert {file.name for file in tmp_path.iterdir()} == {
        "generations.jsonl",
        "generations.settings.json",
        "metrics.json",
    }
    with pytest.raises(AssertionError, match="is for traces"):
        task.run(job(tmp_path, *words, trace=TRACES.get("steps")(softmax=True)))  # type: ignore[call-arg]
