"""The sides of a comparison: the run's own, those that task.compare lists, and peers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from specframe.errors import ConfigError, IncompatibleComponents, MissingResource, NoHead
from specframe.law.sampling import GREEDY_BELOW
from specframe.session.engine import Engine
from specframe.task.base import Job
from specframe.task.benchmark.peer_side import PeerSide
from specframe.task.benchmark.peers import Peer, PeerQuestion, peers
from specframe.task.benchmark.sides import BASELINE, METHOD, Side, plain_side

WeightsKey = tuple[str, torch.dtype, str]  # name, dtype and device of a target
PEERS = "peers"  # the word of task.compare that stands for other engines
_KEPT_BY_PLAIN = frozenset({"target", "runtime", "cache", "device"})  # axes of a plain side's own
_OF_PEERS = frozenset({"target", "device"})  # axes in which an entry of peers may differ
_OF_SIDES = _KEPT_BY_PLAIN | {"drafter", "tree", "accept"}  # axes in which one of ours may differ
_LEFT_OUT = (
    IncompatibleComponents,
    MissingResource,
    NoHead,
)  # a side that raises these is left out


class Lineup:
    """All sides of a comparison in their order: the run's own, then one for each of `entries`.

    An entry holds the words of one side, separated by blanks. Raises ConfigError for a mistake in
    an entry, and for peers that could not be compared. A side that does not go with this target,
    or lacks a package or a head, is left out, with the reason.
    """

    def __init__(self, job: Job, own: Sequence[Side], *, entries: Sequence[str]) -> None:
        self.sides = list(own)
        self.left_out: dict[str, str] = {}  # entry -> why it is not among the sides
        # Which weights a peer was asked about -> the peers and what they were asked.
        self._peers: defaultdict[WeightsKey, list[tuple[Peer, PeerQuestion]]] = defaultdict(list)
        self._job = job
        main = job.engine.components
        self._first = {id(main.target): main}
        self._name_references(own)
        # Which weights -> the side that decodes plainly on them.
        self._plain = {weights_key(s.engine): s.name for s in own if s.drafter == "none"}
        for entry in dict.fromkeys(" ".join(entry.split()) for entry in entries):
            try:
                self._compose(entry)
            except _LEFT_OUT as error:
                self.left_out[entry] = " ".join(str(error).split())
            except ConfigError as error:
                text = str(error)
                known = text.startswith("task.compare")
                raise ConfigError(text if known else f"task.compare: {entry!r}: {text}") from error
        for side in own:  # a run without a baseline of its own may get one from an entry
            side.exact = side.exact or self._plain.get(weights_key(side.engine))

    def _name_references(self, own: Sequence[Side]) -> None:
        """Tell the run's own sides their drafter, and the side whose text is the exact one."""
        has_baseline = any(side.name == BASELINE for side in own)
        for side in own:
            method = self._job.config["drafter"]["name"]
            side.drafter = "none" if side.name == BASELINE else method
            side.exact = BASELINE if has_baseline else METHOD if side.drafter == "none" else None

    def timed_engines(self) -> list[tuple[Engine, Sequence[tuple[Peer, PeerQuestion]]]]:
        """A plain engine for each target and runtime among our sides, with peers on its weights.

        Peers go to the first engine of their weights, so that each is timed once.
        """
        ours = [side for side in self.sides if not isinstance(side, PeerSide)]
        first = {id(side.engine.components.target): side for side in reversed(ours)}
        peers = dict(self._peers)
        return [
            (plain_side(side.name, side.engine).engine, peers.pop(weights_key(side.engine), ()))
            for side in ours
            if first[id(side.engine.components.target)] is side
        ]

    def _compose(self, entry: str) -> None:
        """Compose one entry. Raises ConfigError for its mistakes, and what its components raise."""
        words = entry.split()
        of_peers = [word for word in words if word.partition("=")[0] == PEERS]
        words = [word for word in words if word not in of_peers]
        if not entry or len(of_peers) > 1 or any("=" not in word for word in words):
            raise ConfigError(
                f"task.compare: {entry!r}: write the words of one side, such as "
                f"'drafter=suffix tree=auto', or {PEERS}, or {PEERS}=NAME"
            )
        allowed = _OF_PEERS if of_peers else _OF_SIDES
        for word in words:
            if _axis(word) not in allowed:
                who = PEERS if of_peers else "a side"
                raise ConfigError(
                    f"task.compare: {entry!r}: {who} may differ in {', '.join(sorted(allowed))}, "
                    f"not in {_axis(word)}; give {word} to the whole command, or leave it out"
                )
        if of_peers:
            self._add_peers(of_peers[0].partition("=")[2] or None, words)
        else:
            self._add_ours(entry, words)

    def _add_ours(self, entry: str, words: list[str]) -> None:
        engine = self._job.rebuild(words)
        parts = engine.components
        # One runtime and one set of buffers a target, so that what was captured serves all sides.
        first = self._first.setdefault(id(parts.target), parts)
        own_cache = any(_axis(word) == "cache" for word in words)
        cache = parts.cache if own_cache else first.cache
        engine = Engine(replace(parts, runtime=first.runtime, cache=cache), engine.settings)
        given = dict(word.split("=", 1) for word in words)
        drafter = given.get("drafter", self._job.config["drafter"]["name"])
        side = Side(entry, engine, drafter=drafter)
        if weights_key(engine) not in self._plain and side.drafter != "none":
            shared = [word for word in words if _axis(word) in _KEPT_BY_PLAIN]
            self._add(plain_side(" ".join([*shared, "drafter=none"]), engine))
        self._add(side)

    def _add(self, side: Side) -> None:
        """Add a side, unless it is there: an entry's plain side, or a peer that is named twice."""
        if any(other.name == side.name for other in self.sides):
            return
        weights = weights_key(side.engine)
        if side.drafter == "none" and not isinstance(side, PeerSide):
            self._plain.setdefault(weights, side.name)
        side.exact = self._plain.get(weights)
        self.sides.append(side)

    def _add_peers(self, name: str | None, words: list[str]) -> None:
        self._check_greedy()
        plain = ["runtime=eager", "drafter=none", "tree=chain", "accept=match"]
        engine = self._job.rebuild([*words, *plain])  # packed weights are not transformers' own
        target = engine.components.target
        model = getattr(target, "model", None)
        if model is None:
            raise ConfigError(
                f"task.compare: {PEERS} run a model of transformers, and {target.name} is none; "
                f"use target=hf, or take {PEERS} out of task.compare"
            )
        question = PeerQuestion(
            model=model,
            draft=self._draft_model(target, [*words, *plain]),
            max_new_tokens=engine.settings.max_new_tokens,
            eos_ids=engine.eos_ids,
        )
        for peer in peers(name):
            self._peers[weights_key(engine)].append((peer, question))
            for way in peer.ways(question):
                label = " ".join([*words, way.label])
                self._add(PeerSide(label, engine, drafter=way.like, way=way, model=model))

    def _draft_model(self, target: Any, words: list[str]) -> Any:
        """The model of transformers that the target names as its draft model, None for itself."""
        if getattr(target, "draft", None) is None:
            return None
        others = [word for word in words if _axis(word) != "drafter"]
        drafter: Any = self._job.rebuild([*others, "drafter=lm"]).components.drafter
        return None if drafter.model.name == target.name else getattr(drafter.model, "model", None)

    def _check_greedy(self) -> None:
        """Peers decode greedily, without processors or stops of ours. Raises ConfigError."""
        config = self._job.config
        sampling = {key: value for key, value in config["sampling"].items() if value is not None}
        warm = sampling.pop("temperature") >= GREEDY_BELOW
        # Filters of a law say nothing where its likeliest token is taken.
        for key in ("top_k", "top_p", "min_p", "typical_p"):
            sampling.pop(key, None)
        wrong = ["sampling.temperature"] * warm + [f"sampling.{key}" for key in sampling]
        stops = {key: config["stop"][key] for key in ("strings", "criteria")}
        wrong += [f"stop.{key}" for key, value in stops.items() if value is not None]
        if wrong:
            raise ConfigError(
                f"task.compare: {PEERS} decode greedily and know nothing of {', '.join(wrong)}; "
                f"leave that out, or {PEERS}"
            )


def weights_key(engine: Engine) -> WeightsKey:
    """What engines with the same weights share, whatever the layout of these weights."""
    target = engine.components.target
    return target.name, target.dtype, str(target.device)


def label_of(side: Side, config: dict[str, Any]) -> str:
    """The name of a side in tables."""
    if side.name == BASELINE:
        return "drafter=none"
    if side.name == METHOD:
        return method_label(config)
    return side.name


def method_label(config: dict[str, Any]) -> str:
    """The name of the composed method in tables and sentences."""
    return f"drafter={config['drafter']['name']} tree={config['tree']['name']}"


def _axis(word: str) -> str:
    """`tree` of `tree.depth=3` and of `tree=chain`."""
    return word.partition("=")[0].partition(".")[0]
