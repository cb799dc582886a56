"""The axes, and one word of each bound to its class with checked values."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from specframe.accept.base import RULES
from specframe.binding import bind
from specframe.cache.base import CACHES, CacheManager
from specframe.data.base import SUITES
from specframe.drafter.base import DRAFTERS
from specframe.errors import ConfigError, IncompatibleComponents, MissingResource
from specframe.records import InnerLoop
from specframe.registry import Registry
from specframe.runtime.base import RUNTIMES, Runtime
from specframe.target.base import TARGETS, Target
from specframe.task.base import TASKS
from specframe.tree.base import TREES

AXES: dict[str, Registry[Any]] = {
    "target": TARGETS,
    "drafter": DRAFTERS,
    "tree": TREES,
    "accept": RULES,
    "cache": CACHES,
    "runtime": RUNTIMES,
    "task": TASKS,
    "data": SUITES,
}
OPTIONAL = ("data",)  # axes that a run may leave out
NewCache = Callable[[], CacheManager]
# Types of constructor parameters that are supplied here, never by the user's YAML.
_SUPPLIED = (torch.device, Runtime, Target, InnerLoop, NewCache)
_LOADED = (Runtime, Target, InnerLoop, NewCache)  # those that may need weights first


@dataclass(frozen=True, kw_only=True)
class Bound:
    """One word's class, its checked values, and the types of its constructor's parameters."""

    axis: str
    word: str
    cls: Any
    values: dict[str, Any]
    hints: dict[str, Any]

    @property
    def waits_for_weights(self) -> bool:
        """Whether the constructor is handed something that is loaded first."""
        return any(hint == one for hint in self.hints.values() for one in _LOADED)

    def settled(self, target: str) -> Bound:
        """A drafter's values as they are for a target of this name. Raises ConfigError."""
        with user_errors(self.axis):
            return replace(self, values=self.cls.settle(self.values, target))

    def make(self, **supplied: Any) -> Any:
        """Construct it, with those of `supplied` that it takes. Raises ConfigError."""
        wanted = {key: value for key, value in supplied.items() if key in self.hints}
        with user_errors(self.axis):
            return self.cls(**{**self.values, **wanted})


def bind_axis(axis: str, values: dict[str, Any], word: str | None = None) -> Bound:
    """Bind the values of one option (`name` among them). Raises ConfigError."""
    cls = AXES[axis].get(values["name"])
    hints = typing.get_type_hints(cls.__init__)
    own = {key for key, hint in hints.items() if any(hint == one for one in _SUPPLIED)}
    given = {key: value for key, value in values.items() if key not in own}
    bound = bind(cls, given, where=axis, injected=own)
    return Bound(axis=axis, word=word or values["name"], cls=cls, values=bound, hints=hints)


@contextmanager
def user_errors(where: str = "") -> Iterator[None]:
    """A constructor's ValueError is the user's mistake: a ConfigError with the key in front."""
    try:
        yield
    except (ConfigError, IncompatibleComponents, MissingResource):
        raise
    except ValueError as error:
        text = str(error)
        named = not where or text.startswith(where)
        raise ConfigError(text if named else f"{where}: {text}") from error
