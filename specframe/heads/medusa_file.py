"""Loads Medusa heads, strictly: structure from keys and shapes, nothing left over; writes them too.

Layouts that are read: Medusa v0.1, the later one without output matrices, whole Medusa-2 models
(heads under `medusa_head.`), and vLLM's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specframe.errors import ConfigError
from specframe.heads import head_files
from specframe.heads.head_files import HeadFiles, check_keys, read_files, write_files
from specframe.heads.medusa_net import MedusaNet, MedusaOptions
from specframe.heads.strict_loading import load_weights

WEIGHTS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", *head_files.WEIGHTS)
MAP = "token_map"  # name of the table of target ids, a row each
_WHOLE = "medusa_head."  # the heads' prefix beside the base model's own weights
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


@dataclass(frozen=True, kw_only=True)
class MedusaLayout:
    """How a family of files names its tensors.

    In the patterns `{i}` is a head, `{j}` a block, `{part}` weight or bias.
    """

    prefix: str  # of every name
    block: str  # pattern of a block's tensors
    output: str  # pattern of a head's output matrix
    single: tuple[str, ...] = ()  # names of one output matrix that all heads share

    def blocks(self, keys: Iterable[str]) -> list[tuple[int, int]]:
        """(head, block) of every key that is a block's."""
        return [(int(m["i"]), int(m["j"])) for m in self._matches(self.block, keys)]

    def outputs(self, keys: Iterable[str]) -> list[int]:
        """Head of every key that is an output matrix."""
        return [int(m["i"]) for m in self._matches(self.output, keys)]

    def _matches(self, pattern: str, keys: Iterable[str]) -> list[re.Match[str]]:
        text = re.escape(self.prefix + pattern)
        for name, values in (("i", r"\d+"), ("j", r"\d+"), ("part", "weight|bias")):
            text = text.replace(re.escape(f"{{{name}}}"), f"(?P<{name}>{values})")
        matches = (re.fullmatch(text, key) for key in keys)
        return [match for match in matches if match]

    def block_key(self, head: int, block: int, part: str) -> str:
        """Name of a block's weight or bias."""
        return self.prefix + self.block.format(i=head, j=block, part=part)

    def output_key(self, head: int, layers: int) -> str:
        """Name of the output matrix of a head with `layers` blocks."""
        return self.prefix + self.output.format(i=head, j=layers)

    @property
    def map_key(self) -> str:
        """Name of the table of target ids."""
        return self.prefix + MAP


MEDUSA = MedusaLayout(prefix="", block="{i}.{j}.linear.{part}", output="{i}.{j}.weight")


def _layout(keys: Iterable[str]) -> MedusaLayout:
    keys = list(keys)
    if any(key.startswith(_WHOLE) for key in keys):
        return MedusaLayout(prefix=_WHOLE, block=MEDUSA.block, output=MEDUSA.output)
    for prefix in ("", "medusa_heads."):
        theirs = MedusaLayout(
            prefix=prefix,
            block="blocks.{i}.layers.{j}.{part}",
            output="lm_heads.{i}.weight",
            single=("lm_head.weight", "lm_heads.0.weight"),
        )
        if theirs.blocks(keys):
            return theirs
    return MEDUSA


def load_medusa(path: str) -> MedusaNet:
    """The heads at a hub name, folder or file, in the dtypes of the file, on the CPU.

    The numbers in config.json are not looked at: published ones are wrong. Raises ConfigError
    naming the path: nothing there, missing or surplus keys, shapes that do not fit together.
    """
    files = _read(path)
    layout = _layout(files.tensors)
    tensors = files.tensors
    if layout.prefix == _WHOLE:  # the rest is the base model
        tensors = {key: value for key, value in tensors.items() if key.startswith(_WHOLE)}
    renamed, heads, layers = _renamed(files, layout, tensors)
    options = _options(renamed, heads, layers, files.place)
    with torch.device("meta"):
        net = MedusaNet(options)
    net = load_weights(net, renamed, place=files.place)
    _check_map(net, files.place)
    return net


def _read(path: str) -> HeadFiles:
    """The files; of a whole model in shards only those that hold heads."""
    folder = Path(path).expanduser()
    if not any((folder / name).is_file() for name in WEIGHTS[:2]):
        for index in _INDEXES:
            shards = _shards(folder / index)
            if shards:
                parts = [read_files(path, weights=(shard,)) for shard in shards]
                tensors = {key: value for part in parts for key, value in part.tensors.items()}
                return HeadFiles(place=parts[0].place, config=parts[0].config, tensors=tensors)
    return read_files(path, weights=WEIGHTS)


