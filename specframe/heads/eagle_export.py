"""Writes EAGLE heads in the layout of the EAGLE programs or in that of speculators."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from specframe.heads.eagle_net import Eagle3Net, EagleNet
from specframe.heads.head_files import write_files
from specframe.heads.layer_layout import EAGLE3_PREFIXES, EAGLE_PREFIXES, swap_prefix
from specframe.heads.layers import Rope, Shape

Layout = Literal["eagle", "speculators"]


def save_eagle(
    net: EagleNet | Eagle3Net,
    folder: Path,
    *,
    layout: Layout = "eagle",
    verifier: str | None = None,
    speculative_tokens: int = 5,
) -> None:
    """Write `config.json` and `model.safetensors`; loading them gives the same bits.

    verifier: hub name of the target, which the layout of speculators names. speculative_tokens:
    length of the chain that its readers draft.
    """
    third = isinstance(net, Eagle3Net)
    prefixes = {} if layout == "eagle" else EAGLE3_PREFIXES if third else EAGLE_PREFIXES
    tensors = {swap_prefix(key, prefixes): value for key, value in net.state_dict().items()}
    config = config_of(net)
    if layout == "speculators":
        config = _nested(config, net, verifier, speculative_tokens)
    write_files(folder, config, tensors)


def config_of(net: EagleNet | Eagle3Net) -> dict[str, Any]:
    """The flat configuration of a network, with the keys of a Llama configuration."""
    options = net.options
    config = layer_config(options.shape, layers=options.layers)
    config |= {"bias": options.bias, "qkv_bias": config["attention_bias"]}
    if options.vocab_size is not None:
        config["vocab_size"] = options.vocab_size
    return config | (_eagle3_fields(net) if isinstance(net, Eagle3Net) else {})


def layer_config(shape: Shape, *, layers: int) -> dict[str, Any]:
    """The keys of a Llama configuration that a reader needs to run layers of this shape."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope.base,
        "rope_scaling": _scaling(shape.rope),
        "attention_bias": "q_proj" in shape.biases,
    }


def _eagle3_fields(net: Eagle3Net) -> dict[str, Any]:
    options = net.options
    fields: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": options.draft_vocab,
        "norm_before_residual": options.norm_before_residual,
        "norm_before_fc": options.norm_before_fc,
        "fc_norm": options.fc_norm,
        "norm_output": options.norm_output,
    }
    if options.feature_size != options.shape.hidden:
        fields["target_hidden_size"] = options.feature_size
    if options.taps is not None:
        fields["eagle_aux_hidden_state_layer_ids"] = list(options.taps)
    return fields


def _scaling(rope: Rope) -> dict[str, Any] | None:
    if rope.kind == "default":
        return None
    scaling: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "llama3":
        scaling["low_freq_factor"] = rope.low
        scaling["high_freq_factor"] = rope.high
        scaling["original_max_position_embeddings"] = rope.original
    return scaling


def _nested(
    flat: dict[str, Any],
    net: EagleNet | Eagle3Net,
    verifier: str | None,
    speculative_tokens: int,
) -> dict[str, Any]:
    """The same configuration in the nested form of speculators."""
    third = isinstance(net, Eagle3Net)
    own = set(_eagle3_fields(net)) if isinstance(net, Eagle3Net) else {"bias", "qkv_bias"}
    algorithm = "eagle3" if third else "eagle"
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": speculative_tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    layer = {key: value for key, value in flat.items() if key not in own}
    top = {key: flat[key] for key in own if key in flat}
    if not third:
        top = {"fusion_bias": flat["bias"], "layernorms": False}
    return {
        **top,
        "architectures": ["Eagle3Speculator" if third else "EagleSpeculator"],
        "speculators_model_type": algorithm,
        "transformer_layer_config": {**layer, "architectures": ["LlamaForCausalLM"]},
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": verifier, "architectures": []},
        },
    }
