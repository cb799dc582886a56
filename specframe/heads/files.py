"""Reads the tensors and the configuration of a head: a folder, a file or a hub name."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specframe.errors import ConfigError
from specframe.heads.shipped import local_path

# What holds the weights, first found first; a pattern may stand for shards.
WEIGHTS = ("model.safetensors", "model-*.safetensors", "pytorch_model.bin", "pytorch_model-*.bin")
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")


@dataclass(frozen=True, kw_only=True)
class Files:
    """place: key and value as the user wrote them. config: what config.json holds, {} without one.
    tensors: on the CPU, in the dtypes of the file."""

    place: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]


def read(path: str, *, where: str = "drafter.path", weights: Sequence[str] = WEIGHTS) -> Files:
    """The files at `path`. weights: names (or patterns of shards) to look for, best first.

    A path that exists is never looked up on the hub. Raises ConfigError naming `where`.
    """
    place = f"{where}={path}"
    local = Path(local_path(path)).expanduser()
    if local.is_file():
        folder, files = local.parent, [local]
    else:
        folder = local if local.is_dir() else _from_hub(path, place, weights)
        files = _weights_in(folder, place, weights)
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= _tensors(file, place)
    return Files(place=place, config=_config(folder / "config.json", place), tensors=tensors)


def check_present(
    path: str, *, where: str = "drafter.path", weights: Sequence[str] = WEIGHTS
) -> None:
    """Raises ConfigError, naming `where`, if nothing is at `path`; a hub's files are fetched."""
    if not Path(local_path(path)).expanduser().exists():
        _from_hub(path, f"{where}={path}", weights)


def _weights_in(folder: Path, place: str, weights: Sequence[str]) -> list[Path]:
    for pattern in weights:
        found = sorted(folder.glob(pattern))
        if found:
            return found
    held = ", ".join(sorted(file.name for file in folder.iterdir())) or "nothing"
    raise ConfigError(f"{place}: none of {', '.join(weights)} is there; the folder holds {held}")


def _from_hub(path: str, place: str, weights: Sequence[str]) -> Path:
    """Folder of a snapshot that holds the configuration and the first weights there are."""
    local = path.startswith((".", "/", "~")) or path.count("/") != 1 or path.endswith(_SUFFIXES)
    if local:
        raise ConfigError(f"{place}: no such file or folder")
    import huggingface_hub as hub

    errors = (OSError, ValueError, hub.errors.HfHubHTTPError)
    try:
        for pattern in weights:
            kept = ["config.json", pattern]
            folder = Path(hub.snapshot_download(path, allow_patterns=kept))
            if any(folder.glob(pattern)):
                return folder
    except errors as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{place}: no such folder here, nor on the hub ({reason})") from error
    raise ConfigError(f"{place}: none of {', '.join(weights)} is in this repository")


def _config(file: Path, place: str) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{place}: config.json is no JSON ({error})") from error
    if not isinstance(held, dict):
        raise ConfigError(f"{place}: config.json holds no mapping")
    return held


def _tensors(file: Path, place: str) -> dict[str, Tensor]:
    """Raises ConfigError for a file that holds anything but tensors by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    unreadable = (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError)
    try:
        if file.suffix == ".safetensors":
            return load_file(str(file))
        held = torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, *unreadable) as error:
        reason = " ".join(str(error).split())[:160]
        raise ConfigError(f"{place}: {file.name} cannot be read as tensors ({reason})") from error
    if not isinstance(held, dict) or not all(isinstance(one, Tensor) for one in held.values()):
        raise ConfigError(f"{place}: {file.name} holds more than tensors by name")
    return held


def check_keys(
    found: Iterable[str], *, required: Iterable[str], optional: Iterable[str], what: str
) -> None:
    """Raises ConfigError that lists every missing and every surplus key; `what` opens the line."""
    found, required = set(found), set(required)
    missing = sorted(required - found)
    surplus = sorted(found - required - set(optional))
    if not missing and not surplus:
        return
    parts = []
    if missing:
        parts.append(f"missing {', '.join(missing)}")
    if surplus:
        parts.append(f"surplus {', '.join(surplus)}")
    raise ConfigError(f"{what}: {'; '.join(parts)}")
