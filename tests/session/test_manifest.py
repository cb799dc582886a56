"""The manifest: true from the first moment to the last, and free of secrets."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import specframe
from specframe.session.engine import Engine
from specframe.session.manifest import (
    fingerprint,
    git_state,
    weights_identity,
    write_json,
)
from specframe.session.run_state import recorded


@pytest.fixture(scope="module")
def engine() -> Engine:
    return specframe.load(["target=toy", "drafter=lm", "seed=5"])


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def test_states(tmp_path: Path, engine: Engine) -> None:
    with recorded(tmp_path, engine=engine, config={"a": 1}):
        running = read(tmp_path)
    assert (running["state"], running["ended"]) == ("running", None)
    finished = read(tmp_path)
    assert finished["state"] == "finished"
    assert finished["ended"] >= finished["started"]
    for error, state in ((KeyboardInterrupt(), "interrupted"), (RuntimeError("no"), "failed")):
        with (
            pytest.raises(type(error)),
            recorded(tmp_path, engine=engine, config={}),
        ):
            raise error
        assert read(tmp_path)["state"] == state
    assert read(tmp_path)["error"] == "RuntimeError: no"
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_content(tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_hidden")
    monkeypatch.setattr("sys.argv", ["specframe", "target.token=hf_hidden", "seed=5"])
    (tmp_path / ".hydra").mkdir()
    overrides = "- target=toy\n- target.token=hf_hidden\n"
    (tmp_path / ".hydra" / "overrides.yaml").write_text(overrides, encoding="utf-8")
    config = {"max_new_tokens": 3, "target": {"token": "hf_hidden", "options": [{"password": "x"}]}}
    with recorded(tmp_path, engine=engine, config=config):
        pass
    found = read(tmp_path)
    assert "hf_hidden" not in json.dumps(found)
    assert found["overrides"] == ["target=toy", "target.token=***"]
    assert found["command"] == ["specframe", "target.token=***", "seed=5"]
    masked = {"token": "***", "options": [{"password": "***"}]}
    assert found["config"] == {"max_new_tokens": 3, "target": masked}
    assert found["seed"] == 5
    assert {"torch", "transformers", "hydra-core"} <= set(found["packages"])
    assert found["hardware"]["cpu"]
    assert found["hardware"]["memory_bytes"] > 0
    assert found["target"]["dtype"] == "float64"
    assert found["target"]["tokenizer"]["of"] == "vocabulary"
    assert found["draft_model"]["class"] == "Toy"


def test_weights(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(300_000))
    first = weights_identity(tmp_path)
    assert first == {
        "fingerprints": {file.name: fingerprint(file)},
        "bytes": {file.name: 300_000},
    }
    changed = bytearray(300_000)
    changed[200_000:250_000] = b"x" * 50_000
    file.write_bytes(changed)
    assert weights_identity(tmp_path)["fingerprints"] != first["fingerprints"]
    record = {"weights_sha256": "abc", "files": {file.name: 300_000}}
    (tmp_path / "specframe.json").write_text(json.dumps(record), encoding="utf-8")
    # It is what the file has, whatever a record beside it says.
    assert weights_identity(tmp_path)["sha256"] == hashlib.sha256(changed).hexdigest()
    changed[100_000] = 7
    file.write_bytes(changed)
    assert weights_identity(tmp_path)["sha256"] == hashlib.sha256(changed).hexdigest()


def test_only_its_own_checkout_counts(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=t", "-c", "user.email=t@t")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    inside = tmp_path / "lib"
    inside.mkdir()
    (tmp_path / "file").write_text("x", encoding="utf-8")
    assert git_state(tmp_path) is None
    git("init", "-q")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    state = git_state(tmp_path)
    assert state is not None
    assert len(state["commit"]) == 40
    assert not state["dirty"]
    (tmp_path / "file").write_text("y", encoding="utf-8")
    assert git_state(tmp_path) == state | {"dirty": True}
    assert git_state(inside) is None


def test_write_json_is_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    write_json(path, {"a": "\udc80 é"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": "\udc80 é"}
    with pytest.raises(ValueError, match="Circular"):
        write_json(path, (loop := {}) | {"loop": _ring(loop)})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": "\udc80 é"}


@pytest.mark.parametrize("at_the_end", [False, True])
def test_the_end_is_written_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine, at_the_end: bool
) -> None:
    def full(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:10])
        raise OSError(28, "No space left on device", str(self))

    def work() -> None:
        with recorded(tmp_path, engine=engine, config={}):
            assert read(tmp_path)["state"] == "running"
            sizes.append((tmp_path / "manifest.json").stat().st_size)
            monkeypatch.setattr(Path, "write_bytes", full)
            if not at_the_end:
                raise OSError(28, "No space left on device: " + 300 * "é")

    sizes: list[int] = []
    with pytest.raises(OSError, match="No space"):
        work()
    ended = read(tmp_path)
    assert (ended["state"], ended["seed"]) == ("failed", 5)
    assert ended["error"].startswith("OSError: [Errno 28] No space left on device")
    assert ended["ended"] is not None
    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]
    assert (tmp_path / "manifest.json").stat().st_size == sizes[0]


def _ring(value: dict[str, Any]) -> dict[str, Any]:
    value["self"] = value
    return value