def _shards(index: Path) -> list[str]:
    if not index.is_file():
        return []
    try:
        places: Mapping[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"drafter.path={index.parent}: {index.name} is no index") from error
    return sorted({shard for key, shard in places.items() if key.startswith(_WHOLE)})


def _renamed(
    files: HeadFiles, layout: MedusaLayout, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], int, int]:
    """(tensors under our names, number of heads, of blocks in each)."""
    blocks, outputs = layout.blocks(tensors), layout.outputs(tensors)
    heads = 1 + max([i for i, _ in blocks] + outputs, default=-1)
    if not heads:
        first = ", ".join(sorted(files.tensors)[:4]) or "nothing"
        raise ConfigError(
            f"{files.place}: no Medusa heads, whose keys are like 0.0.linear.weight or "
            f"blocks.0.layers.0.weight; the file has {first}"
        )
    layers = 1 + max((j for _, j in blocks), default=-1)
    bias = any(layout.block_key(i, j, "bias") in tensors for i, j in blocks)
    wanted = {
        layout.block_key(i, j, part): [f"{i}.{j}.linear.{part}"]
        for i in range(heads)
        for j in range(layers)
        for part in (("weight", "bias") if bias else ("weight",))
    }
    ours = [f"{i}.{layers}.weight" for i in range(heads)]
    single = _single(layout, tensors, bool(files.config.get("original_lm_head")))
    if single is not None:
        wanted[single] = ours
    elif outputs:
        wanted |= {layout.output_key(i, layers): [ours[i]] for i in range(heads)}
    problem = f"{files.place} is no file of Medusa heads as it should be"
    check_keys(tensors, required=wanted, optional=[layout.map_key], problem=problem)
    wanted |= {layout.map_key: [MAP]} if layout.map_key in tensors else {}
    own = _untied(tensors)
    return {name: own[key] for key, names in wanted.items() for name in names}, heads, layers


def _single(layout: MedusaLayout, tensors: Mapping[str, Tensor], shared: bool) -> str | None:
    """Key of the output matrix that all heads share, None if each has its own or none has."""
    keys = [layout.prefix + name for name in layout.single[: 1 + shared]]
    return next((key for key in keys if key in tensors), None)


def _untied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with memory of their own: the blocks of a head may be one module, listed often."""
    seen: set[int] = set()
    untied = {}
    for key, value in tensors.items():
        untied[key] = value.clone() if value.data_ptr() in seen else value
        seen.add(value.data_ptr())
    return untied


def _options(tensors: Mapping[str, Tensor], heads: int, layers: int, place: str) -> MedusaOptions:
    first = "0.0.linear.weight" if layers else "0.0.weight"
    flat = [key for key, value in tensors.items() if value.dim() < 2 and key.endswith(".weight")]
    if flat:
        raise ConfigError(f"{place}: {', '.join(flat)}: expected matrices")
    own = tensors.get(f"0.{layers}.weight")
    return MedusaOptions(
        hidden=tensors[first].shape[1],
        heads=heads,
        layers=layers,
        rows=0 if own is None else own.shape[0],
        bias="0.0.linear.bias" in tensors,
        mapped=len(tensors[MAP]) if MAP in tensors else 0,
    )


def _check_map(net: MedusaNet, place: str) -> None:
    """Raises ConfigError unless token_map names distinct target ids, one for each row."""
    ids, rows = net.token_map, net.options.rows
    if ids is None:
        return
    if ids.dtype.is_floating_point or bool((ids < 0).any()):
        raise ConfigError(f"{place}: token_map must hold token ids from 0")
    if len(ids.unique()) != len(ids):
        raise ConfigError(f"{place}: token_map names a token twice")
    if rows and rows != len(ids) and rows <= int(ids.max()):
        raise ConfigError(
            f"{place}: token_map has {len(ids)} entries up to {int(ids.max())}, the output "
            f"matrices {rows} rows; they must have a row for each entry, or for each token"
        )


def save_medusa(net: MedusaNet, folder: Path, *, base: str | None = None) -> None:
    """Write `config.json` and `medusa_lm_head.safetensors` in the v0.1 layout (with `token_map`
    where there is one); loading them gives the same bits. base: the target's hub name."""
    config = {
        "medusa_num_heads": net.options.heads,
        "medusa_num_layers": net.options.layers,
        "hidden_size": net.options.hidden,
        "base_model_name_or_path": base,
    }
    write_files(folder, config, net.state_dict(), name=WEIGHTS[0])
