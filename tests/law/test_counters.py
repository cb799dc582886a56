"""Every coin and every draw is keyed by its purpose, its position and its number.

A counter that is left out gives the same number again at another place, which no test of one step
can see: the law of a single step stays right, that of the text does not. So these tests write down
the counters of every place that asks for a number.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe import load
from specframe.accept.match import Match
from specframe.accept.rejection import Rejection
from specframe.accept.typical import Typical
from specframe.drafting.builder import TreeBuilder
from specframe.law.streams import Stream, Streams
from specframe.law.target_laws import Laws
from specframe.testing.verify_steps import (
    SHAPES,
    PathLaws,
    V,
    laws_of,
    plain_sampling,
    row_paths,
)
from specframe.tree.chain import ChainTree
from specframe.types import Draft, How, Proposal, Verdict
from tests.small_models import Composition, lm_of, sampling_config, toy

VOCABULARY = list(range(V))
Key = tuple[Any, ...]


def value(counter: int | Tensor) -> Any:
    """A counter as plain numbers, one number as itself."""
    if isinstance(counter, int):
        return counter
    flat = counter.flatten().tolist()
    return flat[0] if len(flat) == 1 else flat


class Recorder(Streams):
    """Streams that remember who asked for what."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.asked: list[Key] = []

    def uniform(self, stream: Stream, *counters: int | Tensor) -> Tensor:
        self.asked.append((stream, *map(value, counters)))
        return super().uniform(stream, *counters)


def grown(rng: Streams, shape: str, how: How, *, step: int = 1) -> Draft:
    build = TreeBuilder(
        context=torch.zeros(step, dtype=torch.long),
        sampling=plain_sampling(),
        rng=rng,
        step=step,
        how=how,
    )
    return SHAPES[shape](build, PathLaws(1))


def judged(rule: Any, draft: Draft, length: int, seed: int = 0) -> tuple[list[Key], Verdict]:
    """What a rule asked for, where the next token has the position `length`."""
    laws = Laws(
        draft=draft,
        logits=PathLaws(0).logits(row_paths(draft)),
        context=torch.zeros(length, dtype=torch.long),
        sampling=plain_sampling(),
    )
    rng = Recorder(seed)
    verdict = rule.decide(draft, laws, rng)
    return rng.asked, verdict


def plain_uniform(stream: int, seed: int, *counters: int) -> float:
    """The same number by hand: SplitMix64's finaliser over stream, seed and counters."""
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    state = mix((seed * golden + stream) & mask)
    for counter in counters:
        state = mix((state + golden * (counter + 1)) & mask)
    return ((state >> 12) + 0.5) * 2.0**-52


@pytest.mark.parametrize("counters", [(), (0,), (3, -1), (2**40, 0, 7)])
@pytest.mark.parametrize("sequence", [0, 5])
@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_a_uniform_is_made_of_stream_seed_sequence_and_counters(
    seed: int, sequence: int, counters: tuple[int, ...]
) -> None:
    names: tuple[Stream, ...] = ("target", "draft", "accept", "policy")
    for number, stream in enumerate(names, start=1):
        expected = plain_uniform(number, seed, sequence, *counters)
        for given in (sequence, torch.tensor(sequence)):
            streams = Streams(seed=seed, sequence=given)
            assert float(streams.uniform(stream, *counters)) == expected
            assert float(streams.uniform(stream, *map(torch.tensor, counters))) == expected


