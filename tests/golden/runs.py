"""Runs a drafter on the golden inputs: two steps of a dynamic tree over given features."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from specframe.drafting.builder import TreeBuilder
from specframe.drafting.feature_drafter import FeatureDrafter
from specframe.law.sampling import Sampling
from specframe.law.streams import Streams
from specframe.records import Context, StepRecord
from specframe.tree.dynamic import DynamicTree
from specframe.types import Budget, Draft, Frontier, TargetOutput, Verdict

FOLDER = Path(__file__).parent
CPU = torch.device("cpu")


class Tables:
    """As much of a target as a drafter looks at: embedding and head, float64."""

    device, dtype, name = CPU, torch.float64, "golden"
    num_layers = 10

    def __init__(self, embedding: Tensor, head: Tensor) -> None:
        self._embedding, self._head = embedding.double(), head.double()
        self.vocab_size = len(head)

    def embed(self, tokens: Tensor) -> Tensor:
        return self._embedding[tokens]

    def head(self, hidden: Tensor) -> Tensor:
        return hidden @ self._head.T


@dataclass(frozen=True)
class Golden:
    """One folder: where its head is, the tree's numbers and what is expected."""

    folder: Path
    tree: dict[str, int]
    expected: dict[str, Tensor]

    @classmethod
    def of(cls, name: str) -> Golden:
        folder = FOLDER / name
        tree = json.loads((folder / "config.json").read_text(encoding="utf-8"))["tree"]
        return cls(folder, tree, load_file(str(folder / "expected.safetensors")))

    def unpacked(self, folder: Path) -> str:
        """The head with its config at the top of config.json, as it is published."""
        held = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))["config"]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(held), encoding="utf-8")
        weights = (self.folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(weights)
        return str(folder)

    def target(self) -> Any:
        embedding = load_file(str(self.folder / "model.safetensors"))["embed_tokens.weight"]
        return Tables(embedding, self.expected["target_head"])


@torch.inference_mode()
def run(
    golden: Golden, drafter: FeatureDrafter, between: Callable[[], None] | None = None
) -> tuple[Tensor, list[Draft]]:
    """(states of the first pass [T, H], the trees of both steps)."""
    expected = golden.expected
    tokens, names = expected["tokens_1"][0].tolist(), drafter.traits.needs.taps
    context = Context.of(tokens, CPU, max_columns=512)
    drafter.begin(context, _out(names, expected["features_1"][0]))
    first = grown(golden, drafter, context)
    states = drafter._outputs.parts[0]
    new = expected["tokens_2"][0].tolist()[len(tokens) :]
    drafter.observe(_record(first, _out(names, expected["features_2"][0]), new, len(tokens)))
    context.extend(new)
    if between is not None:
        between()
    return states, [first, grown(golden, drafter, context)]


def grown(golden: Golden, drafter: FeatureDrafter, context: Context) -> Draft:
    """The tree of one step."""
    depth, rows = golden.tree["depth"] + 1, golden.tree["total_tokens"]
    policy = DynamicTree(depth=depth, top_k=golden.tree["top_k"], max_nodes=rows, proposal="place")
    sampling = Sampling(temperature=0.0, processors=[], warpers=[], vocabulary=128)  # type: ignore[arg-type]
    builder = TreeBuilder(
        context=context.ids, sampling=sampling, rng=Streams(seed=0), step=0, how="place"
    )
    policy.grow(builder, drafter, Budget(rows=rows, depth=depth))
    return builder.build()


def _out(names: Sequence[str], features: Tensor) -> TargetOutput:
    parts = features.chunk(len(names), dim=-1)
    return TargetOutput(logits=features[:1], taps=dict(zip(names, parts, strict=True)))


def _record(draft: Draft, out: TargetOutput, tokens: list[int], before: int) -> StepRecord:
    ids = torch.tensor(tokens)
    verdict = Verdict(path=ids[None, 1:], tokens=ids[None], count=torch.tensor([len(ids)]))
    return StepRecord(
        draft=draft,
        out=out,
        verdict=verdict,
        path=list(range(1, len(tokens))),
        tokens=tokens,
        num_accepted=len(tokens) - 1,
        was_cut=False,
        length_before=before,
        laws=None,  # type: ignore[arg-type]
    )


def agrees(golden: Golden, draft: Draft, step: int) -> bool:
    """Whether a tree is the expected one, row by row."""
    expected = golden.expected
    wanted = (
        (draft.tokens, expected[f"draft_tokens_{step}"][0]),
        (draft.parents, expected[f"parents_{step}"]),
        (draft.depths, expected[f"positions_{step}"]),
        (draft.ancestors().float(), expected[f"mask_{step}"]),
    )
    return all(mine.shape == one.shape and torch.equal(mine, one) for mine, one in wanted)


@torch.inference_mode()
def cached(drafter: FeatureDrafter) -> list[Tensor]:
    """Copies of the committed keys and values of the draft's first layer."""
    return [one.clone() for one in drafter._cache.committed(0)]


def root(context: Context) -> Frontier:
    """The root of a context, as a frontier."""
    sampling = Sampling(temperature=0.0, processors=[], warpers=[], vocabulary=128)  # type: ignore[arg-type]
    return TreeBuilder(
        context=context.ids, sampling=sampling, rng=Streams(seed=0), step=0, how="place"
    ).root
