"""Where heads are found: folders, files, shards, the hub; what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from specframe.errors import ConfigError
from specframe.heads.head_files import check_keys, read_files

HELD = {"one": torch.arange(6.0).view(2, 3), "two": torch.tensor([True, False])}


def assert_held(found: dict[str, torch.Tensor]) -> None:
    assert found.keys() == HELD.keys()
    for key, value in HELD.items():
        assert found[key].dtype == value.dtype
        assert torch.equal(found[key], value)


def test_safetensors_come_before_torch_files(tmp_path: Path) -> None:
    save_file(HELD, str(tmp_path / "model.safetensors"))
    torch.save({"other": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text('{"head_dim": 8}', encoding="utf-8")
    found = read_files(str(tmp_path))
    assert_held(found.tensors)
    assert found.config == {"head_dim": 8}
    assert found.place == f"drafter.path={tmp_path}"


def test_torch_files_and_single_files(tmp_path: Path) -> None:
    torch.save(HELD, tmp_path / "pytorch_model.bin")
    assert_held(read_files(str(tmp_path)).tensors)
    assert_held(read_files(str(tmp_path / "pytorch_model.bin")).tensors)
    assert read_files(str(tmp_path)).config == {}


def test_shards_are_joined(tmp_path: Path) -> None:
    for place, key in enumerate(HELD, 1):
        save_file({key: HELD[key]}, str(tmp_path / f"model-0000{place}-of-00002.safetensors"))
    assert_held(read_files(str(tmp_path)).tensors)


def test_other_names_may_be_asked_for(tmp_path: Path) -> None:
    torch.save(HELD, tmp_path / "medusa_lm_head.pt")
    assert_held(read_files(str(tmp_path), weights=("medusa_lm_head.pt",)).tensors)
    with pytest.raises(ConfigError, match=r"none of model\.safetensors.* holds medusa_lm_head\.pt"):
        read_files(str(tmp_path))


class Harmful:
    """A pickle that would run code."""

    def __reduce__(self) -> Any:
        return (print, ("it ran",))


def test_pickles_are_never_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"one": Harmful()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin cannot be read as tensors"):
        read_files(str(tmp_path))
    assert "it ran" not in capsys.readouterr().out


def test_what_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file or folder"):
        read_files(str(tmp_path / "absent"))
    (tmp_path / "model.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        read_files(str(tmp_path))
    torch.save({"one": 3}, tmp_path / "other.pt")
    with pytest.raises(ConfigError, match="more than tensors by name"):
        read_files(str(tmp_path / "other.pt"))
    save_file(HELD, str(tmp_path / "model.safetensors"))
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.json is no JSON"):
        read_files(str(tmp_path))


def test_the_hub_is_asked_for_names_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[tuple[str, list[str]]] = []

    def snapshot(name: str, *, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        if name == "some/absent":
            raise FileNotFoundError("offline and not cached")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    torch.save(HELD, tmp_path / "pytorch_model.bin")
    read_files(str(tmp_path))
    assert asked == []
    assert_held(read_files("some/head").tensors)
    assert asked[0] == ("some/head", ["config.json", "model.safetensors"])
    assert asked[-1] == ("some/head", ["config.json", "pytorch_model.bin"])
    with pytest.raises(ConfigError, match=r"drafter\.path=some/absent: .*offline"):
        read_files("some/absent")


def test_keys_are_listed_in_one_line() -> None:
    check_keys("ab", required="a", optional="bc", problem="it")
    with pytest.raises(ConfigError, match=r"it is short: missing c, d; surplus x, y") as caught:
        check_keys("axy", required="acd", optional="b", problem="it is short")
    assert "\n" not in str(caught.value)
    assert json.dumps(str(caught.value))