def test_verbs_pass_their_stream_and_every_counter_on() -> None:
    rng, probs = Recorder(), torch.tensor([[0.2, 0.3, 0.5]])
    where = torch.ones(1, dtype=torch.bool)
    rng.noise(7, torch.arange(3))
    rng.target(probs, 8, where)
    rng.coupled(probs, torch.tensor([4, 2, 9]), 6, 2)
    rng.categorical("draft", probs, (1, 2, 3), where)
    rng.categorical("accept", probs, (4, -1), where)
    rng.coin(probs[:, 0], (5, 6), where)
    assert rng.asked == [
        ("target", 7, [0, 1, 2]),
        ("target", 8, [0, 1, 2]),
        ("target", 6, [4, 2, 9]),
        ("draft", 1, 2, 3),
        ("accept", 4, -1),
        ("accept", 5, 6),
    ]


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("how", ["iid", "wor"])
def test_rejection_keys_a_coin_by_position_and_test_and_a_recovered_token_by_position(
    how: How, length: int
) -> None:
    at = range(length, length + 3)
    expected: dict[str, list[Key]] = {
        "chain": [(at[0], 0), (at[0], -1), (at[1], 0), (at[1], -1), (at[2], -1)],
        "siblings": [(at[0], 0), (at[0], 1), (at[0], -1), (at[1], -1)],
        "bushy": [
            *[(at[0], 0), (at[0], 1), (at[0], -1)],
            *[(at[1], 0), (at[1], 1), (at[1], -1), (at[2], -1)],
        ],
    }
    for shape, keys in expected.items():
        asked, _ = judged(Rejection(), grown(Streams(seed=3), shape, how), length)
        assert asked == [("accept", *key) for key in keys], shape


@pytest.mark.parametrize("length", [1, 4])
def test_rejection_of_placed_children_keys_a_token_by_position(length: int) -> None:
    asked, _ = judged(Rejection(), grown(Streams(seed=3), "bushy", "place"), length)
    assert asked == [("accept", length + depth, -1) for depth in range(3)]


@pytest.mark.parametrize("length", [1, 4])
def test_match_keys_its_noise_by_position_and_token(length: int) -> None:
    for how in ("place", "iid"):
        asked, _ = judged(Match(), grown(Streams(seed=3), "chain", how), length)
        assert asked == [("target", length + depth, VOCABULARY) for depth in range(3)]


@pytest.mark.parametrize("length", [1, 4])
def test_typical_keys_its_bonus_by_the_position_behind_the_path(length: int) -> None:
    rule, accepted = Typical(epsilon=0.3, delta=0.3, temperature=1.0), set()
    for seed in range(8):
        asked, verdict = judged(rule, grown(Streams(seed=seed), "chain", "iid"), length)
        depth = int(verdict.count) - 1
        assert asked == [("target", length + depth, VOCABULARY)]
        accepted.add(depth)
    assert len(accepted) > 1, "a path of one length alone shows nothing"


@pytest.mark.parametrize("step", [1, 6])
@pytest.mark.parametrize("how", ["iid", "wor"])
def test_a_draw_is_keyed_by_step_node_call_and_order(how: How, step: int) -> None:
    rng = Recorder()
    build = TreeBuilder(
        context=torch.zeros(step, dtype=torch.long),
        sampling=plain_sampling(),
        rng=rng,
        step=step,
        how=how,
    )
    source = PathLaws(1)
    children = build.draw(build.root, source.proposal(build.root), 2, how)
    build.draw(children, source.proposal(children), 2, how)
    build.draw(children, source.proposal(children), 1, how)
    nodes = children.nodes.tolist()
    assert rng.asked == [
        *[("draft", step, 0, 0, 0), ("draft", step, 0, 0, 1)],
        *[("draft", step, nodes, 1, 0), ("draft", step, nodes, 1, 1)],
        ("draft", step, nodes, 2, 0),
    ]


@pytest.mark.parametrize("step", [1, 6])
def test_a_coupled_draw_is_keyed_by_position_and_the_targets_token(step: int) -> None:
    for ids in (None, torch.tensor([2, 0])):
        rng = Recorder()
        build = TreeBuilder(
            context=torch.zeros(step, dtype=torch.long),
            sampling=plain_sampling(),
            rng=rng,
            step=step,
            how="coupled",
        )
        frontier = build.root
        for _ in range(2):
            logits = PathLaws(1).proposal(frontier).logits
            assert logits is not None
            cut = logits if ids is None else logits[:, ids]
            frontier = build.extend(frontier, Proposal(logits=cut, ids=ids), 1)
        tokens = VOCABULARY if ids is None else ids.tolist()
        assert rng.asked == [("target", step + depth, tokens) for depth in range(2)]


