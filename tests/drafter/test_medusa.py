"""drafter=medusa: alignment of heads and states, any tree and rule, vocabularies, going back."""

from __future__ import annotations

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from specframe import load
from specframe.accept.base import AcceptRule
from specframe.accept.match import Match
from specframe.accept.rejection import Rejection
from specframe.accept.typical import Typical
from specframe.drafter.medusa import Medusa
from specframe.errors import ConfigError
from specframe.heads.medusa_file import save_medusa
from specframe.heads.medusa_net import MedusaNet
from specframe.target.hf import HF
from specframe.task.certify.enumeration import exact_law, max_error, sequence_law
from specframe.tree.chain import ChainTree
from specframe.tree.static import StaticTree
from specframe.types import Frontier, How
from tests.drafter.head_contract import Head, HeadContract
from tests.heads.small_medusa_heads import (
    follower,
    jumps_target,
    medusa_net,
    perfect_medusa,
    words_for,
)
from tests.small_models import (
    PROMPT,
    RUNTIME,
    VOCAB,
    Composition,
    Outcome,
    decode,
    full_logits,
    oracle,
    raw,
    sampling_config,
    target,
    toy,
    tree_of,
)

TREES = ("chain", "static", "dynamic")
HOWS: tuple[How, ...] = ("place", "iid", "wor", "coupled")


def medusa(net: MedusaNet, model: Any = None, **more: Any) -> Medusa:
    """drafter=medusa composed by hand."""
    return Medusa.of(net, target=model or target("llama"), runtime=RUNTIME, **more)


class TestMedusa(HeadContract):
    """What every head does, with output matrices of its own and with the target's."""

    @pytest.fixture(params=[(VOCAB, 1), (0, 2)], ids=["own", "shared"])
    def head(self, request: pytest.FixtureRequest) -> Head:
        rows, layers = request.param

        def drafter(net: MedusaNet, model: Any = None, cache: str = "", **more: Any) -> Medusa:
            return medusa(net, model, **more)  # it keeps no keys

        def perfect(sharp: float) -> tuple[HF, MedusaNet]:
            model = jumps_target()
            return model, perfect_medusa(model)

        def imperfect() -> tuple[HF, MedusaNet]:
            return HF.of(copy.deepcopy(raw("llama")), runtime=RUNTIME), random()

        random = partial(medusa_net, rows=rows, layers=layers)
        return Head(drafter=drafter, random=random, perfect=perfect, imperfect=imperfect)


def run_jumps(shift: int, tree: Any, *, heads: int = 4, count: int = 31) -> Outcome:
    model = jumps_target()
    drafter = medusa(perfect_medusa(model, heads=heads, shift=shift), model)
    composed = Composition(target=model, drafter=drafter, tree=tree)
    made = decode(composed, PROMPT, count)
    place, after = PROMPT[-1], follower(model)
    for token in made.tokens:
        place = int(after[place])
        assert token == place
    return made


@pytest.mark.parametrize("tree", TREES)
def test_perfect_heads_are_accepted_in_full(tree: str) -> None:
    paths = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 0, 0], [1, 0, 0]]
    static = StaticTree(depth=4, max_nodes=9, proposal="place", paths=paths)
    # 1 token by prefill and 6 passes of 4 + 1.
    made = run_jumps(0, static if tree == "static" else tree_of(tree))
    assert [len(record.tokens) for record in made.records] == [5] * 6


@pytest.mark.parametrize("shift", [-1, 1])
def test_heads_that_are_off_by_one_are_not(shift: int) -> None:
    assert run_jumps(shift, tree_of("chain")).num_accepted < 6


def test_the_tree_is_as_deep_as_there_are_heads() -> None:
    made = run_jumps(0, ChainTree(depth=6, max_nodes=8, proposal="place"), heads=2)
    assert {record.draft.depth for record in made.records[:-1]} == {2}
    assert [len(record.tokens) for record in made.records] == [3] * 10


@torch.inference_mode()
def test_states_are_those_of_the_last_accepted_row() -> None:
    """What the heads read is the state that a fresh forward has before the root."""
    drafter = medusa(medusa_net(rows=0))
    seen: list[torch.Tensor] = []
    inner = drafter._forward

    def watched(state: torch.Tensor) -> torch.Tensor:
        seen.append(state.clone())
        return inner(state)

    drafter._forward = watched  # type: ignore[method-assign]
    composed = Composition(target=target("llama"), drafter=drafter, tree=tree_of("static"))
    made = decode(composed, PROMPT, 12)
    tokens = [*PROMPT, *made.tokens]
    lengths = [record.length_before for record in made.records]
    assert len(seen) >= len(lengths) - 1  # the last token needs no draft
    for state, length in zip(seen, lengths, strict=False):
        logits = full_logits(raw("llama"), tokens[: length - 1])[-1]
        torch.testing.assert_close(target("llama").head(state)[0], logits, rtol=0, atol=1e-9)


