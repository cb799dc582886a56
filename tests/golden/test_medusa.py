"""Medusa beside its reference program: the buffers of its trees, and the paths that it accepts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from specframe.accept.base import AcceptRule
from specframe.accept.match import Match
from specframe.accept.typical import Typical
from specframe.compose import catalogue
from specframe.drafter.medusa import Medusa
from specframe.drafting.builder import TreeBuilder
from specframe.heads.medusa_net import MedusaNet, MedusaOptions
from specframe.law.sampling import Sampling, build_sampling
from specframe.law.streams import Streams
from specframe.law.target_laws import Laws
from specframe.records import Context
from specframe.tree.static import StaticTree
from specframe.types import Budget, Draft, TargetOutput
from tests.golden.runs import CPU, Tables
from tests.small_models import RUNTIME, sampling_config

FOLDER = Path(__file__).parent / "medusa"
TREES: dict[str, list[list[int]]] = json.loads((FOLDER / "trees.json").read_text(encoding="utf-8"))
CASES = range(38)
PADDING = -1


@lru_cache
def expected() -> dict[str, Tensor]:
    return load_file(str(FOLDER / "expected.safetensors"))


@lru_cache
def preset(name: str) -> StaticTree:
    """The tree of conf/tree/<name>.yaml."""
    with catalogue.configuration() as loader:
        held = catalogue.schema(loader, "tree", name)
    assert held.pop("name") == "static"
    return StaticTree(**{**held, "proposal": "place"})


@lru_cache
def drafter() -> tuple[Medusa, Any]:
    """Heads and a target that give case c's logits on the state that names c."""
    logits = expected()["cases.head_logits"].double()  # [C, K, V]
    count, heads, vocab = logits.shape
    net = MedusaNet(MedusaOptions(hidden=count, heads=heads, rows=vocab)).double()
    for head in range(heads):
        net.output(head).data.copy_(logits[:, head].T)
    target: Any = Tables(torch.zeros(vocab, count), expected()["cases.base_logits"].T)
    return Medusa.of(net, target=target, runtime=RUNTIME), target


def sampling(temperature: float) -> Sampling:
    return build_sampling(
        sampling_config(temperature),
        prompt_length=1,
        eos=(),
        encode=None,
        vocabulary=60,
        device=CPU,
    )


@lru_cache
def grown(name: str, case: int) -> tuple[Draft, Context]:
    """The tree that drafter and preset make of a case."""
    made, target = drafter()
    state = torch.nn.functional.one_hot(torch.tensor([case]), len(CASES)).double()
    root = int(target.head(state).argmax())
    context = Context.of([3, root], CPU)
    made.begin(context, TargetOutput(logits=state, taps={"final_postnorm": state}))
    builder = TreeBuilder(
        context=context.ids, sampling=sampling(0), rng=Streams(seed=0), step=0, how="place"
    )
    policy = preset(name)
    policy.grow(builder, made, Budget(rows=policy.max_nodes, depth=policy.depth))
    return builder.build(), context


@pytest.mark.parametrize("name", TREES)
def test_presets_are_the_published_trees(name: str) -> None:
    assert sorted(map(list, preset(name).paths)) == sorted(TREES[name])


@pytest.mark.parametrize("name", TREES)
def test_buffers(name: str) -> None:
    draft, _ = grown(name, 0)
    held, tree = expected(), name
    assert torch.equal(draft.ancestors().float(), held[f"{tree}.medusa_attn_mask"][0, 0])
    assert torch.equal(draft.depths, held[f"{tree}.medusa_position_ids"])
    # Places in the list [root, head 0's ten best, head 1's ten best, ...].
    ranked = expected()["cases.head_logits"][0].topk(10).indices.flatten()
    listed = torch.cat([draft.tokens[:1], ranked])
    assert torch.equal(draft.tokens, listed[held[f"{tree}.tree_indices"]])
    leaves = set(range(draft.num_rows)) - set(draft.parents.tolist())
    paths = {tuple(root_to(draft, leaf)) for leaf in leaves}
    wanted = {tuple(unpadded(row)) for row in held[f"{tree}.retrieve_indices"]}
    assert paths == wanted


def root_to(draft: Draft, row: int) -> list[int]:
    """Rows from the root down to `row`."""
    path = []
    while row >= 0:
        path.append(row)
        row = int(draft.parents[row])
    return path[::-1]


def unpadded(row: Tensor) -> list[int]:
    return [one for one in row.tolist() if one != PADDING]


@pytest.mark.parametrize("case", CASES)
def test_drafted_tokens(case: int) -> None:
    draft, _ = grown("mc_sim_7b_63", case)
    assert torch.equal(draft.tokens, expected()["cases.tree_tokens"][case])


def accepted(rule: AcceptRule, case: int, temperature: float) -> list[int]:
    """Tokens along the path that a rule accepts, the root first."""
    draft, context = grown("mc_sim_7b_63", case)
    laws = Laws(
        draft=draft,
        logits=expected()["cases.node_logits"][case].double(),
        context=context.ids,
        sampling=sampling(temperature),
    )
    verdict = rule.decide(draft, laws, Streams(seed=0))
    path = unpadded(verdict.path[0])
    assert int(verdict.count) == len(path) + 1
    if path:
        assert root_to(draft, path[-1]) == [0, *path]
    return [int(draft.tokens[row]) for row in [0, *path]]


def wanted(kind: str, case: int) -> list[int]:
    held = expected()
    rows = unpadded(held[f"cases.{kind}_path"][case])
    return [int(held["cases.tree_tokens"][case, row]) for row in rows]


@pytest.mark.parametrize("case", CASES)
def test_greedy_paths(case: int) -> None:
    assert accepted(Match(), case, 0.0) == wanted("greedy", case)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("case", CASES)
def test_typical_paths(case: int, temperature: float) -> None:
    rule = Typical(epsilon=0.09, delta=0.3, temperature=0.7)
    assert accepted(rule, case, temperature) == wanted("typical", case)


FAULTY: Sequence[AcceptRule] = (
    Typical(epsilon=0.3, delta=0.09, temperature=0.7),  # the helpers' swapped defaults
    Typical(epsilon=0.09, delta=0.3, temperature=1.0),
    Match(),
)


@pytest.mark.parametrize("rule", FAULTY)
def test_the_cases_tell_other_rules_apart(rule: AcceptRule) -> None:
    assert any(accepted(rule, case, 0.0) != wanted("typical", case) for case in CASES)
    lengths = {len(wanted("typical", case)) for case in CASES}
    assert lengths >= {1, 2, 3, 4}
