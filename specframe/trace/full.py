"""A wide tree at every position of the text, so that smaller ones can be scored without models.

The run emits one token a step, the target's own, so every position of plain decoding's text becomes
a root once. What was offered below it, in what order and with what scores, and the target's law at
the verified nodes, is enough to cut any smaller tree out of the wide one and to say what a rule
would have accepted of it: task=replay does so for hundreds of trees in the time of one run.
"""

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
from specframe.law.streams import Streams
from specframe.law.target_laws import Laws
from specframe.records import Observer, StepRecord
from specframe.registry import Range
from specframe.session.engine import Engine
from specframe.session.generation import Generation
from specframe.storage.lines import LineFile
from specframe.trace.base import TRACES, Trace, TracedPrompt, Tracer
from specframe.tracing.traced_positions import (
    ANSWERS_FILE,
    POSITIONS_FOLDER,
    UNKNOWN_TOKEN,
    TracedAnswer,
    TracedCall,
    TracedLaws,
    TracedPosition,
)
from specframe.tracing.wider_trees import widened
from specframe.types import Draft, DrawCall, How, Verdict


@TRACES.register("full")
class FullTrace(Trace):
    """Decodes one token a step and traces the tree that drafter= and tree= give at each position.

    The text is that of plain decoding. Traced are the children of every node that the drafter was
    asked for, in their order and with their scores (tree=dynamic asks for those of all smaller
    top_k too), and the target's law at every verified node: its top_k tokens and the mass of the
    rest. At temperature 0 that is the softmax of the processed scores, since the one-hot law says
    nothing. An answer is a file, written when it ends. The same command with the same hydra.run.dir
    goes on behind the answers that are there; another configuration is refused. Drafters whose
    guesses depend on more than the text are refused. Host reads a step: three, and what the policy
    itself declares.
    """

    host_reads: ClassVar[int] = 3

    def __init__(self, *, top_k: Annotated[int, Range(1, 1024)]) -> None:
        self.top_k = top_k

    def traced_engine(self, engine: Engine) -> Engine:
        parts = engine.components
        learns = parts.drafter.traits.learns
        if learns:
            raise IncompatibleComponents(
                f"trace=full: this drafter learns {learns}, so that a record of one token a step "
                "says nothing of another tree; measure it with task=benchmark, or use another one"
            )
        if parts.tree.needs_native or parts.drafter.traits.laws == "drawn":
            raise IncompatibleComponents(
                "trace=full: whole branches, and tokens that a drafter has drawn by itself, have "
                "no order to cut smaller trees from; use tree=dynamic, tree=static or tree=chain"
            )
        tree, rule = widened(parts.tree), OneToken()
        return Engine(replace(parts, tree=tree, accept=rule), engine.settings)

    def open(self, engine: Engine, folder: Path, config: dict[str, Any]) -> Tracer:
        return _Positions(engine, folder, config, top_k=self.top_k)