class Shared(Recorder):
    """A recorder of one sequence that writes into a common list."""

    def __init__(self, asked: list[Key], seed: int, sequence: int | Tensor) -> None:
        super().__init__(seed)
        self.asked, self.sequence = asked, sequence


def test_a_text_asks_with_its_own_lengths_and_never_twice() -> None:
    """The whole loop: draws are keyed by the length of the context, the first token by the
    prompt's, and what decided a token is never asked for again."""
    asked: list[Key] = []
    made: list[tuple[int, Any]] = []

    def streams(*, seed: int, sequence: int | Tensor = 0) -> Shared:
        made.append((seed, sequence))
        return Shared(asked, seed, sequence)

    composition = Composition(
        target=toy(),
        drafter=lm_of(toy(blend=0.5), toy()),
        tree=ChainTree(depth=2, max_nodes=3, proposal="iid"),
        accept=Rejection(),
        how="iid",
        sampling=sampling_config(1.0),
        seed=7,
    )
    decoding = composition.engine().decoding(max_new_tokens=60, streams=streams)
    prompt = [0, 1, 2]
    lengths, decided = [len(prompt)], set()
    for emission in decoding.run(prompt, sequence=3):
        keys = [key for key in asked if key[0] != "target"]
        if emission.record is None:
            assert [key[:2] for key in asked] == [("target", len(prompt))]
        else:
            begin, end = lengths[-1], lengths[-1] + len(emission.tokens)
            draws = [key for key in keys if key[0] == "draft"]
            assert [key[1:] for key in draws] == [(begin, 0, 0, 0), (begin, 1, 1, 0)]
            coins = [key for key in keys if key[0] == "accept"]
            assert {key[1] for key in coins} == {begin, begin + 1, begin + 2}
            used = {*draws, *(key for key in coins if key[1] < end)}
            assert not used & decided
            decided |= used
        lengths.append(lengths[-1] + len(emission.tokens))
        asked.clear()
        if len(lengths) == 8:  # before the end, where drafts grow shorter
            break
    assert made == [(7, 3)]


def test_the_oracle_keys_its_guesses_by_length_root_depth_and_purpose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Key] = []
    made: list[tuple[int, Any]] = []

    def streams(*, seed: int, sequence: int | Tensor = 0) -> Shared:
        made.append((seed, sequence))
        return Shared(asked, seed, sequence)

    monkeypatch.setattr("specframe.drafter.oracle.Streams", streams)
    words = ["target=toy", "drafter=oracle", "drafter.seed=9", "drafter.rates=[0.7]"]
    words += ["tree=chain", "tree.depth=2", "tree.max_nodes=3", "stop.eos=[]", "max_new_tokens=60"]
    decoding, length = load(words).decoding(), 0
    prompt = [0, 1, 2]
    text = [*prompt]
    for number, emission in enumerate(decoding.run(prompt, sequence=3)):
        if emission.record is not None:
            keys = [(length, text[-1], depth, kind) for depth in range(2) for kind in range(3)]
            assert asked == [("policy", *key) for key in keys]
        asked.clear()
        text += emission.tokens
        length = len(text)
        if number == 5:
            break
    assert made == [(9, 3)]


def test_recovered_tokens_of_two_positions_are_independent() -> None:
    """The law that a missing position ruins: the second token would follow from the first."""
    target, count, both = PathLaws(laws=[0.5, 0.5, 0.0]), 200, 0
    for seed in range(count):
        tokens = []
        for length in (1, 2):
            draft = SHAPES["siblings"](
                TreeBuilder(
                    context=torch.zeros(length, dtype=torch.long),
                    sampling=plain_sampling(),
                    rng=Streams(seed=seed),
                    step=length,
                    how="iid",
                ),
                PathLaws(laws=[0.0, 0.0, 1.0]),
            )
            laws = laws_of(draft, target)
            laws.position = length
            verdict = Rejection().decide(draft, laws, Streams(seed=seed))
            tokens.append(int(verdict.tokens[0, 0]))
        both += tokens[0] == tokens[1]
    assert abs(both - count / 2) < 4 * math.sqrt(count) / 2
