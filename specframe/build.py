"""Turns a configuration into components: binds every value, refuses bad pairs, then loads weights.

The only module below the command line that reads OmegaConf. What a lower layer may not import it
gets from here: a drafter its target, a second target, a cache factory or an inner loop.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from specframe.axes import AXES, OPTIONAL, Bound, NewCache, Sources, bind_axis, inside, user_errors
from specframe.binding import bind
from specframe.cache.base import CacheManager
from specframe.compatibility import Classes, check, check_trace, resolve_proposal
from specframe.compose import compose
from specframe.data.prompts import read_prompts
from specframe.drafter.base import Drafter
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.generation import Engine, Settings
from specframe.inner import bind_drafter, draft_config, inner_config, undrafted_config
from specframe.manifest import recorded
from specframe.parts import Parts
from specframe.records import InnerLoop, TrueText
from specframe.runtime.base import Runtime
from specframe.sampling import GREEDY_BELOW, SamplingConfig
from specframe.stopping import StopConfig
from specframe.target.base import Target
from specframe.task.base import Job
from specframe.top import TopKeys, check_named, device_of
from specframe.types import How

_KEPT_TARGETS = 3  # loaded models that are kept between the points of a sweep
_INNER_ROOM = 256  # tokens that an inner loop may be ahead of the text
_loaded: dict[str, Target] = {}


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
        light = {axis: self.bound[axis].make() for axis in ("runtime", "accept", "cache")}
        light["tree"] = self.bound["tree"].make(proposal=self.how)
        wanted = self.bound["target"]
        alone = self.bound["drafter"].settled(wanted.values.get("path", wanted.word))
        drafter: Drafter | None = None if alone.waits_for_weights else alone.make()
        for one in alone.members:
            if not one.waits_for_weights:
                one.make()
        runtime: Runtime = light["runtime"]
        inner = self._inner_plans(alone)
        target = self._target("target", self.bound["target"], runtime)
        if drafter is None:
            drafter = self._drafter(alone, inner, {"runtime": runtime, "target": target})
            target.runtime = runtime  # an inner loop may have the same model
        _check_taps(drafter, target)
        _check_rows(self.bound["drafter"].word, drafter, light["tree"].max_nodes)
        with user_errors():
            parts = Parts(target=target, drafter=drafter, how=self.how, **light)
            return Engine(parts, self.settings)

    def prompts(self) -> Path | None:
        """The prompt file of `data=` (fetched if need be) or `prompts=`."""
        if "data" in self.bound:
            file: Path = self.bound["data"].make().file()
            read_prompts(file)
            return file
        return None if self.top["prompts"] is None else Path(self.top["prompts"])

    def _drafter(self, bound: Bound, inner: dict[int, Plan], injected: dict[str, Any]) -> Drafter:
        """A drafter with what its constructor asks for by type, beyond its YAML."""
        supplied = dict(injected)
        for name, hint in bound.hints.items():
            if hint is Target and name != "target":
                supplied[name] = self._draft_target(bound.given.get(name), injected["runtime"])
            elif hint is InnerLoop:
                room = self.settings.max_new_tokens + _INNER_ROOM
                with inside(f"{bound.where}.inner"):
                    supplied[name] = inner[id(bound)].load().decoding(max_new_tokens=room)
            elif hint is TrueText:
                supplied[name] = plan(undrafted_config(self.config)).load().decoding()
            elif hint == NewCache:
                supplied[name] = self._new_cache
            elif hint == Sources:
                supplied[name] = [self._drafter(one, inner, injected) for one in bound.members]
        with inside(bound.where):
            return bound.make(**supplied)

    def _new_cache(self) -> CacheManager:
        cache = self.bound["cache"]
        # A drafter's need is not the user's capacity for the target.
        free = {"capacity": None} if "capacity" in cache.values else {}
        return cache.cls(**{**cache.values, **free})

    def _draft_target(self, word: str | None, runtime: Runtime) -> Target:
        config = draft_config(word, self.bound["target"])
        return self._target("drafter.model", bind_axis("target", config), runtime)

    def _inner_plans(self, bound: Bound) -> dict[int, Plan]:
        """The plans of the loops that a drafter and its members ask for, by id of the one asking.

        Made before any weight is loaded, so that a mistake in them is told at once.
        """
        found: dict[int, Plan] = {}
        if InnerLoop in bound.hints.values():
            config = inner_config(bound, self.bound["target"], self.config, self.device)
            with inside(f"{bound.where}.inner"):
                found[id(bound)] = plan(config)
        for one in bound.members:
            found |= self._inner_plans(one)
        return found

    def _target(self, where: str, bound: Bound, runtime: Runtime) -> Target:
        values = {**bound.values}
        key = json.dumps([bound.cls.__module__, str(self.device), values], sort_keys=True)
        if key not in _loaded:
            while len(_loaded) >= _KEPT_TARGETS:
                _loaded.pop(next(iter(_loaded)))
            with user_errors(where):
                _loaded[key] = bound.cls(**values, device=self.device, runtime=runtime)
        target = _loaded[key] = _loaded.pop(key)
        target.runtime = runtime
        return target


def plan(config: DictConfig) -> Plan:
    """Bind and check a composed configuration; loads nothing.

    Raises ConfigError (keys, types, ranges, missing files) or IncompatibleComponents.
    """
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    groups = {key for key, value in plain.items() if isinstance(value, dict)} - {"expects"}
    top = {key: value for key, value in plain.items() if key not in groups}
    top = bind(TopKeys, {key: value for key, value in top.items() if key != "hydra"}, where="")
    chosen = [axis for axis in AXES if axis not in OPTIONAL or plain.get(axis) is not None]
    bound = {axis: bind_axis(axis, plain[axis]) for axis in chosen if axis != "drafter"}
    if not bound["task"].cls.drafts:
        plain["drafter"] = {"name": "none"}
    check_trace(bound["task"].cls, bound["trace"].cls, bound["trace"].word)
    bound["drafter"] = bind_drafter(plain["drafter"])
    sampling = SamplingConfig(**bind(SamplingConfig, plain["sampling"], where="sampling"))
    stop = StopConfig(**bind(StopConfig, plain["stop"], where="stop"))
    check_named(top, sampling, stop, data="data" in bound)
    how = _proposal(bound, sampling, require_lossless=top["require_lossless"])
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
        device=device_of(top["device"]),
        how=how,
    )


def _proposal(bound: dict[str, Bound], sampling: SamplingConfig, *, require_lossless: bool) -> How:
    """How nodes are made. Raises IncompatibleComponents for words that do not go together."""
    classes = Classes(
        **{axis: bound[axis].cls for axis in ("target", "drafter", "tree", "accept", "cache")},
        words={axis: one.word for axis, one in bound.items()},
    )
    greedy = sampling.temperature < GREEDY_BELOW
    how = resolve_proposal(bound["tree"].values["proposal"], classes, greedy=greedy)
    if bound["task"].cls.loads:
        check(classes, how=how, require_lossless=require_lossless)
    return how


def load(overrides: Sequence[str] = ()) -> Engine:
    """The engine of a command line, as in load(["drafter=ngram", "sampling.temperature=0.7"]).

    Raises ConfigError or IncompatibleComponents, with the command line's own sentences.
    """
    if isinstance(overrides, str):
        raise ConfigError(f"load takes a list of words, such as load([{overrides!r}])")
    return plan(compose(overrides)).load()


def run(config: DictConfig, *, output_dir: Path) -> None:
    """Run the task of a configuration. Raises SystemExit with the task's code if it is not 0."""
    made = plan(config)
    task = made.bound["task"].make()
    task.check(made.config)
    prompts = made.prompts()
    overrides = list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []

    def rebuild(more: Sequence[str]) -> Engine:
        return load(_replaced(overrides, more))

    engine = made.load() if task.loads else None
    job = Job(
        engine=cast(Engine, engine),
        config=made.config,
        output_dir=output_dir,
        prompt=None if made.top["prompt"] is None else str(made.top["prompt"]),
        prompts=prompts,
        rebuild=rebuild,
        trace=made.bound["trace"].make(),
    )
    with recorded(output_dir, engine=engine, config=made.config):
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


def _check_taps(drafter: Drafter, target: Target) -> None:
    missing = [tap for tap in drafter.needs.taps if tap not in target.gives.taps]
    if missing:
        raise IncompatibleComponents(
            f"the drafter needs {', '.join(missing)}, which {target.name} does not give"
        )


def _check_rows(word: str, drafter: Drafter, rows: int) -> None:
    aux = drafter.needs.aux_rows
    if aux and rows < aux + 2:
        raise IncompatibleComponents(
            f"tree.max_nodes={rows}: drafter={word} adds {aux} auxiliary rows to a pass and leaves "
            f"none for a guess; use tree.max_nodes={2 * (aux + 1)}, or smaller numbers of the "
            "drafter"
        )
