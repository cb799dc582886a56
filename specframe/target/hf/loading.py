"""Loads a model and its tokenizer by transformers, and refuses what cannot be decoded here."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import torch

from specframe.errors import IncompatibleComponents, MissingResource
from specframe.models.package import local_folder
from specframe.models.tokenizer import load_tokenizer

Dtype = Literal["auto", "float32", "float64", "bfloat16", "float16"]
# What transformers raises for a quantization_config that it cannot read.
_BAD_QUANTIZATION = (AssertionError, AttributeError, KeyError, TypeError)


def load(path: str, options: dict[str, Any], model_options: dict[str, Any]) -> tuple[Any, Any]:
    """(model, tokenizer or None). Raises ValueError naming the path if there is no such model."""
    # torchao, which transformers imports where it is installed, tells of kernels that it lacks.
    for name in ("huggingface_hub", "torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
    import transformers

    # Our own progress is shown where a model is made; loading it takes a second or two.
    transformers.utils.logging.disable_progress_bar()
    folder = str(local_folder(path))
    if Path(folder).suffix == ".gguf" and Path(folder).is_file():
        options = {**options, "gguf_file": Path(folder).name}
        folder = str(Path(folder).parent)
    elif _looks_local(folder) and not Path(folder).is_dir():
        raise ValueError(f"target.path={path}: no such folder")
    auto = transformers.AutoModelForCausalLM
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **options)
        kind: Any = auto._model_mapping.get(type(config), None)
        if isinstance(kind, type):
            refuse_recurrent(config, kind)
        given = {key: value for key, value in model_options.items() if value is not None}
        model = auto.from_pretrained(folder, **options, **given)
    except ImportError as error:  # a quantisation method whose package is not there
        raise MissingResource(f"target.path={path}: {_first(error)}") from error
    except IncompatibleComponents:
        raise
    except (OSError, ValueError, *_BAD_QUANTIZATION) as error:
        if isinstance(error, _BAD_QUANTIZATION) and model_options["quantization_config"] is None:
            raise
        raise ValueError(f"target.path={path}: {_first(error)}") from error
    return model, load_tokenizer(folder, options, named_by=f"target.path={path}")


def _first(error: Exception) -> str:
    """An error of transformers on one line of bounded length."""
    return " ".join(str(error).split())[:300]


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
