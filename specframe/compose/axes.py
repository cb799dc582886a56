"""The axes, and how a configuration's words are bound to classes with checked values.

Nothing is constructed while it is bound, so that a mistake in any word is reported before weights
are loaded.
"""

from __future__ import annotations

import typing
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from specframe.accept.base import RULES
from specframe.cache.base import CACHES, CacheManager
from specframe.compose import catalogue
from specframe.compose.binding import bind
from specframe.compose.nested_options import Option, nested_options
from specframe.data.base import SUITES
from specframe.drafter.base import DRAFTERS, Drafter
from specframe.errors import ConfigError, inside, user_errors
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
# Types of constructor parameters that composition supplies, with the name that the parameter must
# have ("": any); a YAML file never gives their values. plugins/README.md tells authors the same.
SUPPLIED: dict[str, dict[Any, str]] = {
    "target": {torch.device: "device", Runtime: "runtime"},
    "drafter": {
        Target: "",
        Runtime: "runtime",
        NewCache: "",
        InnerLoop: "",
        Sources: "",
        TrueText: "",
    },
    "tree": {CostTable: "costs"},
    "cache": {Launch | None: "launch"},
}
# Those that may need weights first.
_LOADED = (Runtime, Target, InnerLoop, TrueText, NewCache, Sources, CostTable)
_KINDS = (torch.device, Launch | None, *_LOADED)


@dataclass(frozen=True, kw_only=True)
class BoundOption:
    """An option, the class that its `name` chose, and values that fit the class's constructor."""

    axis: str
    word: str  # its YAML file is conf/<axis>/<word>.yaml; a preset's differs from the class's name
    where: str  # the key that its values stand under, such as "tree" or "drafter.ngram"
    cls: Any
    hints: dict[str, Any]  # types of the constructor's parameters
    values: dict[str, Any]  # checked and converted, without those that composition supplies
    given: dict[str, Any]  # as the configuration has them, those for what is supplied included
    nested: tuple[BoundOption, ...] = ()  # the options that a drafter lists

    @property
    def waits_for_weights(self) -> bool:
        """Whether the constructor takes something that has to be loaded first."""
        return any(hint == kind for hint in self.hints.values() for kind in _LOADED)

    def settled(self, target: str) -> BoundOption:
        """The same drafter with the values that depend on the target's name filled in.

        Raises ConfigError, for instance where no head ships for that target.
        """
        with user_errors(self.axis), inside(self.where):
            settle = getattr(self.cls, "settle", None)
            values = self.values if settle is None else settle(self.values, target)
        nested = (
            option.settled(target) if option.axis == "drafter" else option for option in self.nested
        )
        return replace(self, values=values, nested=tuple(nested))

    def make(self, **supplied: Any) -> Any:
        """Construct the component; it gets those of `supplied` that its constructor has.

        Raises ConfigError for a value that the constructor refuses.
        """
        wanted = {key: value for key, value in supplied.items() if key in self.hints}
        with user_errors(self.axis):
            return self.cls(**{**self.values, **wanted})


def bind_axis(
    axis: str, values: dict[str, Any], word: str | None = None, *, where: str | None = None
) -> BoundOption:
    """Bind the values of one option; `name` among them chooses the class.

    word: the option, if it is a preset whose word differs from `name`. where: the key that the
    values stand under, if that is not the axis. Raises ConfigError for an unknown `name` and for
    values that do not fit.
    """
    cls = AXES[axis].get(values["name"])
    hints = typing.get_type_hints(cls.__init__)
    own = {key for key, hint in hints.items() if any(hint == kind for kind in _KINDS)}
    for key in own:
        _check_supplied(axis, values["name"], key, hints[key])
    given = {key: value for key, value in values.items() if key not in own}
    where = where or axis
    return BoundOption(
        axis=axis,
        word=word or values["name"],
        where=where,
        cls=cls,
        hints=hints,
        values=bind(cls, given, where=where, injected=own),
        given=values,
    )


