"""Loads EAGLE-1/2 and EAGLE-3 heads, strictly: structure from keys and shapes, nothing left over.

It reads the files of the EAGLE programs, of SpecForge (the same names) and of speculators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from specframe.errors import ConfigError
from specframe.heads import config_values as values
from specframe.heads.eagle_net import Eagle3Net, Eagle3Options, EagleNet, EagleOptions
from specframe.heads.head_files import read_files
from specframe.heads.layer_layout import (
    EAGLE3_PREFIXES,
    EAGLE_PREFIXES,
    RenamedFile,
    is_eagle3,
    layer_keys,
    num_layers,
    renamed,
    shape_of,
)
from specframe.heads.strict_loading import check_layers, load_file


def load_eagle(path: str) -> EagleNet:
    """The EAGLE-1/2 head at a hub name, folder or file, in the dtypes of the file, on the CPU.

    Raises ConfigError naming the path: nothing there, missing or surplus keys, shapes that do not
    fit together, or an EAGLE-3 head.
    """
    files = read_files(path)
    if is_eagle3(files.tensors):
        raise ConfigError(f"{files.place}: this is an EAGLE-3 head; use drafter=eagle3")
    file = renamed(files, EAGLE_PREFIXES)
    layers = num_layers(file.tensors)
    required, optional = ["fc.weight"], ["fc.bias", "embed_tokens.weight", "lm_head.weight"]
    for index in range(layers):
        norms = ["post_attention_layernorm"] + ["input_layernorm"] * (index > 0)
        needed, allowed = layer_keys(f"layers.{index}.", norms)
        required, optional = required + needed, optional + allowed
    check_layers(file, required, optional, "an EAGLE head")
    values.agree(file.config, files.place, num_hidden_layers=layers)
    for table in ("embed_tokens.weight", "lm_head.weight"):
        values.agree(file.config, files.place, vocab_size=_rows(file.tensors, table))
    options = EagleOptions(
        shape=shape_of(file, "layers.0."),
        layers=layers,
        bias="fc.bias" in file.tensors,
        embeddings=_rows(file.tensors, "embed_tokens.weight"),
        head=_rows(file.tensors, "lm_head.weight"),
        vocab_size=values.whole(file.config, "vocab_size", file.files.place),
    )
    with torch.device("meta"):
        net = EagleNet(options)
    return load_file(net, file)


def load_eagle3(path: str) -> Eagle3Net:
    """The EAGLE-3 head at a hub name, folder or file, in the dtypes of the file, on the CPU.

    Raises ConfigError naming the path, also for a d2t that is no table of increasing offsets.
    """
    files = read_files(path)
    if not is_eagle3(files.tensors):
        raise ConfigError(f"{files.place}: this is no EAGLE-3 head; try drafter=eagle")
    file = renamed(files, EAGLE3_PREFIXES if _numbered(files.tensors) else {})
    tensors, layers = file.tensors, num_layers(file.tensors)
    norms = ["hidden_norm", "input_layernorm", "post_attention_layernorm"]
    required, optional = layer_keys("midlayer.", norms)
    required += ["fc.weight", "norm.weight", "lm_head.weight"]
    optional += ["fc.bias", "embed_tokens.weight", "d2t", "t2d", "input_norm.weight"]
    for index in range(1, layers):
        needed, allowed = layer_keys(
            f"layers.{index}.", ["input_layernorm", "post_attention_layernorm"]
        )
        required, optional = required + needed, optional + allowed
    fused = [key for key in tensors if key.startswith("fc_norm.")]
    required += [f"fc_norm.{index}.weight" for index in range(len(fused))]
    check_layers(file, required, optional, "an EAGLE-3 head")
    for table in ("embed_tokens.weight", "t2d"):
        values.agree(file.config, files.place, vocab_size=_rows(tensors, table))
    values.agree(files.config, files.place, draft_vocab_size=_rows(tensors, "lm_head.weight"))
    options = _eagle3_options(file, layers, len(fused))
    _check_map(file, options)
    with torch.device("meta"):
        net = Eagle3Net(options)
    return load_file(net, file)


def _numbered(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the first layer is `layers.0`, as in speculators."""
    return not any(key.startswith("midlayer.") for key in tensors)


