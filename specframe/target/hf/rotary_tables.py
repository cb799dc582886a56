"""Rotary tables that a model chooses by the length of a text: one is in use for a whole text.

transformers chooses between them anew in every pass, by the largest position in it. A prompt that
is read in two passes would have keys of two tables, and a draft that looks past the border would
change the table under its root.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class RotaryTables:
    """The modules of a model whose table follows the length (`longrope`, `dynamic`).

    Within `of_text` they use the table of that text. A call from outside (the model's own
    `generate`) is left alone.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules: list[Any] = [module for module in model.modules() if _kinds(module)]
        self._is_fixed = False
        for module in self._modules:
            module.forward = self._guarded(module)

    def __bool__(self) -> bool:
        return bool(self._modules)

    @contextmanager
    def of_text(self, reach: int) -> Iterator[None]:
        """Use the tables of a text whose positions go up to `reach`, whatever a pass holds."""
        for module in self._modules:
            for prefix, kind, options in _kinds(module):
                buffer = getattr(module, f"{prefix}inv_freq")
                table, _ = _initial(kind)(module.config, buffer.device, seq_len=reach, **options)
                # In place, since a captured pass reads the buffer by its address.
                buffer.copy_(table)
        self._is_fixed = True
        try:
            yield
        finally:
            self._is_fixed = False

    def key(self, reach: int) -> Hashable:
        """Equal for texts that have the same tables."""
        return tuple(
            reach > border if kind == "longrope" else max(reach, border)
            for module in self._modules
            for prefix, kind, _ in _kinds(module)
            for border in [_border(module, prefix)]
        )

    def _guarded(self, module: Any) -> Callable[..., Any]:
        by_length = module.forward
        plain = functools.partial(inspect.unwrap(type(module).forward), module)

        @functools.wraps(by_length)
        def run(*args: Any, **kwargs: Any) -> Any:
            return (plain if self._is_fixed else by_length)(*args, **kwargs)

        return run


def longest_text(config: Any) -> int | None:
    """Positions that a model may be given; None if its configuration names no limit.

    A table of type `dynamic` stretches over `factor` times the positions of the training.
    """
    positions: int | None = getattr(config, "max_position_embeddings", None)
    scaling = getattr(config, "rope_parameters", None) or {}
    if positions is not None and scaling.get("rope_type") == "dynamic":
        return int(positions * max(1.0, float(scaling.get("factor") or 1.0)))
    return positions


def _kinds(module: nn.Module) -> list[tuple[str, str, dict[str, Any]]]:
    """(prefix of the buffer, type, options of its function) of each table that follows a length."""
    kinds = getattr(module, "rope_type", None)
    if not hasattr(type(module).forward, "__wrapped__") or not hasattr(module, "config"):
        return []
    if isinstance(kinds, dict):
        named = [(f"{layer}_", kind, {"layer_type": layer}) for layer, kind in kinds.items()]
    else:
        named = [("", kinds, {})]
    return [each for each in named if each[1] in ("dynamic", "longrope")]


def _border(module: Any, prefix: str) -> int:
    """The length up to which a table is that of the training."""
    parameters = module.config.rope_parameters
    parameters = parameters[prefix[:-1]] if prefix else parameters
    border: int = parameters.get("original_max_position_embeddings", module.original_max_seq_len)
    return border if parameters["rope_type"] == "longrope" else module.original_max_seq_len


def _initial(kind: str) -> Callable[..., Any]:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    initial: Callable[..., Any] = ROPE_INIT_FUNCTIONS[kind]
    return initial
