"""Turns a configuration into components: binds every value, refuses bad pairs, then loads weights.

What a component may not import it is given here: a drafter gets its target, a draft model, a
factory of caches or an inner loop, by the types of its constructor's parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from specframe.cache.base import CacheManager
from specframe.capture.wrappers import Captures
from specframe.components import Components
from specframe.compose.axes import BoundOption, NewCache, Sources, bind_axes, bind_axis
from specframe.compose.compatibility import (
    Classes,
    check,
    check_batch,
    check_draft_model,
    check_rows,
    check_taps,
    check_trace,
    resolve_proposal,
)
from specframe.compose.derived_configs import draft_config, inner_config, undrafted_config
from specframe.compose.foreign_notices import silence_notices
from specframe.compose.loaded_models import LoadedModels, drafter_key
from specframe.compose.overrides import checked_words, compose
from specframe.compose.top_level_keys import bind_top_level, device_of
from specframe.costs.provider import NO_COSTS, provide_costs, with_costs
from specframe.drafter.base import Drafter
from specframe.errors import IncompatibleComponents, inside, user_errors
from specframe.law.sampling import GREEDY_BELOW
from specframe.planning.cost_table import CostTable
from specframe.prompts.reader import read_prompts
from specframe.records import InnerLoop, TrueText
from specframe.runtime.base import Launch, Runtime
from specframe.session.arguments import MOST_NEW_TOKENS
from specframe.session.engine import Engine
from specframe.session.settings import Settings
from specframe.session.warmup import prepared
from specframe.target.base import Target
from specframe.types import How

_ONE_LOAD = RLock()  # Hydra composes for one thread at a time, and loaded models are shared
_INNER_ROOM = 256  # tokens that an inner loop may be ahead of the text


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A configuration that was checked as far as that is possible without weights."""

    config: dict[str, Any]  # plain values; what a task or a device replaced is replaced here too
    bound: dict[str, BoundOption]  # by axis
    top: dict[str, Any]  # the keys that belong to no component, see `TopLevelKeys`
    settings: Settings
    device: torch.device
    how: How  # how nodes are made: `tree.proposal`, with auto resolved
    models: LoadedModels
    reuse_drafters: bool = False  # whether a drafter of an earlier run may serve this one
    is_draft_model: bool = False  # whether the target only drafts for another composition

    def load(self) -> Engine:
        """Load what the plan names, unless it is loaded already.

        Raises ConfigError or IncompatibleComponents.
        """
        if self.top["threads"] is not None:
            torch.set_num_threads(self.top["threads"])
        # What needs no weights comes first, so that a mistake in it is reported at once.
        light = {axis: self.bound[axis].make() for axis in ("accept", "cache", "runtime")}
        light["tree"] = self.bound["tree"].make(proposal=self.how, costs=NO_COSTS)
        wanted = self.bound["target"]
        alone = self.bound["drafter"].settled(wanted.values.get("path", wanted.word))
        drafter: Drafter | None = None if alone.waits_for_weights else alone.make()
        for nested in alone.nested:
            if not nested.waits_for_weights:
                nested.make()
        runtime: Runtime = light["runtime"]
        self._check_lossless(runtime)
        inner = self._inner_plans(alone)
        # A target that was loaded before keeps its own runtime.
        target, runtime = self._target(self.bound["target"], runtime)
        if isinstance(runtime.launch, Captures):
            runtime.launch.forget()  # captured graphs hold the previous engine's buffers
        light |= {"runtime": runtime, "cache": self.bound["cache"].make(launch=runtime.launch)}
        if drafter is None:
            drafter = self._drafter(alone, inner, {"runtime": runtime, "target": target})
        check_taps(drafter, target)
        check_rows(self.bound["drafter"].word, drafter, light["tree"].max_nodes)
        with user_errors():
            parts = Components(target=target, drafter=drafter, how=self.how, **light)
            return self._with_costs(prepared(Engine(parts, self.settings)))

    def _with_costs(self, engine: Engine) -> Engine:
        """The same engine; a tree that asks for a cost table gets that of this very engine."""
        tree = self.bound["tree"]
        if CostTable not in tree.hints.values() or self.bound["task"].cls.measures_costs:
            return engine
        costs = provide_costs(engine, self.config, file=tree.given["costs"])
        priced = replace(engine.components, tree=with_costs(engine.components.tree, costs))
        return Engine(priced, self.settings)

    def prompts(self) -> Path | None:
        """The prompt file that `data=` (it is fetched if need be) or `prompts=` names, if any."""
        if "data" in self.bound:
            file: Path = self.bound["data"].make().file()
            read_prompts(file)
            return file
        return None if self.top["prompts"] is None else Path(self.top["prompts"])

    def _drafter(
        self, bound: BoundOption, inner: dict[int, Plan], injected: dict[str, Any]
    ) -> Drafter:
        """A drafter; its constructor gets what it asks for by type, beyond its YAML's values."""
        others = [self.bound[axis] for axis in ("target", "cache", "runtime")]
        key = drafter_key(bound, others, self.device)
        if self.reuse_drafters and (loaded := self.models.drafter(key)) is not None:
            return loaded
        supplied = dict(injected)
        for name, hint in bound.hints.items():
            if hint is Target and name != "target":
                supplied[name] = self._draft_target(bound.given.get(name), injected["runtime"])
            elif hint is InnerLoop:
                room = min(self.settings.max_new_tokens + _INNER_ROOM, MOST_NEW_TOKENS)
                with inside(f"{bound.where}.inner"):
                    supplied[name] = inner[id(bound)].load().decoding(max_new_tokens=room)
            elif hint is TrueText:
                supplied[name] = (
                    plan(undrafted_config(self.config), models=self.models).load().decoding()
                )
            elif hint == NewCache:
                supplied[name] = partial(self._new_cache, injected["runtime"].launch)
            elif hint == Sources:
                supplied[name] = [self._drafter(nested, inner, injected) for nested in bound.nested]
        with inside(bound.where):
            drafter: Drafter = bound.make(**supplied)
        if self.reuse_drafters:
            self.models.keep_drafter(key, bound, drafter)
        return drafter

    def _new_cache(self, launch: Launch) -> CacheManager:
        cache = self.bound["cache"]
        # The user's capacity is meant for the target, not for a drafter's own cache.
        free = {"capacity": None} if "capacity" in cache.values else {}
        made: CacheManager = replace(cache, values=cache.values | free).make(launch=launch)
        return made

    def _check_lossless(self, runtime: Runtime) -> None:
        """Raises IncompatibleComponents where text must be exact and something rounds it."""
        reasons = [runtime.weights.lossy, self.bound["cache"].cls.lossy]
        if self.top["require_lossless"] and (reason := next(filter(None, reasons), None)):
            raise IncompatibleComponents(f"{reason}; require_lossless=true refuses that")

    def _draft_target(self, word: str | None, runtime: Runtime) -> Target:
        model = bind_axis("target", draft_config(word, self.bound["target"]))
        check_draft_model("drafter.model", model.word, model.cls)
        return self._target(model, runtime)[0]

    def _inner_plans(self, bound: BoundOption) -> dict[int, Plan]:
        """Plans of the inner loops of a drafter and of the options that it lists, by `id(option)`.

        They are made before any weight is loaded, so that a mistake in them is reported at once.
        """
        plans: dict[int, Plan] = {}
        if InnerLoop in bound.hints.values():
            config = inner_config(bound, self.bound["target"], self.config, self.device)
            with inside(f"{bound.where}.inner"):
                inner = plan(config, models=self.models)
            model = inner.bound["target"]
            check_draft_model(bound.where, model.word, model.cls)
            only_drafts = self._is_draft_model(inner.bound["target"])
            plans[id(bound)] = replace(inner, is_draft_model=only_drafts)
        for nested in bound.nested:
            plans |= self._inner_plans(nested)
        return plans

    def _target(self, bound: BoundOption, runtime: Runtime) -> tuple[Target, Runtime]:
        only_drafts = self._is_draft_model(bound)
        return self.models.target(
            bound, self.bound["runtime"], self.device, runtime, is_draft_model=only_drafts
        )

    def _is_draft_model(self, bound: BoundOption) -> bool:
        """Whether a model only drafts for the one whose text is wanted."""
        return self.is_draft_model or bound.values != self.bound["target"].values