def _eagle3_options(file: RenamedFile, layers: int, num_fused: int) -> Eagle3Options:
    config, tensors, place = file.files.config, file.tensors, file.files.place
    shape = shape_of(file, "midlayer.")
    if num_fused:
        size = tensors["fc_norm.0.weight"].shape[0]
    else:
        size = values.whole(config, "target_hidden_size", place) or shape.hidden
    width = tensors["fc.weight"].shape[1]
    if width % size:
        raise ConfigError(
            f"{place}: fc.weight takes {width} values, which are no whole number of "
            f"features of {size}; give target_hidden_size in config.json"
        )
    rows = tensors["lm_head.weight"].shape[0]
    vocab_size = values.whole(file.config, "vocab_size", place)
    return Eagle3Options(
        shape=shape,
        draft_vocab=rows,
        features=width // size,
        feature_size=size,
        layers=layers,
        bias="fc.bias" in tensors,
        embeddings=_rows(tensors, "embed_tokens.weight"),
        vocab_size=len(tensors["t2d"]) if "t2d" in tensors else vocab_size,
        mapped="d2t" in tensors,
        marked="t2d" in tensors,
        taps=_taps(config, place),
        norm_before_residual=_flag(config, "norm_before_residual"),
        norm_before_fc="input_norm.weight" in tensors,
        fc_norm=bool(num_fused),
        norm_output=_flag(config, "norm_output"),
    )


def _taps(config: Mapping[str, Any], place: str) -> tuple[int, ...] | None:
    """The blocks whose input is fused.

    At the top of a configuration the numbers mean just that; within `eagle_config` (SGLang,
    SpecForge) they are the blocks whose output is taken.
    """
    key = "eagle_aux_hidden_state_layer_ids"
    if (listed := values.blocks(config, key, place)) is not None:
        return listed
    listed = values.blocks(values.section(config, "eagle_config", place), key, place)
    return None if listed is None else tuple(number + 1 for number in listed)


def _flag(config: Mapping[str, Any], key: str) -> bool:
    nested = config.get("eagle_config") or {}
    return bool(config.get(key, nested.get(key, False)))


def _check_map(file: RenamedFile, options: Eagle3Options) -> None:
    """Raises ConfigError unless d2t holds offsets whose ids increase, exist and agree with t2d."""
    if not options.mapped:
        return
    offsets, place = file.tensors["d2t"], file.files.place
    rows, vocab = options.draft_vocab, options.vocab_size
    if offsets.dim() != 1 or len(offsets) != rows:
        raise ConfigError(f"{place}: d2t has {offsets.numel()} entries, lm_head.weight {rows} rows")
    hint = "d2t must hold offsets (target id minus draft id)"
    if offsets.is_floating_point() or offsets.is_complex() or offsets.dtype == torch.bool:
        kind = str(offsets.dtype).removeprefix("torch.")
        raise ConfigError(f"{place}: d2t is of {kind}, not of whole numbers; {hint}")
    ids = torch.arange(rows) + offsets.long()
    if bool((ids.diff() <= 0).any()) or bool((ids < 0).any()):
        raise ConfigError(f"{place}: d2t gives ids that do not increase from 0; {hint}")
    if vocab is not None and int(ids[-1]) >= vocab:
        raise ConfigError(f"{place}: d2t gives id {int(ids[-1])} of {vocab} tokens; {hint}")
    if options.marked:
        marked = file.tensors["t2d"].nonzero().view(-1)
        if len(marked) != rows or not torch.equal(marked, ids):
            raise ConfigError(f"{place}: d2t and t2d name different tokens; {hint}")
    elif vocab is not None and rows < vocab and not bool(offsets.any()):
        raise ConfigError(f"{place}: d2t is all zeros, a map that was never filled; {hint}")


def _rows(tensors: Mapping[str, Tensor], key: str) -> int:
    return tensors[key].shape[0] if key in tensors else 0
