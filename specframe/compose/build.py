"""Turns a configuration into components: binds every value, refuses bad pairs, then loads weights.

The only module below the command line that reads OmegaConf. What a lower layer may not import it
gets from here: a drafter its target, a second target, a cache factory or an inner loop.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from specframe.cache.base import CacheManager
from specframe.components import Parts
from specframe.compose.axes import Bound, NewCache, Sources, bind_axis, inside, user_errors
from specframe.compose.binding import bind
from specframe.compose.compatibility import Classes, check, check_rows, check_taps, resolve_proposal
from specframe.compose.loaded import Heads, Targets, head_key
from specframe.compose.nested import draft_config, inner_config, undrafted_config
from specframe.compose.overrides import compose, replaced
from specframe.compose.top_level import TopKeys, check_named, device_of
from specframe.compose.words import bind_words
from specframe.costs.supply import NOTHING, supplied
from specframe.drafter.base import Drafter
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.law.sampling import GREEDY_BELOW, SamplingConfig
from specframe.planning.cost_table import CostTable
from specframe.prompts.reader import read_prompts
from specframe.records import InnerLoop, TrueText
from specframe.runtime.base import Runtime
from specframe.session.engine import Engine, Settings
from specframe.session.manifest import recorded
from specframe.session.stopping import StopConfig
from specframe.session.warmup import prepared
from specframe.target.base import Target
from specframe.task.base import Job
from specframe.types import How

_INNER_ROOM = 256  # tokens that an inner loop may be ahead of the text
_heads = Heads()
_targets = Targets(_heads)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A configuration, checked as far as it can be without weights. heads: of earlier points.
    drafts: its target is a draft model of another composition."""

    config: dict[str, Any]
    bound: dict[str, Bound]
    top: dict[str, Any]
    settings: Settings
    device: torch.device
    how: How
    heads: Heads = field(default_factory=Heads)
    drafts: bool = False

    def load(self) -> Engine:
        """Load what the plan names. Raises ConfigError or IncompatibleComponents."""
        if self.top["threads"] is not None:
            torch.set_num_threads(self.top["threads"])
        # What needs no weights comes first, so that its mistakes are told at once.
        light = {axis: self.bound[axis].make() for axis in ("runtime", "accept", "cache")}
        light["tree"] = self.bound["tree"].make(proposal=self.how, costs=NOTHING)
        wanted = self.bound["target"]
        alone = self.bound["drafter"].settled(wanted.values.get("path", wanted.word))
        drafter: Drafter | None = None if alone.waits_for_weights else alone.make()
        for one in alone.members:
            if not one.waits_for_weights:
                one.make()
        runtime: Runtime = light["runtime"]
        if runtime.lossy and self.top["require_lossless"]:
            raise IncompatibleComponents(f"{runtime.lossy}; require_lossless=true refuses that")
        inner = self._inner_plans(alone)
        target = self._target(self.bound["target"], runtime)
        light["runtime"] = target.runtime  # one that stayed loaded keeps what was made ready for it
        target.runtime.forget()  # but not what held the buffers of the engine before
        if drafter is None:
            drafter = self._drafter(alone, inner, {"runtime": target.runtime, "target": target})
        check_taps(drafter, target)
        check_rows(self.bound["drafter"].word, drafter, light["tree"].max_nodes)
        with user_errors():
            parts = Parts(target=target, drafter=drafter, how=self.how, **light)
            return self._with_costs(prepared(Engine(parts, self.settings)))

    def _with_costs(self, engine: Engine) -> Engine:
        """The same, with a tree that asks for costs handed those of this very engine."""
        tree = self.bound["tree"]
        if CostTable not in tree.hints.values() or self.bound["task"].cls.measures_costs:
            return engine
        costs = supplied(engine, self.config, file=tree.given["costs"])
        priced = replace(engine.parts, tree=engine.parts.tree.priced(costs))
        return Engine(priced, self.settings)

    def prompts(self) -> Path | None:
        """The prompt file of `data=` (fetched if need be) or `prompts=`."""
        if "data" in self.bound:
            file: Path = self.bound["data"].make().file()
            read_prompts(file)
            return file
        return None if self.top["prompts"] is None else Path(self.top["prompts"])

    def _drafter(self, bound: Bound, inner: dict[int, Plan], injected: dict[str, Any]) -> Drafter:
        """A drafter with what its constructor asks for by type, beyond its YAML."""
        given = [self.bound[axis] for axis in ("target", "cache", "runtime")]
        key = head_key(bound, given, self.device)
        if (kept := self.heads.find(key)) is not None:
            return kept
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
            made: Drafter = bound.make(**supplied)
        self.heads.keep(key, bound, made)
        return made

    def _new_cache(self) -> CacheManager:
        cache = self.bound["cache"]
        # A drafter's need is not the user's capacity for the target.
        free = {"capacity": None} if "capacity" in cache.values else {}
        return cache.cls(**{**cache.values, **free})

    def _draft_target(self, word: str | None, runtime: Runtime) -> Target:
        config = draft_config(word, self.bound["target"])
        return self._target(bind_axis("target", config), runtime)

    def _inner_plans(self, bound: Bound) -> dict[int, Plan]:
        """The plans of the loops that a drafter and its members ask for, by id of the one asking.

        Made before any weight is loaded, so that a mistake in them is told at once.
        """
        found: dict[int, Plan] = {}
        if InnerLoop in bound.hints.values():
            config = inner_config(bound, self.bound["target"], self.config, self.device)
            with inside(f"{bound.where}.inner"):
                made = plan(config)
                found[id(bound)] = replace(made, drafts=self._is_draft(made.bound["target"]))
        for one in bound.members:
            found |= self._inner_plans(one)
        return found

    def _target(self, bound: Bound, runtime: Runtime) -> Target:
        drafts, how = self._is_draft(bound), self.bound["runtime"]
        return _targets.get(bound, how, self.device, runtime, drafts=drafts)

    def _is_draft(self, bound: Bound) -> bool:
        """Whether a model only drafts for the one whose text is wanted."""
        return self.drafts or bound.values != self.bound["target"].values


def plan(config: DictConfig) -> Plan:
    """Bind and check a composed configuration; loads nothing. Raises ConfigError (keys, types,
    ranges, missing files) or IncompatibleComponents."""
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    groups = {key for key, value in plain.items() if isinstance(value, dict)} - {"expects"}
    top = {key: value for key, value in plain.items() if key not in groups}
    top = bind(TopKeys, {key: value for key, value in top.items() if key != "hydra"}, where="")
    device = device_of(top["device"])
    bound = bind_words(plain, device)
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
        device=device,
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
    if bound["task"].cls.uses_engine:
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
    made = replace(plan(config), heads=_heads)
    task = made.bound["task"].make()
    task.check(made.config)
    prompts = made.prompts()
    overrides = list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []

    def rebuild(more: Sequence[str]) -> Engine:
        return load(replaced(overrides, more))

    engine = made.load() if task.uses_engine else None
    job = Job(
        engine=cast(Engine, engine),  # a task that loads nothing does not ask for it
        config=made.config,
        output_dir=output_dir,
        prompt=None if made.top["prompt"] is None else str(made.top["prompt"]),
        prompts=prompts,
        rebuild=rebuild,
        overrides=overrides,
        trace=made.bound["trace"].make(),
    )
    parts = None if engine is None else engine.parts
    for told in (parts.runtime.lossy, parts.tree.explanation) if parts else ():
        sys.stderr.write(f"specframe: {told}\n" if told else "")
    with recorded(output_dir, engine=engine, config=made.config):
        code = task.run(job)
    if code:
        raise SystemExit(code)