def plan(config: DictConfig, *, models: LoadedModels | None = None) -> Plan:
    """Bind and check a composed configuration without loading anything.

    models: what is loaded already; None: what this process has loaded. Raises ConfigError (keys,
    types, ranges, missing files) or IncompatibleComponents.
    """
    silence_notices()
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    top, settings = bind_top_level(plain)
    device = device_of(top["device"])
    bound = bind_axes(plain, device)
    task, trace = bound["task"], bound["trace"]
    check_trace(task.cls, trace.cls, trace.word)
    check_batch(task.cls, trace.cls, top["batch_size"], task_word=task.word)
    classes = Classes.of(bound)
    greedy = settings.sampling.temperature < GREEDY_BELOW
    how = resolve_proposal(bound["tree"].values["proposal"], classes, greedy=greedy)
    if bound["task"].cls.uses_engine:
        check(classes, how=how, require_lossless=top["require_lossless"])
    return Plan(
        config=plain,
        bound=bound,
        top=top,
        settings=settings,
        device=device,
        how=how,
        models=LoadedModels.shared() if models is None else models,
    )


def load(overrides: Sequence[str] = (), *, models: LoadedModels | None = None) -> Engine:
    """The engine of a command line, as in load(["drafter=ngram", "sampling.temperature=0.7"]).

    models: what is loaded already and may be used again; None: what this process has loaded.
    Raises ConfigError or IncompatibleComponents, with the command line's own sentences.
    """
    with _ONE_LOAD:
        return plan(compose(checked_words(overrides)), models=models).load()
