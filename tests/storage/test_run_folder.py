"""A run's folder: one run at a time, one configuration, nothing written where it is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest

from specframe.errors import ConfigError
from specframe.storage.run_folder import RECORD_FILE, RunFolder

CONFIG: dict[str, Any] = {"seed": 1, "tree": {"name": "chain", "depth": 5}, "stop": {}}
FREE, OUTPUTS = {"task.colour"}, {"task.output"}


def opened(path: Path, **changes: Any) -> RunFolder:
    return RunFolder(path, config={**CONFIG, **changes}, named_by="hydra.run.dir")


def recorded(folder: RunFolder) -> AbstractContextManager[None]:
    return folder.recorded(free=FREE, outputs=OUTPUTS)


def finished(path: Path, **changes: Any) -> None:
    with opened(path, **changes) as folder:
        with recorded(folder):
            (path / "metrics.json").write_text("{}")
        folder.finish()


def snapshot(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_the_same_configuration_is_complete_and_another_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "run"
    with opened(place) as folder:
        assert not folder.is_complete
        with recorded(folder):
            (place / "metrics.json").write_text("{}")
    with opened(place) as folder:
        assert not folder.is_complete, "it did not finish, so it goes on"
        folder.finish()
    with opened(place) as folder:
        assert folder.is_complete
    before = snapshot(place)
    shown = os.path.relpath(place)
    for changes, told in (
        ({"seed": 2}, "seed=1, this one has 2"),
        ({"tree": {"name": "chain", "depth": 6}}, "tree.depth=5, this one has 6"),
        ({"tree": {"name": "chain"}}, "tree.depth=5, this one has no such key"),
        ({"prompt": None}, "prompt=no such key, this one has null"),
        ({"stop": {"eos": 1}}, "stop.eos=no such key, this one has 1"),
        ({"seed": True}, "seed=1, this one has true"),
        ({"seed": 1.0}, "seed=1, this one has 1.0"),
    ):
        with pytest.raises(ConfigError) as refused:
            opened(place, **changes)
        assert str(refused.value) == (
            f"hydra.run.dir={shown}: the run that is there has {told}; give the old value, or "
            "another folder"
        )
    assert snapshot(place) == before


def test_a_free_key_does_not_matter_and_the_run_goes_on(tmp_path: Path) -> None:
    finished(tmp_path, task={"colour": "auto"})
    with opened(tmp_path, task={"colour": "never"}) as folder:
        assert not folder.is_complete
    with opened(tmp_path, task={"colour": "auto"}) as folder:
        assert folder.is_complete


def test_the_content_of_a_file_is_part_of_the_configuration(tmp_path: Path) -> None:
    place, prompts, models = tmp_path / "run", tmp_path / "p.jsonl", tmp_path / "model"
    written = tmp_path / "answers"
    models.mkdir()
    for file in (prompts, models / "weights", written):
        file.write_text("a")
    names = {"prompts": str(prompts), "target": {"path": str(models)}}
    names["task"] = {"output": str(written)}
    finished(place, **names)
    (models / ".lock").write_text("")
    written.write_text("what the run itself writes")
    with opened(place, **names) as folder:
        assert folder.is_complete
    prompts.write_text("b")
    with pytest.raises(ConfigError, match=r"what prompts=.*p\.jsonl.* names has changed since"):
        opened(place, **names)
    prompts.write_text("a")
    (models / "weights").write_text("longer")
    with pytest.raises(ConfigError, match=r"what target\.path=.* names has changed since"):
        opened(place, **names)


def test_a_folder_that_is_read_may_hold_the_run(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("a")
    finished(tmp_path / "run", task={"runs": [str(tmp_path)]})
    with opened(tmp_path / "run", task={"runs": [str(tmp_path)]}) as folder:
        assert folder.is_complete
    (tmp_path / "third").write_text("a")
    with pytest.raises(ConfigError, match=r"what task\.runs=.* names has changed since"):
        opened(tmp_path / "run", task={"runs": [str(tmp_path)]})


def test_a_second_command_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(ConfigError) as refused:
        opened(tmp_path)
    assert str(refused.value) == (
        f"hydra.run.dir={os.path.relpath(tmp_path)}: another command is writing to this folder; "
        "wait for it, or give another one"
    )
    opened(tmp_path).close()


def test_a_killed_run_leaves_the_folder_free(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from specframe.storage.run_folder import RunFolder\n"
        f"held = RunFolder(Path({str(tmp_path)!r}) / 'b', config={{}}, named_by='x')\n"
        "print('locked', flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(ConfigError, match="another command is writing"):
            RunFolder(tmp_path / "b", config={}, named_by="x")
        process.send_signal(signal.SIGKILL)
    RunFolder(tmp_path / "b", config={}, named_by="x").close()


def test_what_failed_before_any_result_is_not_on_record(tmp_path: Path) -> None:
    for with_result in (False, True):
        with opened(tmp_path) as folder, suppress(ZeroDivisionError), recorded(folder):
            (tmp_path / "manifest.json").write_text("{}")
            (tmp_path / "specframe.log").write_text("")
            if with_result:
                (tmp_path / "generations.jsonl").write_text("{}\n")
            raise ZeroDivisionError
        assert (tmp_path / RECORD_FILE).exists() == with_result
    with pytest.raises(ConfigError, match="seed=1, this one has 2"):
        opened(tmp_path, seed=2)


def test_results_of_unknown_origin_and_a_damaged_record_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    opened(tmp_path).close()
    (tmp_path / "generations.jsonl").write_text("{}\n")
    before = snapshot(tmp_path)
    with pytest.raises(ConfigError, match=r"it has a run without run\.json.*another folder"):
        opened(tmp_path)
    for content in ("", "{", "[]", "3", '{"config": {}}'):
        (tmp_path / RECORD_FILE).write_text(content)
        with pytest.raises(ConfigError, match=r"its run\.json is damaged; give another folder"):
            opened(tmp_path)
    (tmp_path / RECORD_FILE).unlink()
    assert snapshot(tmp_path) == before


def test_a_password_is_compared_but_not_written(tmp_path: Path) -> None:
    finished(tmp_path, task={"api_key": "hunter2"})
    assert "hunter2" not in (tmp_path / RECORD_FILE).read_text()
    with opened(tmp_path, task={"api_key": "hunter2"}) as folder:
        assert folder.is_complete
    with pytest.raises(ConfigError, match=r"task\.api_key=") as refused:
        opened(tmp_path, task={"api_key": "hunter3"})
    assert "hunter" not in str(refused.value)


def test_a_record_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(tmp_path)
    before = snapshot(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with opened(tmp_path) as folder:
        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            folder.finish()
    assert snapshot(tmp_path) == before
    assert json.loads((tmp_path / RECORD_FILE).read_text())["complete"] is True
