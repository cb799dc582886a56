"""The axes, and one word of each bound to its class with checked values."""

from __future__ import annotations

import typing
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from specframe.accept.base import RULES
from specframe.cache.base import CACHES, CacheManager
from specframe.compose.binding import bind
from specframe.data.base import SUITES
from specframe.drafter.base import DRAFTERS, Drafter
from specframe.errors import ConfigError, IncompatibleComponents, MissingResource
from specframe.planning.cost_table import CostTable
from specframe.records import InnerLoop, TrueText
from specframe.registry import Registry
from specframe.runtime.base import RUNTIMES, Launch, Runtime
from specframe.target.base import TARGETS, Target
from specframe.task.base import TASKS
from specframe.trace.base import TRACES
from specframe.tree.base import TREES

AXES: dict[str, Registry[Any]] = {
    "target": TARGETS,
    "drafter": DRAFTERS,
    "tree": TREES,
    "accept": RULES,
    "cache": CACHES,
    "runtime": RUNTIMES,
    "task": TASKS,
    "trace": TRACES,
    "data": SUITES,
}
OPTIONAL = ("data",)  # axes that a run may leave out
NewCache = Callable[[], CacheManager]
Sources = Sequence[Drafter]
# Types of constructor parameters that are supplied here, never by the user's YAML.
_LOADED = (
    Runtime,
    Target,
    InnerLoop,
    TrueText,
    NewCache,
    Sources,
    CostTable,
)  # may need weights first
_SUPPLIED = (torch.device, Launch | None, *_LOADED)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """One word's class, its checked values, and the types of its constructor's parameters.

    given: its YAML's values as they were, supplied ones included. members: the options it lists.
    where: the key above its own.
    """

    axis: str
    word: str
    cls: Any
    values: dict[str, Any]
    hints: dict[str, Any]
    given: dict[str, Any]
    where: str
    members: tuple[Bound, ...] = ()

    @property
    def waits_for_weights(self) -> bool:
        """Whether the constructor is handed something that is loaded first."""
        return any(hint == one for hint in self.hints.values() for one in _LOADED)

    def settled(self, target: str) -> Bound:
        """A drafter's values as they are for a target of this name. Raises ConfigError."""
        with user_errors(self.axis), inside(self.where):
            settle = getattr(self.cls, "settle", None)
            values = self.values if settle is None else settle(self.values, target)
        members = [one.settled(target) if one.axis == "drafter" else one for one in self.members]
        return replace(self, values=values, members=tuple(members))

    def make(self, **supplied: Any) -> Any:
        """Construct it, with those of `supplied` that it takes. Raises ConfigError."""
        wanted = {key: value for key, value in supplied.items() if key in self.hints}
        with user_errors(self.axis):
            return self.cls(**{**self.values, **wanted})


def bind_axis(
    axis: str, values: dict[str, Any], word: str | None = None, *, where: str | None = None
) -> Bound:
    """Bind the values of one option (`name` among them); `where` they stand, if not under the axis.

    Raises ConfigError.
    """
    cls = AXES[axis].get(values["name"])
    hints = typing.get_type_hints(cls.__init__)
    own = {key for key, hint in hints.items() if any(hint == one for one in _SUPPLIED)}
    given = {key: value for key, value in values.items() if key not in own}
    where = where or axis
    return Bound(
        axis=axis,
        word=word or values["name"],
        cls=cls,
        values=bind(cls, given, where=where, injected=own),
        hints=hints,
        given=values,
        where=where,
    )


def with_members(bound: Bound, members: Sequence[Bound]) -> Bound:
    """A drafter that lists these; its class is told theirs, which decide what it can do."""
    if not members:
        return bound
    classes: defaultdict[str, list[type]] = defaultdict(list)
    for one in members:
        classes[one.axis].append(one.cls)
    return replace(bound, cls=bound.cls.composed(classes), members=tuple(members))


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


@contextmanager
def inside(where: str) -> Iterator[None]:
    """A mistake in an option inside an option (`drafter.ngram`): its place is put in front."""
    try:
        yield
    except (ConfigError, IncompatibleComponents, MissingResource) as error:
        if "." not in where or str(error).startswith(where):
            raise
        raise type(error)(f"{where}: {error}") from error
