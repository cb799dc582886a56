"""How files of Llama-style draft layers are laid out: names of tensors and sizes of layers.

The files of EAGLE, of speculators and of multi-token prediction differ in prefixes alone. Sizes are
read off the shapes; what no shape shows (head size, norm, positions) comes from the configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from specframe.errors import ConfigError
from specframe.heads import config_values as values
from specframe.heads.head_files import HeadFiles
from specframe.heads.layers import Rope, Shape

# Projection -> the part of a layer that it belongs to.
PROJECTIONS = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}
# Prefixes of our modules (and of the EAGLE files) -> those of speculators.
EAGLE_PREFIXES = {"fc.": "fusion_fc.", "layers.0.": "transformer."}
EAGLE3_PREFIXES = {"midlayer.": "layers.0."}
_DERIVED = ".rotary_emb.inv_freq"  # some old files hold it; it follows from the configuration


@dataclass(frozen=True, kw_only=True)
class RenamedFile:
    """A head's tensors under the names of our modules."""

    files: HeadFiles
    tensors: dict[str, Tensor]  # by our names
    prefixes: Mapping[str, str]  # our prefix -> the file's

    def original(self, key: str) -> str:
        """The name that the file has, or would have, for a key of ours."""
        return swap_prefix(key, self.prefixes)

    @property
    def config(self) -> dict[str, Any]:
        """The fields of a Llama configuration."""
        nested = self.files.config.get("transformer_layer_config")
        return nested if isinstance(nested, dict) else self.files.config


def swap_prefix(key: str, prefixes: Mapping[str, str]) -> str:
    """`key` with its prefix, if it is among `prefixes`, replaced by what it maps to."""
    for old, new in prefixes.items():
        if key.startswith(old):
            return new + key.removeprefix(old)
    return key


def is_eagle3(keys: Iterable[str]) -> bool:
    """Whether the names are those of an EAGLE-3 head."""
    marks = (".hidden_norm.weight", "d2t", "t2d")
    return any(key.startswith("midlayer.") or key.endswith(marks) for key in keys)


def renamed(files: HeadFiles, prefixes: Mapping[str, str]) -> RenamedFile:
    """A file under our names. prefixes: ours -> those of the file, if the file uses any of them."""
    theirs = tuple(prefixes.values())
    used = prefixes if any(key.startswith(theirs) for key in files.tensors) else {}
    back = {new: old for old, new in used.items()}
    tensors = {
        swap_prefix(key, back): value
        for key, value in files.tensors.items()
        if not key.endswith(_DERIVED)
    }
    return RenamedFile(files=files, tensors=tensors, prefixes=used)


def num_layers(keys: Iterable[str]) -> int:
    """How many layers the names `layers.<i>.` show, at least one."""
    matches = [re.match(r"layers\.(\d+)\.", key) for key in keys]
    return 1 + max([int(match[1]) for match in matches if match], default=0)


def layer_keys(prefix: str, norms: Iterable[str]) -> tuple[list[str], list[str]]:
    """(required, optional) names of the layer at `prefix`, with norms of these names."""
    weights = [f"{prefix}{part}.{name}.weight" for name, part in PROJECTIONS.items()]
    biases = [f"{prefix}{part}.{name}.bias" for name, part in PROJECTIONS.items()]
    biases += [f"{prefix}self_attn.{norm}.weight" for norm in ("q_norm", "k_norm")]
    return weights + [f"{prefix}{norm}.weight" for norm in norms], biases


def shape_of(file: RenamedFile, prefix: str) -> Shape:
    """Sizes of the layer at `prefix`, from shapes; head size, norm and positions from config.json.

    Raises ConfigError naming what is missing or cannot be served.
    """
    sizes = {
        name: tuple(file.tensors[f"{prefix}{part}.{name}.weight"].shape)
        for name, part in PROJECTIONS.items()
    }
    config, place = file.config, file.files.place
    queries, hidden = sizes["q_proj"][0], sizes["o_proj"][0]
    heads = values.whole(config, "num_attention_heads", place)
    size = values.whole(config, "head_dim", place) or (queries // heads if heads else None)
    if not size:
        raise ConfigError(
            f"{place}: config.json must give head_dim or num_attention_heads; shapes do not tell"
        )
    if queries % size or sizes["k_proj"][0] % size or size % 2:
        raise ConfigError(
            f"{place}: heads of {size} do not divide q_proj {sizes['q_proj']} and k_proj "
            f"{sizes['k_proj']}; correct head_dim in config.json"
        )
    _refuse_unknown(config, place)
    biases = {
        name for name, part in PROJECTIONS.items() if f"{prefix}{part}.{name}.bias" in file.tensors
    }
    shape = Shape(
        hidden=hidden,
        intermediate=sizes["up_proj"][0],
        heads=queries // size,
        kv_heads=sizes["k_proj"][0] // size,
        head_dim=size,
        eps=values.positive(config, "rms_norm_eps", place) or 1e-6,
        rope=rope_of(config, place),
        biases=frozenset(biases),
        qk_norm=f"{prefix}self_attn.q_norm.weight" in file.tensors,
    )
    _check_agreement(config, place, shape)
    return shape


def _check_agreement(config: Mapping[str, Any], place: str, shape: Shape) -> None:
    values.agree(
        config,
        place,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
    )


def _refuse_unknown(config: Mapping[str, Any], place: str) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ConfigError(f"{place}: hidden_act={activation} is not supported, only silu")
    sliding = "sliding_attention" in (config.get("layer_types") or ())
    if sliding or config.get("use_sliding_window"):
        raise ConfigError(f"{place}: a draft layer with a sliding window is not supported")


def rope_of(config: Mapping[str, Any], place: str) -> Rope:
    """The positions that a draft's own configuration names. Raises ConfigError.

    Where it names no base, 10000 is meant (never the target's): the programs that trained such
    heads had it fixed.
    """
    scaling = values.section(config, "rope_parameters", place)
    scaling = scaling or values.section(config, "rope_scaling", place)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    base = values.positive(scaling, "rope_theta", place)
    base = base or values.positive(config, "rope_theta", place) or 10000.0
    partial = scaling.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if kind not in ("default", "linear", "llama3") or partial != 1.0:
        raise ConfigError(
            f"{place}: rope type {kind} (partial {partial}) is not supported; known are default, "
            "linear and llama3 over whole heads"
        )
    if kind == "default":
        return Rope(base=base)
    factor = values.needed(scaling, "factor", place)
    if kind == "linear":
        return Rope(base=base, kind=kind, factor=factor)
    return Rope(
        base=base,
        kind=kind,
        factor=factor,
        low=values.needed(scaling, "low_freq_factor", place),
        high=values.needed(scaling, "high_freq_factor", place),
        original=int(values.needed(scaling, "original_max_position_embeddings", place)),
    )
