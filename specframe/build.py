"""Turns a configuration into components: binds every value, refuses bad pairs, then loads weights.

The only module below the command line that reads OmegaConf. What a lower layer may not import it
gets from here: a drafter its target, a second target, a cache factory or an inner loop.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from specframe import catalogue
from specframe.accept.base import RULES
from specframe.binding import Range, bind
from specframe.cache.base import CACHES, CacheManager
from specframe.compatibility import Classes, check, resolve_proposal
from specframe.compose import compose
from specframe.data.prompts import read_prompts
from specframe.drafter.base import DRAFTERS, Drafter
from specframe.errors import ConfigError, IncompatibleComponents, MissingResource
from specframe.generation import Engine, Settings
from specframe.manifest import recorded
from specframe.parts import Parts
from specframe.registry import Registry
from specframe.runtime.base import RUNTIMES, Runtime
from specframe.sampling import GREEDY_BELOW, SamplingConfig, load_object
from specframe.stopping import StopConfig
from specframe.target.base import TARGETS, Target
from specframe.task.base import TASKS, Job
from specframe.tree.base import TREES
from specframe.types import How, InnerLoop

AXES: dict[str, Registry[Any]] = {
    "target": TARGETS,
    "drafter": DRAFTERS,
    "tree": TREES,
    "accept": RULES,
    "cache": CACHES,
    "runtime": RUNTIMES,
    "task": TASKS,
}
_KEPT_TARGETS = 3  # loaded models that are kept between the points of a sweep
_INNER_ROOM = 256  # tokens that an inner loop may be ahead of the text
_loaded: dict[str, Target] = {}


def _top(
    *,
    prompt: str | None,
    prompts: str | None,
    raw: bool,
    max_new_tokens: Annotated[int, Range(1, 1_000_000)],
    seed: Annotated[int, Range(0, 2**63 - 1)],
    device: str,
    threads: Annotated[int, Range(1, 1024)] | None,
    require_lossless: bool,
) -> None:
    """The schema of the keys that belong to no component."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """One word's class, its checked values, and which of its parameters are supplied from here."""

    word: str
    cls: Any
    values: dict[str, Any]
    hints: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A configuration that is checked as far as it can be without weights."""

    config: dict[str, Any]
    bound: dict[str, Bound]
    top: dict[str, Any]
    settings: Settings
    device: torch.device
    how: How

    def load(self) -> Engine:
        """Load what the plan names. Raises ConfigError or IncompatibleComponents."""
        if self.top["threads"] is not None:
            torch.set_num_threads(self.top["threads"])
        # What needs no weights comes first, so that its mistakes are told at once.
        light = {axis: self._make(axis) for axis in ("runtime", "accept", "cache")}
        light["tree"] = self._make("tree", proposal=self.how)
        alone = not any(_is_model(hint) for hint in self.bound["drafter"].hints.values())
        drafter: Drafter | None = self._make("drafter") if alone else None
        runtime: Runtime = light["runtime"]
        target = self._target("target", self.bound["target"], runtime)
        if drafter is None:
            injected = {"runtime": runtime, "target": target}
            drafter = self._make("drafter", **self._for_drafter(injected))
        _check_taps(drafter, target)
        with _user_errors():
            parts = Parts(target=target, drafter=drafter, how=self.how, **light)
            return Engine(parts, self.settings)

    def _make(self, axis: str, **supplied: Any) -> Any:
        bound = self.bound[axis]
        wanted = {key: value for key, value in supplied.items() if key in bound.hints}
        with _user_errors(axis):
            return bound.cls(**{**bound.values, **wanted})

    def _for_drafter(self, injected: dict[str, Any]) -> dict[str, Any]:
        """What a drafter's constructor asks for by type, beyond its YAML."""
        supplied = dict(injected)
        for name, hint in self.bound["drafter"].hints.items():
            if hint is Target and name != "target":
                supplied[name] = self._draft_target(self.config["drafter"].get(name), injected)
            elif hint is InnerLoop:
                supplied[name] = self._inner(self.config["drafter"].get(name))
            elif hint == Callable[[], CacheManager]:
                supplied[name] = self._new_cache
        return supplied

    def _new_cache(self) -> CacheManager:
        cache = self.bound["cache"]
        # A drafter's need is not the user's capacity for the target.
        free = {"capacity": None} if "capacity" in cache.values else {}
        return cache.cls(**{**cache.values, **free})

    def _draft_target(self, word: str | None, injected: dict[str, Any]) -> Target:
        """The model a drafter runs: a target option, else a path for target=hf."""
        word = word or getattr(injected["target"], "draft", None)
        if word is None:
            raise ConfigError(
                f"drafter.model: no draft is known for target={self.bound['target'].word}; give "
                "drafter.model= a target option, hub name or folder of a smaller model"
            )
        with catalogue.configuration() as loader:
            options = catalogue.options(loader, "target")
            option = word if word in options else "hf"
            config = catalogue.schema(loader, "target", option)
        if option != word:
            config["path"] = word
        own = self.bound["target"].values
        config |= {key: own[key] for key in ("dtype",) if key in own and key in config}
        bound = _bind_axis("target", {**config}, option)
        return self._target("drafter.model", bound, injected["runtime"])

    def _inner(self, words: dict[str, Any] | None) -> InnerLoop:
        """The loop of another composition, `{axis: word, key: value}`, on the same device.

        It samples as the run does, with noise of its own, and never ends a text by itself.
        """
        given = {"seed": self.top["seed"] + 1, "device": self.device, "stop.eos": "[]"}
        given |= words or {}
        config = compose([f"{key}={value}" for key, value in given.items()])
        if not any(key.startswith("sampling.") for key in given):
            config.sampling = self.config["sampling"]
        room = self.settings.max_new_tokens + _INNER_ROOM
        return plan(config).load().decoding(max_new_tokens=room)

    def _target(self, where: str, bound: Bound, runtime: Runtime) -> Target:
        values = {**bound.values}
        key = json.dumps([bound.cls.__module__, str(self.device), values], sort_keys=True)
        if key not in _loaded:
            while len(_loaded) >= _KEPT_TARGETS:
                _loaded.pop(next(iter(_loaded)))
            with _user_errors(where):
                _loaded[key] = bound.cls(**values, device=self.device, runtime=runtime)
        target = _loaded[key] = _loaded.pop(key)
        target.runtime = runtime
        return target


