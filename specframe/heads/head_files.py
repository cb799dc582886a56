"""The files of a head, its tensors and its configuration: in a folder, a file or on the hub."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specframe.errors import ConfigError
from specframe.heads.shipped import local_path

# Names of files that hold weights, best first; a pattern stands for all shards of a model.
WEIGHTS = ("model.safetensors", "model-*.safetensors", "pytorch_model.bin", "pytorch_model-*.bin")
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")


@dataclass(frozen=True, kw_only=True)
class HeadFiles:
    """The content of a head's files."""

    place: str  # key and value as the user wrote them, for messages
    config: dict[str, Any]  # config.json; empty where there is none
    tensors: dict[str, Tensor]  # by the names of the file, in its dtypes, on the CPU


def read_files(
    path: str, *, where: str = "drafter.path", weights: Sequence[str] = WEIGHTS
) -> HeadFiles:
    """The content of the files at `path`; a path that exists is never looked up on the hub.

    where: the key that the user set, for messages. weights: names (or patterns of shards) to look
    for, best first. Raises ConfigError naming `where`.
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
    return HeadFiles(place=place, config=_config(folder / "config.json", place), tensors=tensors)


def write_files(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    name: str = WEIGHTS[0],
) -> None:
    """Write `config.json` and the tensors, in their dtypes, as the safetensors file `name`."""
    from safetensors.torch import save_file

    # Clones, since the format refuses tensors that share memory.
    plain = {
        key: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, value in tensors.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(plain, str(folder / name), metadata={"format": "pt"})


def check_present(
    path: str, *, where: str = "drafter.path", weights: Sequence[str] = WEIGHTS
) -> None:
    """Raises ConfigError, naming `where`, if there is nothing at `path`; fetches a hub's files."""
    if not Path(local_path(path)).expanduser().exists():
        _from_hub(path, f"{where}={path}", weights)


def _weights_in(folder: Path, place: str, weights: Sequence[str]) -> list[Path]:
    for pattern in weights:
        shards = sorted(folder.glob(pattern))
        if shards:
            return shards
    listing = ", ".join(sorted(file.name for file in folder.iterdir())) or "nothing"
    raise ConfigError(f"{place}: none of {', '.join(weights)} is there; the folder holds {listing}")


def _from_hub(path: str, place: str, weights: Sequence[str]) -> Path:
    """The folder of a snapshot with the configuration and the best weights of a repository."""
    local = path.startswith((".", "/", "~")) or path.count("/") != 1 or path.endswith(_SUFFIXES)
    if local:
        raise ConfigError(f"{place}: no such file or folder")
    import huggingface_hub as hub

    errors = (OSError, ValueError, hub.errors.HfHubHTTPError)
    try:
        for pattern in weights:
            wanted = ["config.json", pattern]
            folder = Path(hub.snapshot_download(path, allow_patterns=wanted))
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
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: config.json is no JSON ({error})") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{place}: config.json holds no mapping")
    return config


def _tensors(file: Path, place: str) -> dict[str, Tensor]:
    """Raises ConfigError for a file that holds anything but tensors by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    unreadable = (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError)
    try:
        if file.suffix == ".safetensors":
            return load_file(str(file))
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, *unreadable) as error:
        reason = " ".join(str(error).split())[:160]
        raise ConfigError(f"{place}: {file.name} cannot be read as tensors ({reason})") from error
    if not isinstance(tensors, dict) or not all(isinstance(x, Tensor) for x in tensors.values()):
        raise ConfigError(f"{place}: {file.name} holds more than tensors by name")
    return tensors


def check_keys(
    keys: Iterable[str], *, required: Iterable[str], optional: Iterable[str], problem: str
) -> None:
    """Raises ConfigError, which `problem` opens, with every missing and every surplus key."""
    keys, required = set(keys), set(required)
    missing = sorted(required - keys)
    surplus = sorted(keys - required - set(optional))
    if not missing and not surplus:
        return
    parts = []
    if missing:
        parts.append(f"missing {', '.join(missing)}")
    if surplus:
        parts.append(f"surplus {', '.join(surplus)}")
    raise ConfigError(f"{problem}: {'; '.join(parts)}")