@pytest.mark.parametrize("rule", [Match(), Typical(epsilon=0.09, delta=0.3, temperature=0.7)])
@pytest.mark.parametrize("tree", ["static", "dynamic"])
def test_token_zero_is_an_ordinary_token(tree: str, rule: AcceptRule) -> None:
    # The reference pads short paths with 0 and runs past leaves where 0 is what comes next.
    model = jumps_target(to_zero=2)
    drafter = medusa(perfect_medusa(model, heads=2), model)
    composed = Composition(target=model, drafter=drafter, tree=tree_of(tree), accept=rule)
    after, place = follower(model), 4
    assert int((after == 0).sum()) > VOCAB // 3
    made = decode(composed, (3, place), 24)
    for token in made.tokens:
        place = int(after[place])
        assert token == place
    assert 0 in made.tokens
    for record in made.records:
        parents = record.draft.parents[record.path].tolist()
        assert parents == [0, *record.path][:-1]


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("how", ["iid", "wor"])
def test_text_follows_the_targets_law(rule: str, how: How) -> None:
    small = toy(vocab_size=3)
    composed = Composition(
        target=small,
        drafter=medusa(medusa_net(hidden=3, rows=3, heads=2), small),
        tree=StaticTree(depth=2, max_nodes=4, proposal=how, paths=[[0], [1], [0, 0]]),
        accept=Match() if rule == "match" else Rejection(),
        how=how,
        sampling=sampling_config(0.9),
    )
    engine = composed.engine()
    found, _ = sequence_law(engine, (0, 1), length=3, max_branches=60_000)
    exact = exact_law(small, engine.sampling(2), (0, 1), length=3)
    assert max_error(found, exact) < 1e-12


def ids_file(folder: Path, ids: list[int]) -> str:
    path = folder / "ids.json"
    path.write_text(json.dumps(ids), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("kind", ["own", "shared", "mapped", "mapped, whole", "mapped, shared"])
def test_only_the_vocabulary_is_drafted(kind: str, tmp_path: Path) -> None:
    rows = 0 if "shared" in kind else 40 if kind == "mapped" else VOCAB
    net = medusa_net(rows=rows, mapped=40 if "mapped" in kind else 0)
    plain = medusa(net)
    file = ids_file(tmp_path, list(range(0, VOCAB, 2)))
    small = medusa(net, vocabulary=file)
    known = set(range(VOCAB)) if net.token_map is None else set(net.token_map.tolist())
    assert small._ids is not None
    assert set(small._ids.tolist()) == {one for one in known if one % 2 == 0}
    state = torch.randn(1, 32, dtype=torch.float64)
    all_ids = torch.arange(VOCAB) if plain._ids is None else plain._ids
    place = (all_ids[:, None] == small._ids[None, :]).int().argmax(0)
    torch.testing.assert_close(small._forward(state), plain._forward(state)[:, place])
    composed = Composition(target=target("llama"), drafter=small, tree=tree_of("static"))
    made = decode(composed, PROMPT, 12)
    assert made.tokens == oracle("llama", PROMPT, 12)
    for record in made.records:
        assert set(record.draft.tokens[1:][record.draft.alive[1:]].tolist()) <= known


def test_padded_rows_are_left_out() -> None:
    net = medusa_net(rows=VOCAB + 7)
    drafter = medusa(net)
    assert drafter._ids is None
    assert drafter._forward(torch.ones(1, 32).double()).shape == (4, VOCAB)


def test_heads_of_another_target_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hidden size 16, .* has 32"):
        medusa(medusa_net(hidden=16))
    with pytest.raises(ConfigError, match="40 rows and no token_map"):
        medusa(medusa_net(rows=40))
    mapped = medusa_net(rows=2, mapped=2)
    assert mapped.token_map is not None
    mapped.token_map.copy_(torch.tensor([3, 5]))
    with pytest.raises(ConfigError, match=r"drafter\.vocabulary.*know none"):
        medusa(mapped, vocabulary=ids_file(tmp_path, [4, 6]))
    mapped.token_map.add_(VOCAB)
    with pytest.raises(ConfigError, match="token_map names no token"):
        medusa(mapped)


@pytest.mark.parametrize("has_tail", [False, True])
def test_going_back_keeps_the_heads_right(has_tail: bool) -> None:
    model = jumps_target()
    # Heads look ahead from the token before the root, which must lead to the root.
    tail = (2, 5, int(follower(model)[5])) if has_tail else ()
    drafter = medusa(perfect_medusa(model), model)
    composed = Composition(target=model, drafter=drafter, tree=tree_of("chain"))
    loop = composed.decoding(40)
    loop.begin(PROMPT)
    for _ in range(4):
        loop.step()
    loop.truncate(len(PROMPT) + 3, tail)
    assert sum(map(len, drafter._states)) == len(loop.context) - 1
    assert [len(loop.step().tokens) for _ in range(4)] == [5] * 4


def test_going_back_to_the_first_token_drafts_nothing() -> None:
    composed = Composition(target=target("llama"), drafter=medusa(medusa_net()))
    loop = composed.decoding(8)
    loop.begin((7,))
    loop.step()
    drafter = loop.components.drafter
    drafter.truncate(1)
    root = torch.zeros(1, dtype=torch.long)
    here = Frontier(
        nodes=root,
        tokens=root,
        parents=root - 1,
        alive=root == 0,
        scores=root.double(),
        paths=root[None, :0],
        depth=0,
    )
    assert list(drafter.expand(here)) == []


@pytest.mark.parametrize("tree", TREES)
def test_as_a_user_composes_it(tree: str, tmp_path: Path) -> None:
    words = ["target=toy", "drafter=medusa", *words_for("toy", tmp_path), f"tree={tree}"]
    for temperature in (0, 0.9):
        settings = [f"sampling.temperature={temperature}", "seed=3", "max_new_tokens=20"]
        expected = load(["target=toy", "drafter=none", *settings]).generate([1, 2, 3]).tokens
        assert load([*words, *settings]).generate([1, 2, 3]).tokens == expected
    with pytest.raises(ConfigError, match="path"):
        load(["target=toy", "drafter=medusa"])


def test_heads_are_cast_to_the_target(tmp_path: Path) -> None:
    save_medusa(medusa_net().bfloat16(), tmp_path)
    drafter = Medusa(path=str(tmp_path), vocabulary=None, target=target("llama"), runtime=RUNTIME)
    assert all(weight.dtype == torch.float64 for weight in drafter.net.parameters())