def _check_supplied(axis: str, name: str, key: str, hint: Any) -> None:
    """Raises ConfigError for a parameter whose value the components of this axis are not given."""
    supplied = SUPPLIED.get(axis, {})
    wanted = next((name for kind, name in supplied.items() if kind == hint), None)
    if wanted in ("", key):
        return
    if wanted is not None:
        raise ConfigError(
            f"{axis}={name}: the constructor's parameter `{key}` must be called `{wanted}`"
        )
    able = ", ".join(_kind(kind) for kind in supplied)
    raise ConfigError(
        f"{axis}={name}: the constructor's `{key}` asks for {_kind(hint)}, which no {axis} is "
        f"given; it may ask for {able or 'nothing but values of its YAML file'}"
    )


def _kind(hint: Any) -> str:
    """The name of a type that may be asked for."""
    aliases: tuple[tuple[Any, str], ...] = (
        (torch.device, "torch.device"),
        (NewCache, "NewCache"),
        (Sources, "Sources"),
        (Launch | None, "Launch | None"),
    )
    return next((name for kind, name in aliases if kind == hint), None) or str(hint.__name__)


def bind_drafter(
    values: dict[str, Any], word: str | None = None, where: str = "drafter"
) -> BoundOption:
    """Bind a drafter with the options that it lists, and with theirs. Raises ConfigError."""
    option = Option(where=where, axis="drafter", word=word or values["name"], values=values)
    with catalogue.configuration() as loader:
        listed = nested_options(option, loader)
    words = {inner.word for inner in listed}
    own = {key: value for key, value in values.items() if key not in words}
    bound = replace(bind_axis("drafter", own, word, where=where), given=values)
    nested = [
        bind_drafter(inner.values, inner.word, inner.where)
        if inner.axis == "drafter"
        else bind_axis(inner.axis, inner.values, inner.word, where=inner.where)
        for inner in listed
    ]
    return _with_nested(bound, nested)


def _with_nested(bound: BoundOption, nested: Sequence[BoundOption]) -> BoundOption:
    """A drafter that lists these; their classes decide what its own class can do."""
    if not nested:
        return bound
    classes: defaultdict[str, list[type]] = defaultdict(list)
    for inner in nested:
        classes[inner.axis].append(inner.cls)
    return replace(bound, cls=bound.cls.composed(classes), nested=tuple(nested))


def bind_axes(plain: dict[str, Any], device: torch.device) -> dict[str, BoundOption]:
    """Bind every axis of a configuration.

    A task that uses no drafter, or that wants unpacked weights, replaces the words of those axes; a
    CUDA device may replace the runtime. `plain` is changed accordingly. Raises ConfigError.
    """
    chosen = [axis for axis in AXES if axis not in OPTIONAL or plain.get(axis) is not None]
    task = bind_axis("task", plain["task"])
    plain["runtime"] = runtime_on(plain["runtime"], device)
    if not task.cls.uses_drafter:
        plain["drafter"] = {"name": "none"}
    if task.cls.unpacked_weights:
        plain["runtime"] = {"name": "eager", "buckets": None}
    bound = {axis: bind_axis(axis, plain[axis]) for axis in chosen if axis != "drafter"}
    bound["drafter"] = bind_drafter(plain["drafter"])
    return bound


def runtime_on(values: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """The values of the runtime for this device: on CUDA, the option that its key `cuda` names.

    That option's numbers come from its own YAML file, except for keys that both have and that are
    not null in `values`. Raises ConfigError for a word that is no runtime.
    """
    word = values.get("cuda")
    if word is None or device.type != "cuda":
        return values
    with catalogue.configuration() as loader:
        known = catalogue.options(loader, "runtime")
        if word not in known:
            raise ConfigError(
                f"runtime.cuda={word}: no such runtime; use {', '.join(known)} or null"
            )
        own = catalogue.schema(loader, "runtime", word)
    given = {key: value for key, value in values.items() if key != "name" and value is not None}
    return {key: given.get(key, value) for key, value in own.items()}
