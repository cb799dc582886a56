"""Loads modules of multi-token prediction in DeepSeek-V3's layout, strictly; writes them too.

They are the layers that follow a model's own: `model.layers.<number of its blocks>.eh_proj.weight`
and so on. A whole model may be in the file, whose other tensors are left where they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from specframe.errors import ConfigError
from specframe.heads.eagle_export import layer_config
from specframe.heads.eagle_layout import Held, held, layer_keys, replaced, shape_of
from specframe.heads.files import Files, read
from specframe.heads.mtp_net import MTPNet, MTPOptions, State
from specframe.heads.strict import check, filled

_PREFIXES = {"layers.": "model.layers."}
_OWN = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
_TABLE, _HEAD = "embed_tokens.weight", "shared_head.head.weight"  # copies of the target's
_OF_MODEL = frozenset({"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"})
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
    one = _modules(read(path))
    first, count = _extent(one.tensors)
    required: list[str] = []
    optional: list[str] = []
    # A copy of the target's table that one module has, every module must have.
    copies = [name for name in (_TABLE, _HEAD) if any(key.endswith(name) for key in one.tensors)]
    for index in range(first, first + count):
        prefix = f"layers.{index}."
        norms = ["input_layernorm", "post_attention_layernorm"]
        needed, allowed = layer_keys(prefix, norms)
        required += [*needed, *(f"{prefix}{name}.weight" for name in _OWN)]
        required += [prefix + name for name in copies]
        optional += allowed
    check(one, required, optional, "a file of MTP modules")
    net = filled(_empty(one, first, count), one)
    _check_tables(net, one.files.place)
    return net


def _modules(files: Files) -> Held:
    """The modules' tensors, under our names."""
    for key in files.tensors:
        what = next((what for mark, what in _NOT_SERVED.items() if mark in key), None)
        if what is not None and _numbered(key, files.tensors):
            raise ConfigError(
                f"{files.place}: {key} belongs to {what}, and only modules with a plain decoder "
                "layer are served; use drafter=eagle with a head that was trained for the target"
            )
    one = held(files, _PREFIXES)
    first, _ = _extent(one.tensors)
    kept = {
        key: tensor
        for key, tensor in one.tensors.items()
        if key not in _OF_MODEL and not -1 < _number(key) < first
    }
    return replace(one, tensors=kept)


def _numbered(key: str, keys: Iterable[str]) -> bool:
    """Whether a key of the file is a module's."""
    names = [replaced(name, {"model.": ""}) for name in keys]
    return _number(replaced(key, {"model.": ""})) >= _extent(names)[0]


def _number(key: str) -> int:
    found = re.match(r"layers\.(\d+)\.", key)
    return int(found[1]) if found else -1


def _extent(keys: Iterable[str]) -> tuple[int, int]:
    """(number of the first module's layer, how many there are up to the last layer)."""
    numbers = {_number(key): False for key in keys}
    numbers |= {_number(key): True for key in keys if key.endswith(".eh_proj.weight")}
    numbers.pop(-1, None)
    modules = [number for number, is_module in numbers.items() if is_module]
    first = min(modules or numbers or [0])
    return first, max(numbers, default=first) - first + 1


def _empty(one: Held, first: int, count: int) -> MTPNet:
    prefix, config = f"layers.{first}.", one.config
    feature, recycle = (_state(one, f"mtp_{name}") for name in ("feature", "recycle"))
    options = MTPOptions(
        shape=shape_of(one, prefix),
        first=first,
        modules=count,
        embeddings=len(one.tensors.get(prefix + _TABLE, ())),
        head=len(one.tensors.get(prefix + _HEAD, ())),
        vocab_size=config.get("vocab_size"),
        feature=feature,
        recycle=recycle,
    )
    with torch.device("meta"):
        return MTPNet(options)


def _state(one: Held, key: str) -> State:
    """What the file was trained with; DeepSeek-V3's own modules read normed states."""
    said: State = one.config.get(key, "post_norm")
    if said not in ("post_norm", "pre_norm"):
        raise ConfigError(
            f"{one.files.place}: config.json has {key}={said}; expected post_norm or pre_norm"
        )
    return said


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
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {
        replaced(key, _PREFIXES): value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, value in net.state_dict().items()
    }
    options = net.options
    config = layer_config(options.shape, layers=options.first) | {
        "num_nextn_predict_layers": options.modules,
        "mtp_feature": options.feature,
        "mtp_recycle": options.recycle,
    }
    if options.vocab_size is not None:
        config["vocab_size"] = options.vocab_size
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
