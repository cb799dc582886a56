"""Forks: components of one sequence for another one beside it, with nothing asked of their authors.

A fork shares what is only read and has everything else for itself. Targets, runtimes and networks
of torch are shared; any other class whose objects are only read (a datastore, a table of costs)
says so by `shared_by_lanes = True`.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import numpy as np
from torch import Tensor, nn

from specframe.cache.base import CacheManager
from specframe.components import Components
from specframe.runtime.base import Launch, Runtime, Weights
from specframe.target.base import Target

T = TypeVar("T")
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_SHARED = (nn.Module, Target, Launch, Weights, Runtime, *_LOCKS)
_FLAT = (str, bytes, int, float, type(None), type, ModuleType, FunctionType, BuiltinFunctionType)
_ARRAYS = (Tensor, np.ndarray)


def forked(parts: Components) -> Components:
    """The components for another lane: the same target and runtime, all else of its own.

    No sequence may be under way: what the caches hold is given up.
    """
    own = (parts.drafter, parts.tree, parts.accept, parts.cache)
    drafter, tree, accept, cache = fork(own)
    return replace(parts, drafter=drafter, tree=tree, accept=accept, cache=cache)


def fork(component: T) -> T:
    """A copy that shares what is only read. Caches are closed before, so none is copied full."""
    shared: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    pending: list[Any] = [component]
    while pending:
        part = pending.pop()
        if id(part) in seen or isinstance(part, (*_FLAT, *_ARRAYS)):
            continue
        seen[id(part)] = part
        if is_shared(part):
            shared[id(part)] = part
            continue
        if isinstance(part, CacheManager):
            for lane in range(len(part.lengths)):
                part.close(lane)
        pending += _parts(part)
    return copy.deepcopy(component, shared)


def is_shared(part: object) -> bool:
    """Whether all lanes use this very object."""
    return isinstance(part, _SHARED) or getattr(type(part), "shared_by_lanes", False)


def _parts(part: Any) -> Iterable[Any]:
    """What an object is made of."""
    if isinstance(part, Mapping):
        yield from part
        yield from part.values()
    elif isinstance(part, (list, tuple, set, frozenset)):
        yield from part
    elif isinstance(part, MethodType):
        yield part.__self__
    yield from vars(part).values() if hasattr(part, "__dict__") else ()
    for kind in type(part).__mro__:
        for name in vars(kind).get("__slots__", ()):
            if hasattr(part, name):
                yield getattr(part, name)
