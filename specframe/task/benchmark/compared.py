"""The further sides of a comparison: compositions that task.compare lists, and peers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from specframe.errors import ConfigError, IncompatibleComponents, MissingResource, NoHead
from specframe.law.sampling import GREEDY_BELOW
from specframe.measure.metrics import Metrics
from specframe.session.engine import Engine
from specframe.task.base import Job
from specframe.task.benchmark.forwards import forwards
from specframe.task.benchmark.peers import Peer, PeerQuestion, Way, peers
from specframe.task.benchmark.sides import (
    BASELINE,
    METHOD,
    Side,
    TimeSample,
    TimeSplit,
    Timing,
    plain_side,
)

WeightsKey = tuple[str, torch.dtype, str]  # name, dtype and device of a target
PEERS = "peers"  # the word of task.compare that stands for other engines
_APART = frozenset({"target", "runtime", "cache", "device"})  # words that plain decoding keeps
_OF_PEERS = frozenset({"target", "device"})  # words that peers take
_OF_SIDES = _APART | {"drafter", "tree", "accept"}  # what is asked is the same for all
_LEFT_OUT = (IncompatibleComponents, MissingResource, NoHead)  # what a side may fail by


@dataclass(kw_only=True)
class PeerSide(Side):
    """A peer's way to answer. engine: one of ours on the same target, for text and ids."""

    way: Way
    model: Any

    def answer(self, prompt: Sequence[int], sequence: int) -> TimeSample:
        device = self.engine.parts.target.device
        start = time.perf_counter()
        with forwards(self.model, device) as spent:
            tokens = self.way.answer(list(prompt))
        total = time.perf_counter() - start
        passes = spent.seconds()
        # A pass that verifies a draft beside the prompt is the first here too.
        first = passes[0] if passes else total
        steps = max(len(passes) - 1, 0)
        metrics = Metrics(
            num_tokens=len(tokens),
            num_step_tokens=len(tokens) - 1,
            num_steps=steps,
            num_target_forwards=len(passes),
            num_accepted=len(tokens) - 1 - steps if passes else 0,
            prefill_s=first,
            decode_s=total - first,
            total_s=total,
        )
        timing = Timing(
            first_s=first,
            prefill_s=first,
            decode_s=total - first,
            total_s=total,
            step_ms=[],
            forward_s=sum(passes) if passes else None,
        )
        return TimeSample(
            tokens=tokens,
            finish_reason="eos" if tokens[-1] in self.engine.eos_ids else "length",
            metrics=metrics,
            step_tokens=[],
            timing=timing,
            peak_memory_bytes=None,
            warm=None,
        )

    def split(self, prompt: Sequence[int], sequence: int) -> TimeSplit | None:
        return None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The further sides in their order; why others are not there; the peers that are, with what
    they are asked and which weights (`weights_key`) that is about."""

    sides: list[Side] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    peers: list[tuple[Peer, PeerQuestion, WeightsKey]] = field(default_factory=list)


class Comparing:
    """Composes the sides that task.compare lists. entries: words of one side each.

    Raises ConfigError for a mistake in them, and for peers where they cannot be compared; what does
    not go with this target, or lacks a package or a head, is left out.
    """

    def __init__(self, job: Job, entries: Sequence[str], *, held: Sequence[Side]) -> None:
        self._job = job
        self.found = Compared()
        main = job.engine.parts
        self._first = {id(main.target): main}
        self._names = {side.name for side in held}
        self._plain = {weights_key(side.engine): side.name for side in held if _plain(side)}
        for entry in dict.fromkeys(" ".join(entry.split()) for entry in entries):
            try:
                self._compose(entry)
            except _LEFT_OUT as error:
                self.found.left_out[entry] = " ".join(str(error).split())
            except ConfigError as error:
                text = str(error)
                known = text.startswith("task.compare")
                raise ConfigError(text if known else f"task.compare: {entry!r}: {text}") from error
        for side in held:  # without a baseline of the run's own
            side.exact = side.exact or self._plain.get(weights_key(side.engine))

    def _compose(self, entry: str) -> None:
        """One entry. Raises what its words are wrong by."""
        words = entry.split()
        asked = [word for word in words if word.partition("=")[0] == PEERS]
        words = [word for word in words if word not in asked]
        if not entry or len(asked) > 1 or any("=" not in word for word in words):
            raise ConfigError(
                f"task.compare: {entry!r}: write the words of one side, such as "
                f"'drafter=suffix tree=auto', or {PEERS}, or {PEERS}=NAME"
            )
        known = _OF_PEERS if asked else _OF_SIDES
        for word in words:
            axis = word.partition("=")[0].partition(".")[0]
            if axis not in known:
                who = PEERS if asked else "a side"
                raise ConfigError(
                    f"task.compare: {entry!r}: {who} may differ in {', '.join(sorted(known))}, not "
                    f"in {axis}; give {word} to the whole command, or leave it out"
                )
        if asked:
            self._peers(asked[0].partition("=")[2] or None, words)
        else:
            self._ours(entry, words)

    def _ours(self, entry: str, words: list[str]) -> None:
        engine = self._job.rebuild(words)
        parts = engine.parts
        # One runtime and one set of buffers a target, so that what was captured serves all sides.
        first = self._first.setdefault(id(parts.target), parts)
        own_cache = any(word.partition("=")[0].partition(".")[0] == "cache" for word in words)
        cache = parts.cache if own_cache else first.cache
        engine = Engine(replace(parts, runtime=first.runtime, cache=cache), engine.settings)
        given = dict(word.split("=", 1) for word in words)
        side = Side(
            entry, engine, drafter=given.get("drafter", self._job.config["drafter"]["name"])
        )
        if weights_key(engine) not in self._plain and side.drafter != "none":
            apart = [word for word in words if word.partition("=")[0].partition(".")[0] in _APART]
            self._add(plain_side(" ".join([*apart, "drafter=none"]), engine))
        self._add(side)

    def _add(self, side: Side) -> None:
        """Unless it is there: plain decoding of an entry before, or a peer that is named twice."""
        if side.name in self._names:
            return
        self._names.add(side.name)
        weights = weights_key(side.engine)
        if side.drafter == "none" and not isinstance(side, PeerSide):
            self._plain.setdefault(weights, side.name)
        side.exact = self._plain.get(weights)
        self.found.sides.append(side)

    def _peers(self, name: str | None, words: list[str]) -> None:
        self._check()
        plain = ["runtime=eager", "drafter=none", "tree=chain", "accept=match"]
        engine = self._job.rebuild([*words, *plain])  # packed weights are not transformers' own
        target = engine.parts.target
        model = getattr(target, "model", None)
        if model is None:
            raise ConfigError(
                f"task.compare: {PEERS} run a model of transformers, and {target.name} is none; "
                f"use target=hf, or take {PEERS} out of task.compare"
            )
        question = PeerQuestion(
            model=model,
            draft=self._draft(target, [*words, *plain]),
            max_new_tokens=engine.settings.max_new_tokens,
            eos_ids=engine.eos_ids,
        )
        for one in peers(name):
            self.found.peers.append((one, question, weights_key(engine)))
            for way in one.ways(question):
                label = " ".join([*words, way.label])
                self._add(PeerSide(label, engine, drafter=way.like, way=way, model=model))

    def _draft(self, target: Any, words: list[str]) -> Any:
        """The model of transformers that the target names as its draft, None for itself."""
        if getattr(target, "draft", None) is None:
            return None
        kept = [word for word in words if not word.startswith("drafter")]
        drafter: Any = self._job.rebuild([*kept, "drafter=lm"]).parts.drafter
        return None if drafter.model.name == target.name else getattr(drafter.model, "model", None)

    def _check(self) -> None:
        """Peers decode greedily, without processors and stops of ours. Raises ConfigError."""
        config = self._job.config
        wrong = {key: value for key, value in config["sampling"].items() if value is not None}
        warm = wrong.pop("temperature") >= GREEDY_BELOW
        # Filters of a law say nothing where its likeliest token is taken.
        for key in ("top_k", "top_p", "min_p", "typical_p"):
            wrong.pop(key, None)
        named = ["sampling.temperature"] * warm + [f"sampling.{key}" for key in wrong]
        stops = {key: config["stop"][key] for key in ("strings", "criteria")}
        named += [f"stop.{key}" for key, value in stops.items() if value is not None]
        if named:
            raise ConfigError(
                f"task.compare: {PEERS} decode greedily and know nothing of {', '.join(named)}; "
                f"leave that out, or {PEERS}"
            )


def weights_key(engine: Engine) -> WeightsKey:
    """What two engines have in common that hold the same weights, in whatever layout."""
    target = engine.parts.target
    return target.name, target.dtype, str(target.device)


def _plain(side: Side) -> bool:
    return side.name == BASELINE or side.drafter == "none"


def label_of(side: Side, config: dict[str, Any]) -> str:
    """How a side is called in tables."""
    if side.name == BASELINE:
        return "drafter=none"
    if side.name == METHOD:
        return f"drafter={config['drafter']['name']} tree={config['tree']['name']}"
    return side.name