class _user_errors:
    """A constructor's ValueError is the user's mistake: one line, with the key in front."""

    def __init__(self, where: str = "") -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        known = (ConfigError, IncompatibleComponents, MissingResource)
        if isinstance(error, ValueError) and not isinstance(error, known):
            text = str(error)
            named = not self._where or text.startswith(self._where)
            raise ConfigError(text if named else f"{self._where}: {text}") from error


def plan(config: DictConfig) -> Plan:
    """Bind and check a composed configuration; loads nothing.

    Raises ConfigError (keys, types, ranges, missing files) or IncompatibleComponents.
    """
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    top = {key: value for key, value in plain.items() if not isinstance(value, dict)}
    top = bind(_top, {key: value for key, value in top.items() if key != "hydra"}, where="")
    bound = {axis: _bind_axis(axis, plain[axis]) for axis in AXES}
    sampling = SamplingConfig(**bind(SamplingConfig, plain["sampling"], where="sampling"))
    stop = StopConfig(**bind(StopConfig, plain["stop"], where="stop"))
    if top["prompt"] is not None and top["prompts"] is not None:
        raise ConfigError("prompt and prompts are both given; keep one")
    if top["prompts"] is not None:
        read_prompts(Path(top["prompts"]))
    for path in sampling.processors or []:
        load_object(path, where="sampling.processors")
    for path in stop.criteria or []:
        load_object(path, where="stop.criteria")
    classes = Classes(
        **{axis: bound[axis].cls for axis in ("target", "drafter", "tree", "accept", "cache")},
        words={axis: bound[axis].word for axis in AXES},
    )
    greedy = sampling.temperature < GREEDY_BELOW
    how = resolve_proposal(bound["tree"].values["proposal"], classes, greedy=greedy)
    check(classes, how=how, require_lossless=top["require_lossless"])
    settings = Settings(
        seed=top["seed"],
        max_new_tokens=top["max_new_tokens"],
        sampling=sampling,
        stop=stop,
        raw=top["raw"],
    )
    return Plan(
        config=plain,
        bound=bound,
        top=top,
        settings=settings,
        device=_device(top["device"]),
        how=how,
    )


def load(overrides: Sequence[str] = ()) -> Engine:
    """The engine of a command line, as in load(["drafter=ngram", "sampling.temperature=0.7"])."""
    return plan(compose(overrides)).load()


def run(config: DictConfig, *, output_dir: Path) -> None:
    """Run the task of a configuration. Raises SystemExit with the task's code if it is not 0."""
    made = plan(config)
    task = made._make("task")
    top = made.top
    overrides = list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []

    def rebuild(more: Sequence[str]) -> Engine:
        return load(_replaced(overrides, more))

    job = Job(
        engine=made.load(),
        config=made.config,
        output_dir=output_dir,
        prompt=top["prompt"],
        prompts=None if top["prompts"] is None else Path(top["prompts"]),
        rebuild=rebuild,
    )
    with recorded(output_dir, engine=job.engine, config=made.config):
        code = task.run(job)
    if code:
        raise SystemExit(code)


def _replaced(overrides: Sequence[str], more: Sequence[str]) -> list[str]:
    """`more` on top of `overrides`: a new word of an axis takes the old word's values with it."""
    new = {override.partition("=")[0].lstrip("+") for override in more}
    kept = []
    for override in overrides:
        key = override.partition("=")[0].lstrip("+")
        if key not in new and key.partition(".")[0] not in new:
            kept.append(override)
    return [*kept, *more]


def _bind_axis(axis: str, values: dict[str, Any], word: str | None = None) -> Bound:
    cls = AXES[axis].get(values["name"])
    hints = typing.get_type_hints(cls.__init__)
    own = {key for key, hint in hints.items() if _is_supplied(hint)}
    given = {key: value for key, value in values.items() if key not in own}
    bound = bind(cls, given, where=axis, injected=own)
    return Bound(word=word or values["name"], cls=cls, values=bound, hints=hints)


def _is_model(hint: Any) -> bool:
    """Whether a constructor's parameter of this type has to wait for loaded weights."""
    return any(hint == one for one in (Target, InnerLoop, Runtime, Callable[[], CacheManager]))


def _is_supplied(hint: Any) -> bool:
    return _is_model(hint) or hint == torch.device


def _check_taps(drafter: Drafter, target: Target) -> None:
    missing = [tap for tap in drafter.needs.taps if tap not in target.gives.taps]
    if missing:
        raise IncompatibleComponents(
            f"the drafter needs {', '.join(missing)}, which {target.name} does not give"
        )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device={name}: no such device; use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={name}: this machine has no CUDA device; use device=cpu")
    return device
