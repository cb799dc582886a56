"""Records taken apart into tensors and what is left, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Placeholder:
    """Where a tensor of this shape and kind was, and which of the list it is."""

    index: int
    shape: torch.Size
    dtype: torch.dtype


def apart(record: Any, tensors: list[Tensor]) -> Any:
    """The same record with places for its tensors, which are appended to the list, each once.

    Hashable, if what is left of a record is.
    """
    known = {id(one): index for index, one in enumerate(tensors)}

    def taken(value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in known:
                known[id(value)] = len(tensors)
                tensors.append(value)
            return Placeholder(known[id(value)], value.shape, value.dtype)
        return _mapped(value, taken)

    return taken(record)


def joined(form: Any, tensors: Sequence[Tensor]) -> Any:
    """The record whose places are filled again."""

    def filled(value: Any) -> Any:
        return tensors[value.index] if isinstance(value, Placeholder) else _mapped(value, filled)

    return filled(form)


def _mapped(value: Any, each: Any) -> Any:
    """Tuples and dataclasses with each of their parts replaced; anything else as it is."""
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return tuple(each(one) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: each(getattr(value, one.name)) for one in fields(value)})
    return value
