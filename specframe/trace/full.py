"""A wide tree at every position of the text, so that smaller ones can be scored without models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from specframe.accept.base import AcceptRule
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.law.laws import Laws
from specframe.law.streams import Streams
from specframe.records import Observer, StepRecord
from specframe.registry import Range
from specframe.session.engine import Engine, Generation
from specframe.storage.lines import LineFile
from specframe.trace.base import TRACES, Asked, Trace, Tracer
from specframe.tracing.positions import (
    FOLDER,
    INDEX,
    UNKNOWN,
    Call,
    Position,
    PositionFile,
    RecordedLaws,
)
from specframe.types import Draft, DrawCall, How, Verdict


@TRACES.register("full")
class FullTrace(Trace):
    """Decodes one token a step, so that the text is plain decoding's, and records at each position
    the tree that drafter= and tree= give there, for task=replay.

    Kept are the children of every node that the drafter was asked for, in their order with their
    scores (tree=dynamic asks for those of all smaller top_k, too), and the target's law at every
    verified node: top_k tokens and the mass of the rest. At temperature 0 the law is the softmax of
    the processed scores, since the one-hot one says nothing. A file an answer, written when it
    ends; the same command with the same hydra.run.dir goes on after the answers that are there,
    another configuration is refused. Refuses drafters whose guesses depend on more than the text.
    Host reads a step: three, and what the tree's own record costs.
    """

    extra_syncs: ClassVar[int] = 3

    def __init__(self, *, top_k: Annotated[int, Range(1, 1024)]) -> None:
        self.top_k = top_k

    def watched(self, engine: Engine) -> Engine:
        parts = engine.parts
        learns = parts.drafter.learns
        if learns:
            raise IncompatibleComponents(
                f"trace=full: this drafter learns {learns}, so that a record of one token a step "
                "says nothing of another tree; measure it with task=benchmark, or use another one"
            )
        if parts.tree.needs_native or parts.drafter.draws_itself:
            raise IncompatibleComponents(
                "trace=full: whole branches, and tokens that a drafter has drawn by itself, have "
                "no order to cut smaller trees from; use tree=dynamic, tree=static or tree=chain"
            )
        tree, rule = parts.tree.recording(), OneToken()
        return Engine(replace(parts, tree=tree, accept=rule), engine.settings)

    def open(self, engine: Engine, folder: Path, config: dict[str, Any]) -> Tracer:
        return _Positions(engine, folder, config, top_k=self.top_k)


class OneToken(AcceptRule):
    """Emits the target's own token at the root, whatever was drafted: the text is that of
    accept=match and of no draft. Lossless."""

    lossless: ClassVar[bool] = True
    same_text: ClassVar[bool] = True
    any_draft: ClassVar[bool] = True
    reads: ClassVar[frozenset[How]] = frozenset({"place", "iid", "wor", "coupled"})

    def decide(self, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        root = torch.zeros_like(draft.tokens[:1])
        token = laws.pick(root, 0, rng, root == 0)
        none = draft.tokens.new_full((draft.depth,), -1)
        return Verdict(path=none, tokens=torch.cat([token, none]), count=none.new_ones(()))


class _Positions(Tracer):
    def __init__(self, engine: Engine, folder: Path, config: dict[str, Any], *, top_k: int) -> None:
        self._engine, self._folder = engine, folder
        self._top_k = min(top_k, engine.parts.target.vocab_size)
        self._asked: Asked | None = None
        self._index = LineFile(
            folder / INDEX,
            settings=_settings(engine, config, self._top_k),
            named_by="hydra.run.dir",
            contents="positions",
        )
        # Which prompts are there already, in the order of the run.
        self._known = [json.loads(line)["prompt_tokens"] for _, line in self._index.lines()]

    def close(self) -> None:
        self._index.close()

    def watch(self, asked: Asked) -> Sequence[Observer]:
        self._asked, self._file = asked, PositionFile()
        if asked.number >= len(self._known):
            return [self]
        if self._known[asked.number] != list(asked.prompt_tokens):
            raise ConfigError(
                f"hydra.run.dir={self._folder}: answer {asked.number} there is of another prompt; "
                "give the old prompts or another folder"
            )
        return ()

    def observe(self, record: StepRecord) -> None:
        nodes, flat = _nodes(record.draft)
        self._file.positions.append(
            Position(calls=_calls(record.draft, flat), laws=self._laws(record, nodes))
        )

    def end(self, made: Generation, metrics: dict[str, Any]) -> None:
        asked = self._asked
        assert asked is not None
        if asked.number < len(self._known):
            return
        name = f"{FOLDER}/{asked.number:05}.npz"
        self._file.write(self._folder / name)
        parts, settings = self._engine.parts, self._engine.settings
        line = {
            "answer": asked.number,
            "id": asked.id,
            "category": asked.category,
            "prompt_tokens": list(asked.prompt_tokens),
            "tokens": made.tokens,
            "finish_reason": made.finish_reason,
            "limit": parts.limit(len(asked.prompt_tokens), settings.max_new_tokens),
            "capacity": parts.cache.capacity,
            "file": name,
        }
        self._index.add_lines([line])

    def _laws(self, record: StepRecord, nodes: list[int]) -> RecordedLaws:
        """The laws at the living rows, whose node ids are given."""
        draft, laws = record.draft, record.laws
        assert isinstance(laws, Laws)
        law = _law(draft, laws)
        top = law.topk(self._top_k, dim=-1)
        parents = draft.parents.clamp_min(0)
        probs = torch.where(draft.parents >= 0, law[parents, draft.tokens], torch.nan)
        tail = (1 - top.values.sum(-1)).clamp_min(0)
        numbers = torch.cat([probs[:, None], tail[:, None], top.values], dim=1).double().cpu()
        kept = [row for row, node in enumerate(nodes) if node >= 0]
        above = draft.parents.cpu()[kept].tolist()
        numbers = numbers[kept]
        return RecordedLaws(
            nodes=torch.tensor([nodes[row] for row in kept]).numpy(),
            parents=torch.tensor([nodes[row] if row >= 0 else -1 for row in above]).numpy(),
            probs=numbers[:, 0].numpy(),
            ids=top.indices.cpu()[kept].numpy(),
            top=numbers[:, 2:].numpy(),
            tail=numbers[:, 1].numpy(),
        )


def _law(draft: Draft, laws: Laws) -> Tensor:
    """[N, V] the law at every row, each with its own prefix; the softmax at temperature 0."""
    if not laws.sampling.path_dependent:
        every = torch.arange(draft.num_rows, device=draft.tokens.device)
        return laws.scores(every, 0).softmax(-1) if laws.sampling.greedy else laws.at(every, 0)
    depths = draft.depths.tolist()
    law = torch.zeros_like(laws.logits)
    for depth in sorted(set(depths)):
        rows = torch.tensor([i for i, one in enumerate(depths) if one == depth])
        rows = rows.to(law.device)
        found = laws.scores(rows, depth).softmax(-1) if laws.sampling.greedy else None
        law[rows] = (laws.at(rows, depth) if found is None else found).to(law.dtype)
    return law


def _nodes(draft: Draft) -> tuple[list[int], Tensor]:
    """Node ids of the rows (-1 for dead ones), and all integers of the calls, in two reads."""
    origin = torch.where(draft.alive, draft.origin, -1).tolist()
    parts = [part.reshape(-1) for call in draft.calls for part in _integers(call)]
    return origin, torch.cat(parts).cpu() if parts else draft.tokens[:0].cpu()


def _integers(call: DrawCall) -> tuple[Tensor, Tensor, Tensor]:
    tokens = call.tokens
    if call.wanted is not None:
        tokens = torch.where(call.wanted, tokens, UNKNOWN)
    return call.parents, call.nodes, tokens


def _calls(draft: Draft, flat: Tensor) -> list[Call]:
    """The calls on the host. flat: what `_integers` gave for all of them."""
    scores = [_scores(call) for call in draft.calls]
    numbers = [one.double().reshape(-1) for one in scores if one is not None]
    weights = torch.cat(numbers).cpu() if numbers else flat.double()[:0]
    found, start, at = [], 0, 0
    for call, scored in zip(draft.calls, scores, strict=True):
        f, k = call.tokens.shape
        parents, nodes, tokens = flat[start : start + f + 2 * f * k].split([f, f * k, f * k])
        start += f + 2 * f * k
        mine = None if scored is None else weights[at : at + f * k].view(f, k).numpy()
        at += 0 if scored is None else f * k
        found.append(
            Call(
                depth=call.depth,
                source=call.source,
                width=call.width,
                parents=parents.numpy(),
                nodes=nodes.view(f, k).numpy(),
                tokens=tokens.view(f, k).numpy(),
                scores=mine,
            )
        )
    return found


def _scores(call: DrawCall) -> Tensor | None:
    if call.law is not None and call.indices is not None:
        return call.law.gather(1, call.indices).double().log()
    return call.scores


def _settings(engine: Engine, config: dict[str, Any], top_k: int) -> dict[str, Any]:
    """What positions depend on; task=replay reads it, too."""
    parts = engine.parts
    axes = ("target", "drafter", "tree", "cache", "sampling", "stop")
    return {
        **{axis: config[axis] for axis in axes},
        **{key: config[key] for key in ("raw", "max_new_tokens", "seed")},
        "dtype": str(parts.target.dtype).removeprefix("torch."),
        "vocab_size": parts.target.vocab_size,
        "several_sources": bool(parts.drafter.sources),
        "how": parts.how,
        "greedy": engine.sampling(1).greedy,
        "top_k": top_k,
    }
