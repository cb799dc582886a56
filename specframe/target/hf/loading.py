"""Loads a model and its tokenizer by transformers, and refuses what cannot be decoded here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch

from specframe.errors import ConfigError, IncompatibleComponents
from specframe.models.checkpoint import foreign_errors, load_strictly
from specframe.models.package import local_folder
from specframe.models.tokenizer import load_tokenizer

Dtype = Literal["auto", "float32", "float64", "bfloat16", "float16"]


def load(path: str, options: dict[str, Any], model_options: dict[str, Any]) -> tuple[Any, Any]:
    """(model, tokenizer or None). Raises ConfigError naming the path if there is no such model, or
    if its weights are not, key for key, those of its configuration."""
    import transformers

    # Our own progress is shown where a model is made; loading it takes a second or two.
    transformers.utils.logging.disable_progress_bar()
    folder, place = str(local_folder(path)), f"target.path={path}"
    if Path(folder).suffix == ".gguf" and Path(folder).is_file():
        options = {**options, "gguf_file": Path(folder).name}
        folder = str(Path(folder).parent)
    elif _looks_local(folder) and not Path(folder).is_dir():
        raise ConfigError(f"{place}: no such folder")
    with foreign_errors(place):
        config = transformers.AutoConfig.from_pretrained(folder, **options)
    kind: Any = transformers.AutoModelForCausalLM._model_mapping.get(type(config), None)
    if isinstance(kind, type):
        with foreign_errors(place):
            refuse_recurrent(config, kind)
    given = {key: value for key, value in model_options.items() if value is not None}
    model = load_strictly(place, folder, **options, **given)
    return model, load_tokenizer(folder, options, named_by=place)


def _looks_local(path: str) -> bool:
    return path.startswith((".", "/", "~")) or path.count("/") > 1


def dtype_of(name: Dtype, device: torch.device) -> Any:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    return getattr(torch, name)


def refuse_recurrent(config: Any, kind: type) -> None:
    """Raises IncompatibleComponents, naming the class, for state that cannot be rolled back."""
    types = set(getattr(config.get_text_config(), "layer_types", None) or ())
    other = sorted(types - {"full_attention", "sliding_attention"})
    if getattr(kind, "_is_stateful", False) or other or config.is_encoder_decoder:
        what = f"layers of type {', '.join(other)}" if other else "state"
        raise IncompatibleComponents(
            f"target: {kind.__name__} keeps {what} that cannot be rolled back after a rejected "
            "draft; use a model of full or sliding attention"
        )
    for key in ("use_logn_attn", "use_dynamic_ntk"):  # of Qwen's first code
        if getattr(config, key, False):
            raise IncompatibleComponents(
                f"target: {kind.__name__} has {key}=true, which changes attention with the length "
                "of a text, so that drafts would change the text; use a model without it"
            )
