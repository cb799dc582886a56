"""manifest.json: what a run was made of, so that it can be understood and made again."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import specframe
from specframe.models.gguf import MANIFEST as CONVERSION
from specframe.models.package import local_folder
from specframe.models.tokenizer import identity_of
from specframe.session.engine import Engine
from specframe.session.warmup import prepared_s
from specframe.storage.digests import file_digest
from specframe.storage.secret_keys import is_secret
from specframe.storage.whole_files import write_whole
from specframe.target.base import Target
from specframe.tree.base import explanation_of

PACKAGES = (
    *("torch", "transformers", "tokenizers", "safetensors", "accelerate", "gguf", "numpy"),
    *("scipy", "hydra-core", "omegaconf", "rich", "lightning", "peft"),
)
_WEIGHTS = (".safetensors", ".bin", ".gguf")
_BLOCK, _NUM_BLOCKS = 4096, 64  # of a weights file's fingerprint: bytes a block, blocks


def describe(engine: Engine, config: dict[str, Any]) -> dict[str, Any]:
    """Everything about a run that is known before it starts. Nothing of the environment."""
    parts = engine.components
    draft = getattr(parts.drafter, "model", None)
    return {
        **surroundings(config),
        "synthetic": parts.drafter.traits.synthetic,  # the drafter knows the text
        "seed": engine.settings.seed,
        "host_reads": engine.host_reads(),
        "kernels": parts.runtime.weights.kernels,  # of matrix products, by the shape of the weights
        "compile_s": prepared_s(parts.runtime.launch),  # of this process, in no time of an answer
        "tree_explanation": explanation_of(parts.tree),
        "target": identity(parts.target, parts.target.name),
        "draft_model": identity(draft, draft.name) if isinstance(draft, Target) else None,
        "hardware": hardware(parts.target.device),
    }


def surroundings(config: dict[str, Any]) -> dict[str, Any]:
    """What is known of a run without its models."""
    return {
        "specframe": specframe.__version__,
        "command": [_masked_word(word) for word in sys.argv],
        "config": _masked(config),
        "git": git_state(Path(specframe.__file__).resolve().parents[1]),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }


def write_json(path: Path, value: Any) -> None:
    """Write whole or not at all, so that a reader or a crash never sees half a file."""
    write_whole(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """What `write_json` writes."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    # A lone surrogate becomes its own JSON escape.
    return (text + "\n").encode("utf-8", errors="backslashreplace")


def identity(target: Target, path: str) -> dict[str, Any]:
    """Which model this is: class, numbers, fingerprints of weights and tokenizer, chat template.

    path: what the user gave; a hub name is told apart by the commit of its repository.
    """
    with suppress(ValueError, RuntimeError):  # it is loaded: a place we cannot read is no error
        path = str(local_folder(path))
    folder = Path(path) if Path(path).is_dir() else None
    model = getattr(target, "model", None)
    return {
        "name": target.name,
        "path": path if folder is None else str(folder.resolve()),
        "class": type(model or target).__name__,
        "commit": getattr(getattr(model, "config", None), "_commit_hash", None),
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": str(target.device),
        "num_layers": target.num_layers,
        "vocab_size": target.vocab_size,
        "weights": None if folder is None else weights_identity(folder),
        "tokenizer": identity_of(target.tokenizer, folder),
        "chat_template": getattr(target.tokenizer, "chat_template", None),
    }


def weights_identity(folder: Path) -> dict[str, Any]:
    """Digests of a folder's weights, without reading gigabytes in each run.

    sha256 of the weights that were converted here, taken anew when the file changed; else a
    fingerprint of each file: sha256 of its first block and of evenly spaced ones (so the header and
    a sample of the values).
    """
    files = sorted(file for file in folder.iterdir() if file.suffix in _WEIGHTS)
    sizes = {file.name: file.stat().st_size for file in files}
    if len(files) == 1 and (folder / CONVERSION).is_file():
        return {"sha256": file_digest(files[0]), "bytes": sizes}
    return {"fingerprints": {file.name: fingerprint(file) for file in files}, "bytes": sizes}


def fingerprint(file: Path) -> str:
    """sha256 of the size, the first block and evenly spaced blocks of a file."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as opened:
        for block in range(_NUM_BLOCKS):
            opened.seek(size * block // _NUM_BLOCKS)
            digest.update(opened.read(_BLOCK))
    return digest.hexdigest()


def git_state(root: Path) -> dict[str, Any] | None:
    """Commit of the checkout at `root`, and whether it has changes; None if there is none.

    An installed package may lie inside somebody else's repository: only a checkout whose top
    folder is `root` itself counts.
    """
    top = _git(root, "rev-parse", "--show-toplevel") if (root / ".git").exists() else None
    if top is None or Path(top).resolve() != root.resolve():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    return {"commit": commit, "dirty": bool(_git(root, "status", "--porcelain"))}


def _git(root: Path, *words: str) -> str | None:
    command = ["git", "-C", str(root), *words]
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def hardware(device: torch.device) -> dict[str, Any]:
    """Processor, its cores, threads that torch uses, memory, and the CUDA device if one is used."""
    affinity = getattr(os, "sched_getaffinity", None)
    found: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_allowed": len(affinity(0)) if affinity else None,
        "torch_threads": torch.get_num_threads(),
        "memory_bytes": _memory_bytes(),
        "system": platform.platform(),
        "cuda": None,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["cuda"] = {
            "device": properties.name,
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "runtime": torch.version.cuda,
        }
    return found


def _cpu_model() -> str:
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
        if named:
            return named.group(1)
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not everywhere
        return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def hydra_words(output_dir: Path) -> list[str] | None:
    """The words of this point, from Hydra's own record; None outside of a Hydra job."""
    import yaml

    with suppress(OSError, ValueError, yaml.YAMLError):
        text = (output_dir / ".hydra" / "overrides.yaml").read_text(encoding="utf-8")
        return [_masked_word(str(word)) for word in yaml.safe_load(text) or []]
    return None


def _masked(value: Any, key: str = "") -> Any:
    """The same with the value of every key that looks like a secret taken out."""
    if isinstance(value, dict):
        return {str(name): _masked(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, key) for item in value]
    return "***" if value and isinstance(value, str) and is_secret(key) else value


def _masked_word(word: str) -> str:
    key, _, value = word.partition("=")
    return f"{key}=***" if value and is_secret(key) else word