class OneToken(AcceptRule):
    """Emits the target's own token at the root, whatever was drafted.

    The text is that of accept=match and of no draft, so it is lossless.
    """

    lossless: bool = True
    same_text: bool = True
    any_draft: bool = True
    reads: frozenset[How] = frozenset({"place", "iid", "wor", "coupled"})

    def decide(self, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        root = torch.zeros_like(draft.tokens[:1])
        token = laws.pick(root, 0, rng, root == 0)
        none = draft.tokens.new_full((1, draft.depth), -1)
        tokens = torch.cat([token[None], none], dim=1)
        return Verdict(path=none, tokens=tokens, count=torch.ones_like(token))


class _Positions(Tracer):
    def __init__(self, engine: Engine, folder: Path, config: dict[str, Any], *, top_k: int) -> None:
        self._engine, self._folder = engine, folder
        self._top_k = min(top_k, engine.components.target.vocab_size)
        self._prompt: TracedPrompt | None = None
        self._index = LineFile(
            folder / ANSWERS_FILE,
            settings=_settings(engine, config, self._top_k),
            named_by="hydra.run.dir",
            contents="positions",
        )
        lines = [json.loads(line) for _, line in self._index.lines()]
        # The prompts of the answers that are there already, by their number in the run.
        self._known = {line["answer"]: line["prompt_tokens"] for line in lines}

    def has(self, number: int) -> bool:
        return number in self._known

    def close(self) -> None:
        self._index.close()

    def begin(self, prompt: TracedPrompt) -> Sequence[Observer]:
        self._prompt, self._file = prompt, TracedAnswer()
        if prompt.number not in self._known:
            return [self]
        if self._known[prompt.number] != list(prompt.prompt_tokens):
            raise ConfigError(
                f"hydra.run.dir={self._folder}: answer {prompt.number} there is of another prompt; "
                "give the old prompts or another folder"
            )
        return ()

    def observe(self, record: StepRecord) -> None:
        nodes, flat = _nodes(record.draft)
        self._file.positions.append(
            TracedPosition(calls=_calls(record.draft, flat), laws=self._laws(record, nodes))
        )

    def end(self, generation: Generation, metrics: dict[str, Any]) -> None:
        prompt = self._prompt
        assert prompt is not None
        if prompt.number in self._known:
            return
        name = f"{POSITIONS_FOLDER}/{prompt.number:05}.npz"
        self._file.write(self._folder / name)
        parts, settings = self._engine.components, self._engine.settings
        line = {
            "answer": prompt.number,
            "id": prompt.id,
            "category": prompt.category,
            "prompt_tokens": list(prompt.prompt_tokens),
            "tokens": generation.tokens,
            "finish_reason": generation.finish_reason,
            "limit": parts.limit(len(prompt.prompt_tokens), settings.max_new_tokens),
            "capacity": parts.cache.capacity,
            "file": name,
        }
        self._index.add_lines([line])

    def _laws(self, record: StepRecord, nodes: list[int]) -> TracedLaws:
        """The laws at the live rows. nodes: the node id of each row, -1 for dead ones."""
        draft, laws = record.draft, record.laws
        assert isinstance(laws, Laws)
        law = _law(draft, laws)
        top = law.topk(self._top_k, dim=-1)
        parents = draft.parents.clamp_min(0)
        probs = torch.where(draft.parents >= 0, law[parents, draft.tokens], torch.nan)
        tail = (1 - top.values.sum(-1)).clamp_min(0)
        numbers = torch.cat([probs[:, None], tail[:, None], top.values], dim=1).double().cpu()
        live = [row for row, node in enumerate(nodes) if node >= 0]
        above = draft.parents.cpu()[live].tolist()
        numbers = numbers[live]
        return TracedLaws(
            nodes=torch.tensor([nodes[row] for row in live]).numpy(),
            parents=torch.tensor([nodes[row] if row >= 0 else -1 for row in above]).numpy(),
            probs=numbers[:, 0].numpy(),
            ids=top.indices.cpu()[live].numpy(),
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
        places = [row for row, each in enumerate(depths) if each == depth]
        rows = torch.tensor(places, device=law.device)
        hot = not laws.sampling.greedy
        law[rows] = (laws.at(rows, depth) if hot else laws.scores(rows, depth).softmax(-1)).to(law)
    return law


def _nodes(draft: Draft) -> tuple[list[int], Tensor]:
    """Node ids of the rows (-1 for dead ones) and all integers of the calls, in two host reads."""
    origin = torch.where(draft.alive, draft.origin, -1).tolist()
    parts = [part.reshape(-1) for call in draft.calls for part in _integers(call)]
    return origin, torch.cat(parts).cpu() if parts else draft.tokens[:0].cpu()


def _integers(call: DrawCall) -> tuple[Tensor, Tensor, Tensor]:
    tokens = call.tokens
    if call.wanted is not None:
        tokens = torch.where(call.wanted, tokens, UNKNOWN_TOKEN)
    return call.parents, call.nodes, tokens


def _calls(draft: Draft, flat: Tensor) -> list[TracedCall]:
    """The calls on the host. flat: what `_integers` gave for all of them."""
    scores = [_scores(call) for call in draft.calls]
    numbers = [each.double().reshape(-1) for each in scores if each is not None]
    weights = torch.cat(numbers).cpu() if numbers else flat.double()[:0]
    calls, start, at = [], 0, 0
    for call, scored in zip(draft.calls, scores, strict=True):
        f, k = call.tokens.shape
        parents, nodes, tokens = flat[start : start + f + 2 * f * k].split([f, f * k, f * k])
        start += f + 2 * f * k
        mine = None if scored is None else weights[at : at + f * k].view(f, k).numpy()
        at += 0 if scored is None else f * k
        calls.append(
            TracedCall(
                depth=call.depth,
                source=call.source,
                width=call.width,
                parents=parents.numpy(),
                nodes=nodes.view(f, k).numpy(),
                tokens=tokens.view(f, k).numpy(),
                scores=mine,
            )
        )
    return calls


def _scores(call: DrawCall) -> Tensor | None:
    if call.law is not None and call.indices is not None:
        return call.law.gather(1, call.indices).double().log()
    return call.scores


def _settings(engine: Engine, config: dict[str, Any], top_k: int) -> dict[str, Any]:
    """What the positions of a file depend on; task=replay reads it too."""
    parts = engine.components
    axes = ("target", "drafter", "tree", "cache", "sampling", "stop")
    return {
        **{axis: config[axis] for axis in axes},
        **{key: config[key] for key in ("raw", "chat", "max_new_tokens", "seed")},
        "dtype": str(parts.target.dtype).removeprefix("torch."),
        "vocab_size": parts.target.vocab_size,
        "several_sources": bool(parts.drafter.traits.sources),
        "how": parts.how,
        "greedy": engine.sampling(1).greedy,
        "top_k": top_k,
    }
