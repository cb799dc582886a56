"""Loads modules of multi-token prediction in DeepSeek-V3's layout, strictly; writes them too.

They are the layers that follow a model's own: `model.layers.<number of its blocks>.eh_proj.weight`
and so on. A whole model may be in the file, whose other tensors are left where they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from specframe.errors import ConfigError
from specframe.heads import config_values as values
from specframe.heads.eagle_export import layer_config
from specframe.heads.head_files import HeadFiles, read_files, write_files
from specframe.heads.layer_layout import (
    RenamedFile,
    layer_keys,
    renamed,
    shape_of,
    swap_prefix,
)
from specframe.heads.mtp_net import MTPNet, MTPOptions, State
from specframe.heads.strict_loading import check_layers, load_file

_PREFIXES = {"layers.": "model.layers."}
# Weights of a module beside those of its decoder layer.
_OWN = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
_TABLE, _HEAD = "embed_tokens.weight", "shared_head.head.weight"  # copies of the target's
# Tensors of the model itself, which a file of modules may hold too.
_OF_MODEL = frozenset({"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"})
# Part of a key -> the kind of layer that shows, which is refused.
_NOT_SERVED = {
    ".self_attn.kv_a_proj_with_mqa.": "multi-head latent attention",
    ".mlp.experts.": "a mixture of experts",
    "_scale_inv": "weights in 8 bits",
}


def load_mtp(path: str) -> MTPNet:
    """The modules at a hub name, folder or file, in the dtypes of the file, on the CPU.

    Each has a decoder layer of plain grouped attention and one MLP. Raises ConfigError naming the
    path: nothing there, missing or surplus keys, shapes that do not fit together, another kind of
    layer, modules with different embeddings.
    """
    file = _modules(read_files(path))
    first, count = _extent(file.tensors)
    required: list[str] = []
    optional: list[str] = []
    # A copy of the target's table that one module has, every module must have.
    copies = [name for name in (_TABLE, _HEAD) if any(key.endswith(name) for key in file.tensors)]
    for index in range(first, first + count):
        prefix = f"layers.{index}."
        norms = ["input_layernorm", "post_attention_layernorm"]
        needed, allowed = layer_keys(prefix, norms)
        required += [*needed, *(f"{prefix}{name}.weight" for name in _OWN)]
        required += [prefix + name for name in copies]
        optional += allowed
    check_layers(file, required, optional, "a file of MTP modules")
    net = load_file(_empty(file, first, count), file)
    _check_tables(net, file.files.place)
    return net


def _modules(files: HeadFiles) -> RenamedFile:
    """The modules' tensors under our names, without those of the model that they belong to."""
    for key in files.tensors:
        layer = next((layer for mark, layer in _NOT_SERVED.items() if mark in key), None)
        if layer is not None and _numbered(key, files.tensors):
            raise ConfigError(
                f"{files.place}: {key} belongs to {layer}, and only modules with a plain decoder "
                "layer are served; use drafter=eagle with a head that was trained for the target"
            )
    file = renamed(files, _PREFIXES)
    first, _ = _extent(file.tensors)
    own = {
        key: tensor
        for key, tensor in file.tensors.items()
        if key not in _OF_MODEL and not -1 < _number(key) < first
    }
    return replace(file, tensors=own)


def _numbered(key: str, keys: Iterable[str]) -> bool:
    """Whether a key of the file is a module's."""
    names = [swap_prefix(name, {"model.": ""}) for name in keys]
    return _number(swap_prefix(key, {"model.": ""})) >= _extent(names)[0]


def _number(key: str) -> int:
    """The layer that a key belongs to, -1 for none."""
    match = re.match(r"layers\.(\d+)\.", key)
    return int(match[1]) if match else -1


def _extent(keys: Iterable[str]) -> tuple[int, int]:
    """(number of the first module's layer, how many there are up to the last layer)."""
    numbers = {_number(key): False for key in keys}
    numbers |= {_number(key): True for key in keys if key.endswith(".eh_proj.weight")}
    numbers.pop(-1, None)
    modules = [number for number, is_module in numbers.items() if is_module]
    first = min(modules or numbers or [0])
    return first, max(numbers, default=first) - first + 1


def _empty(file: RenamedFile, first: int, count: int) -> MTPNet:
    prefix, config = f"layers.{first}.", file.config
    for table in (_TABLE, _HEAD):
        rows = len(file.tensors.get(prefix + table, ()))
        values.agree(config, file.files.place, vocab_size=rows)
    feature, recycle = (_state(file, f"mtp_{name}") for name in ("feature", "recycle"))
    options = MTPOptions(
        shape=shape_of(file, prefix),
        first=first,
        modules=count,
        embeddings=len(file.tensors.get(prefix + _TABLE, ())),
        head=len(file.tensors.get(prefix + _HEAD, ())),
        vocab_size=values.whole(config, "vocab_size", file.files.place),
        feature=feature,
        recycle=recycle,
    )
    with torch.device("meta"):
        return MTPNet(options)


def _state(file: RenamedFile, key: str) -> State:
    """The state that the modules were trained with; DeepSeek-V3's own read normed states."""
    state: State = file.config.get(key, "post_norm")
    if state not in ("post_norm", "pre_norm"):
        raise ConfigError(
            f"{file.files.place}: config.json has {key}={state}; expected post_norm or pre_norm"
        )
    return state


def _check_tables(net: MTPNet, place: str) -> None:
    """Raises ConfigError if modules embed tokens differently: the layout's table is shared."""
    first = net.module(0).embed_tokens
    for index in range(1, net.options.modules):
        other = net.module(index).embed_tokens
        if first is not None and other is not None and not torch.equal(first.weight, other.weight):
            raise ConfigError(
                f"{place}: the modules' embed_tokens.weight differ; they must be the target's"
            )


def save_mtp(net: MTPNet, folder: Path) -> None:
    """Write `config.json` and `model.safetensors`; loading them gives the same bits."""
    tensors = {swap_prefix(key, _PREFIXES): value for key, value in net.state_dict().items()}
    options = net.options
    config = layer_config(options.shape, layers=options.first) | {
        "num_nextn_predict_layers": options.modules,
        "mtp_feature": options.feature,
        "mtp_recycle": options.recycle,
    }
    if options.vocab_size is not None:
        config["vocab_size"] = options.vocab_size
    write_files(folder, config, tensors)
