"""Loads a causal language model by transformers, strictly: every weight has its place and no other.

transformers fills in what a checkpoint lacks with random values and leaves out what it does not
know, with a notice at most. Such a model gives a text, of nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError, IncompatibleComponents, MissingResource, describe_error

# Buffers that follow from the configuration, which old checkpoints hold, and modules beside the
# model: Medusa heads, modules of multi-token prediction. Tied embeddings transformers knows itself.
_DERIVED = re.compile(r"(rotary_emb\.inv_freq|attn\.masked_bias|(attn|attention)\.bias)$")
_BESIDE = re.compile(r"^(model\.)?(medusa_head|mtp)\.")
_LAYER = re.compile(r"^(?P<layer>(model\.)?layers\.\d+\.)")
_SHOWN = 40  # keys of a message; one damaged file can lack thousands


def load_strictly(place: str, folder: str | Path, **options: Any) -> Any:
    """The model at a folder or hub name. options: of `from_pretrained`.

    place: key and value as the user wrote them. Raises ConfigError that begins with it for files
    that cannot be read, missing and surplus keys and shapes that contradict the configuration;
    MissingResource for a package that is not there.
    """
    from transformers import AutoModelForCausalLM

    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    auto: Any = AutoModelForCausalLM
    with foreign_errors(place), _without_reports():
        model, report = auto.from_pretrained(folder, **options)
    _check(place, report)
    return model


@contextmanager
def foreign_errors(place: str) -> Iterator[None]:
    """Turn whatever a library raises over a user's files into one line that begins with `place`.

    What it raises is no promise of the library: a broken file may end in any error.
    """
    try:
        yield
    except (ConfigError, IncompatibleComponents, MissingResource, MemoryError):
        raise
    except ImportError as error:  # a quantisation method whose package is not there
        raise MissingResource(f"{place}: {_first(str(error))}") from error
    except (OSError, ValueError) as error:  # sentences, most of them
        raise ConfigError(f"{place}: {_first(str(error) or describe_error(error))}") from error
    except Exception as error:
        raise ConfigError(
            f"{place}: it cannot be loaded ({_first(describe_error(error))})"
        ) from error


def _check(place: str, report: Any) -> None:
    surplus = _without_known(report["unexpected_keys"])
    shapes = sorted(
        f"{key} {list(stored)} instead of {list(wanted)}"
        for key, stored, wanted in report["mismatched_keys"]
    )
    kinds = {
        "missing": sorted(report["missing_keys"]),
        "surplus": surplus,
        "shapes that config.json contradicts": shapes,
    }
    parts = [f"{kind} {_listed(keys)}" for kind, keys in kinds.items() if keys]
    parts += [_first(str(each)) for each in report.get("error_msgs") or ()]
    if parts:
        raise ConfigError(
            f"{place}: weights and config.json do not fit together: {'; '.join(parts)}"
        )


def _without_known(keys: Iterable[str]) -> list[str]:
    """Surplus keys that mean another model, sorted."""
    keys = sorted(keys)
    modules = {
        match["layer"]
        for key in keys
        if key.endswith(".eh_proj.weight") and (match := _LAYER.match(key))
    }
    return [
        key
        for key in keys
        if not _DERIVED.search(key)
        and not _BESIDE.match(key)
        and not ((match := _LAYER.match(key)) and match["layer"] in modules)
    ]


def _listed(keys: list[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more


def _first(text: str) -> str:
    """A message of a library on one line of bounded length."""
    return " ".join(text.split())[:300]


@contextmanager
def _without_reports() -> Iterator[None]:
    """Hide transformers' table of keys, which `_check` says in a line."""
    from transformers.utils import logging as settings

    level = settings.get_verbosity()
    settings.set_verbosity_error()
    try:
        yield
    finally:
        settings.set_verbosity(level)
