"""Token recycling against a slow account of it in plain Python, one whole sequence a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import specframe
from specframe.drafter.recycling import Recycling
from specframe.errors import IncompatibleComponents
from specframe.measure.metrics import Metrics, RunSummary
from specframe.terminal.answer import Display
from specframe.tree.static import StaticTree
from tests.drafter.edges import law_error, report_of_three
from tests.drafter.slow_accounts import likeliest, whole
from tests.small_models import (
    CPU,
    LONG_PROMPT,
    PROMPT,
    TINY,
    Composition,
    Outcome,
    decode,
    oracle,
    raw,
    sampling_config,
    small_table,
    stop_config,
    target,
    toy,
    tree_of,
)

WIDTH = 3
COUNT = 24
SHAPE = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [2, 2], [0, 0, 0], [0, 1, 0], [0, 0, 0, 0]]
NUMBERS = {"width": WIDTH, "from_prompt": False, "keep": False}


def recycling(family: str = "llama", **changes: Any) -> Recycling:
    """A narrow one for a tiny model, with `changes`."""
    made = toy() if family == "toy" else target(family)
    return Recycling(target=made, **{**NUMBERS, **changes})


def run(
    drafter: Recycling, family: str = "llama", prompt: Sequence[int] = PROMPT, count: int = COUNT
) -> Outcome:
    """Greedy text with the static tree of this file."""
    tree = StaticTree(depth=4, max_nodes=11, proposal="place", paths=SHAPE)
    made = toy() if family == "toy" else target(family)
    return decode(Composition(target=made, drafter=drafter, tree=tree), prompt, count)


# The slow account


def best(family: str, tokens: tuple[int, ...]) -> list[int]:
    """The likeliest next tokens after a sequence, best first."""
    return likeliest(raw(family), tokens, WIDTH)


class Slow:
    """One answer, step by step."""

    def __init__(self, family: str, prompt: Sequence[int], from_prompt: bool = False) -> None:
        self.family = family
        self.matrix: dict[int, list[int]] = {}
        for end in range(1 if from_prompt else len(prompt), len(prompt) + 1):
            self.matrix[prompt[end - 1]] = best(family, tuple(prompt[:end]))
        self.text = [*prompt, best(family, tuple(prompt))[0]]
        self.steps: list[list[int]] = []
        self.nodes: list[int] = []

    def step(self, left: int) -> None:
        """One pass, with `left` tokens still to be emitted."""
        tree: dict[tuple[int, ...], list[int]] = {(): []}  # ranks -> tokens
        for ranks in sorted(map(tuple, SHAPE), key=lambda one: (len(one), one)):
            if len(ranks) > left - 1 or ranks[:-1] not in tree:
                continue
            above = tree[ranks[:-1]]
            found = self.matrix.get([*self.text, *above][-1])
            if found is not None:
                tree[ranks] = [*above, found[ranks[-1]]]
        emitted = [best(self.family, tuple(self.text))[0]]
        while len(emitted) < left and emitted in tree.values():
            emitted.append(best(self.family, (*self.text, *emitted))[0])
        for path in tree.values():
            sequence = [*self.text, *path]
            self.matrix[sequence[-1]] = best(self.family, tuple(sequence))
        self.nodes.append(len(tree))
        self.text += emitted
        self.steps.append(emitted)


def slow(family: str, prompt: Sequence[int], from_prompt: bool = False) -> Slow:
    """The account of a whole answer."""
    found: Slow = whole(Slow(family, prompt, from_prompt), prompt, COUNT)
    return found


def rows(drafter: Recycling) -> dict[int, list[int]]:
    """The rows of the matrix that are known."""
    held = drafter._matrix[:-1].tolist()
    return {token: row for token, row in enumerate(held) if row[0] >= 0}


@pytest.mark.parametrize("from_prompt", [False, True])
@pytest.mark.parametrize("family", TINY)
def test_each_step_is_that_of_the_slow_account(family: str, from_prompt: bool) -> None:
    expected = slow(family, LONG_PROMPT, from_prompt)
    drafter = recycling(family, from_prompt=from_prompt)
    outcome = run(drafter, family, LONG_PROMPT)
    assert [record.tokens for record in outcome.records] == expected.steps
    assert [int(record.draft.alive.sum()) for record in outcome.records] == expected.nodes
    assert outcome.tokens == oracle(family, LONG_PROMPT, COUNT)
    assert rows(drafter) == expected.matrix


def test_many_guesses_are_right() -> None:
    """Else the comparison of the steps would compare little."""
    accepted = [run(recycling(family), family).num_accepted for family in TINY]
    assert sum(accepted) > 3 * len(TINY), accepted


def test_rejected_rows_are_recycled() -> None:
    """Half of what the matrix knows comes from rows that were never accepted."""
    drafter = recycling()
    outcome = run(drafter)
    text = {*PROMPT, *outcome.tokens}
    assert len(set(rows(drafter)) - text) > 5


def test_the_last_row_of_a_token_counts() -> None:
    drafter = recycling("toy")
    loop = Composition(target=toy(), drafter=drafter, tree=tree_of("static")).decoding(40)
    loop.begin((1, 2, 3))
    repeated = 0
    for _ in range(8):
        record = loop.step()
        tokens = record.draft.tokens.tolist()
        live = [row for row, alive in enumerate(record.draft.alive.tolist()) if alive]
        repeated += len(live) - len({tokens[row] for row in live})
        last = {tokens[row]: row for row in live}
        for token, row in last.items():
            assert rows(drafter)[token] == record.out.logits[row].topk(WIDTH).indices.tolist()
    assert repeated, "some token stood in two rows"


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_every_tree_keeps_the_text(family: str, tree: str) -> None:
    composed = Composition(target=target(family), drafter=recycling(family), tree=tree_of(tree))
    outcome = decode(composed, PROMPT, COUNT)
    assert outcome.tokens == oracle(family, PROMPT, COUNT)
    assert outcome.num_accepted or tree == "chain"  # three guesses a node are more than one


def test_a_token_without_a_row_gets_no_children() -> None:
    outcome = run(recycling())
    first = outcome.records[0].draft
    assert first.num_rows == 1 + len(SHAPE), "the size is fixed before any value is seen"
    assert int(first.alive.sum()) == 1
    assert outcome.records[0].tokens == oracle("llama", PROMPT, 2)[1:]


def test_rows_of_the_prompt_warm_the_start() -> None:
    """Most tokens of the toy stand in the prompt already."""
    prompt = (0, 1, 2, 3, 4, 5, 1, 3)
    cold = run(recycling("toy"), "toy", prompt)
    warm = run(recycling("toy", from_prompt=True), "toy", prompt)
    assert int(cold.records[0].draft.alive.sum()) < int(warm.records[0].draft.alive.sum())
    assert cold.tokens == warm.tokens


def test_the_matrix_is_no_wider_than_the_vocabulary() -> None:
    drafter = recycling("toy", width=8)
    assert drafter._matrix.shape == (7, 6)
    assert run(drafter, "toy", (1, 2)).tokens == run(recycling("toy"), "toy", (1, 2)).tokens


@pytest.mark.parametrize("from_prompt", [False, True])
@pytest.mark.parametrize("prompt", [(7,), PROMPT])
def test_ends_and_short_prompts(prompt: tuple[int, ...], from_prompt: bool) -> None:
    text = oracle("llama", prompt, 40)
    for place in (3, 9, 17):
        ends = text.index(text[place])
        composed = Composition(
            target=target("llama"),
            drafter=recycling(from_prompt=from_prompt),
            tree=tree_of("static"),
            stop=stop_config(eos=[text[place]]),
        )
        outcome = decode(composed, prompt, 40)
        assert outcome.tokens == text[: ends + 1]
        assert outcome.loop.finish_reason == "eos"


def test_whole_branches_are_refused() -> None:
    with pytest.raises(IncompatibleComponents, match=r"takes whole branches .* use tree="):
        specframe.load(["target=toy", "drafter=recycling", "tree=native"])


# From prompt to prompt


def test_nothing_goes_over_unless_asked() -> None:
    alone = run(recycling(), prompt=LONG_PROMPT)
    drafter = recycling()
    run(drafter)
    assert drafter.warm is None
    again = run(drafter, prompt=LONG_PROMPT)
    assert [one.tokens for one in again.records] == [one.tokens for one in alone.records]


def test_what_is_kept_helps_and_is_said() -> None:
    drafter = recycling(keep=True)
    first = run(drafter)
    assert drafter.warm is False
    second = run(drafter)
    assert drafter.warm is True
    assert second.tokens == first.tokens
    assert len(second.records) < len(first.records)
    assert int(second.records[0].draft.alive.sum()) > 1


@pytest.mark.parametrize("keep", [False, True])
def test_the_report_of_a_run_says_cold_and_warm(keep: bool, tmp_path: Path) -> None:
    said, metrics = report_of_three(tmp_path, "drafter=recycling", f"drafter.keep={keep}")
    if not keep:
        assert said == [None, None, None]
        assert "warm" not in metrics
        return
    assert said == [False, True, True]
    assert metrics["cold"]["num_prompts"] == 1
    assert metrics["warm"]["num_prompts"] == 2
    parts = [metrics[one]["num_step_tokens"] for one in ("cold", "warm")]
    assert sum(parts) == metrics["num_step_tokens"]


def test_the_table_of_a_run_has_a_row_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    summary = RunSummary(CPU)
    summary.add(Metrics(num_steps=10, num_step_tokens=15, decode_s=1.0), warm=False)
    summary.add(Metrics(num_steps=10, num_step_tokens=25, decode_s=1.0), warm=True)
    Display(colour="never").table(summary, ["length", "length"])
    shown = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    for row in (["acceptance_length", "2.00"], ["cold", "1.50"], ["warm", "2.50"]):
        assert row in shown


# At a temperature


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
@pytest.mark.parametrize("keep", [False, True])
def test_one_seed_gives_the_autoregressive_text(tree: str, keep: bool) -> None:
    plain = Composition(target=target("llama"), sampling=sampling_config(0.8), seed=5)
    expected = decode(plain, PROMPT, COUNT).tokens
    assert expected != oracle("llama", PROMPT, COUNT)
    drafted = replace(plain, drafter=recycling(keep=keep), tree=tree_of(tree))
    for _ in range(2):
        assert decode(drafted, PROMPT, COUNT).tokens == expected


@pytest.mark.parametrize("from_prompt", [False, True])
def test_the_law_of_a_whole_text_is_exact(from_prompt: bool) -> None:
    small = small_table()
    drafter = Recycling(target=small, width=2, from_prompt=from_prompt, keep=False)
    tree = StaticTree(depth=2, max_nodes=8, proposal="place", paths=[[0], [1], [1, 0]])
    assert law_error(drafter, tree, small, length=4) < 1e-12


def test_the_matrix_is_small() -> None:
    """Under 2 MB for a vocabulary of 32,000 in the paper."""
    made = toy()
    made.vocab_size = 32_000
    drafter = Recycling(target=made, width=8, from_prompt=False, keep=False)
    held = drafter._matrix
    assert held.numel() * held.element_size() < 2e6
    assert held.dtype == torch.int32
