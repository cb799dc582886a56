"""The emitted text follows the target's law: exactly, by enumeration, and by sampling."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch

from specframe.accept.base import AcceptRule
from specframe.accept.match import Match
from specframe.accept.rejection import Rejection
from specframe.accept.typical import Typical
from specframe.drafter.base import Drafter, Traits
from specframe.records import Context
from specframe.session.engine import Engine
from specframe.target.toy import Toy
from specframe.task.certify.broken import Careless, NoResidual
from specframe.task.certify.enumeration import exact_law, max_error, sequence_law
from specframe.task.certify.law_checks import sampled_law
from specframe.tree.base import TreePolicy
from specframe.tree.chain import ChainTree
from specframe.tree.dynamic import DynamicTree
from specframe.tree.static import StaticTree
from specframe.types import Frontier, How, Proposal, TargetOutput
from tests.small_models import (
    Composition,
    drafter_of,
    lm_of,
    sampling_config,
    small_table,
    toy,
    tree_of,
)
from tests.turns import in_turn

PROMPT = (0, 1, 2, 0)
TREES: dict[str, Callable[[How], TreePolicy]] = {
    "chain": lambda how: ChainTree(depth=2, max_nodes=8, proposal=how),
    "static": lambda how: StaticTree(depth=2, max_nodes=8, proposal=how, paths=[[0], [1], [1, 0]]),
}
LAWS: dict[str, dict[str, float]] = {
    "plain": {},
    "top_p": {"top_p": 0.8},
    "penalty": {"repetition_penalty": 1.3},
}
RULES: dict[str, type[AcceptRule]] = {"match": Match, "rejection": Rejection}


def engine(
    rule: AcceptRule, tree: str, how: How, temperature: float = 1.0, **changes: float
) -> Engine:
    target = small_table()
    return Composition(
        target=target,
        drafter=lm_of(small_table(0.5), target),
        tree=TREES[tree](how),
        accept=rule,
        how=how,
        sampling=sampling_config(temperature, **changes),
    ).engine()


COMBINED = [*itertools.product(RULES, TREES, ("place", "iid", "wor"), LAWS)]
TEMPERATURES = (0.7, 1.0)


def error_of(made: Engine, length: int, *, max_branches: int = 1000) -> float:
    """Largest error in the law of a text of `length` tokens."""
    law, _ = sequence_law(made, PROMPT, length=length, max_branches=max_branches)
    target = made.components.target
    assert isinstance(target, Toy)
    return max_error(law, exact_law(target, made.sampling(len(PROMPT)), PROMPT, length=length))


def is_cheap(rule: str, tree: str, how: How, law: str) -> bool:
    """Whether four tokens take less than a second (shorter texts have shallower drafts)."""
    return law == "top_p" or how == "place" or (rule == "rejection" and tree == "chain")


@pytest.mark.parametrize(
    ("rule", "tree", "how", "law", "temperature"), in_turn(COMBINED, TEMPERATURES, every=2)
)
def test_the_law_of_a_whole_text_is_exact(
    rule: str, tree: str, how: How, temperature: float, law: str
) -> None:
    made = engine(RULES[rule](), tree, how, temperature, **LAWS[law])
    length = 4 if is_cheap(rule, tree, how, law) else 3
    assert error_of(made, length, max_branches=3000) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "tree", "how", "law", "temperature"),
    [(*one, hot) for one in COMBINED if not is_cheap(*one) for hot in TEMPERATURES],
)
def test_the_law_of_a_longer_text_is_exact(
    rule: str, tree: str, how: How, temperature: float, law: str
) -> None:
    made = engine(RULES[rule](), tree, how, temperature, **LAWS[law])
    assert error_of(made, 4, max_branches=30_000) < 1e-12


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("rule", [NoResidual(), Careless()], ids=["no residual", "careless"])
@pytest.mark.parametrize("law", LAWS)
def test_control_a_broken_rule_is_noticed(law: str, rule: AcceptRule, tree: str) -> None:
    assert error_of(engine(rule, tree, "iid", **LAWS[law]), 3) > 1e-3


def test_a_lossy_rule_is_noticed() -> None:
    rule = Typical(epsilon=0.09, delta=0.3, temperature=0.7)
    assert error_of(engine(rule, "static", "place"), 3) > 1e-2


@pytest.mark.parametrize(
    ("rule", "tree", "how"),
    [
        pytest.param(Match, "static", "coupled", marks=pytest.mark.slow),
        pytest.param(Rejection, "static", "wor", marks=pytest.mark.slow),
        pytest.param(Rejection, "chain", "iid", marks=pytest.mark.slow),
    ],
)
def test_sampled_sequences_follow_the_law(rule: type[AcceptRule], tree: str, how: How) -> None:
    found = sampled_law(engine(rule(), tree, how), PROMPT, length=3, draws=700)
    assert found.numbers["p_value"] > 1e-4
    assert found.numbers["control_p_value"] < 1e-6, "700 draws are too few to notice anything"


def text(made: Engine, prompt: tuple[int, ...] = PROMPT, sequence: int = 0) -> list[int]:
    return made.generate(prompt, sequence=sequence).tokens


def seeded(seed: int, rule: AcceptRule, how: How = "wor") -> Engine:
    target = toy()
    return Composition(
        target=target,
        drafter=lm_of(toy(blend=0.3), target),
        tree=TREES["static"](how),
        accept=rule,
        how=how,
        sampling=sampling_config(1.0),
        seed=seed,
    ).engine(24)


@pytest.mark.parametrize("rule", [Match(), Rejection()], ids=["match", "rejection"])
def test_seeds_decide_and_nothing_else_does(rule: AcceptRule) -> None:
    first = text(seeded(5, rule))
    torch.manual_seed(1)
    random.seed(1)
    torch.rand(3)
    assert text(seeded(5, rule)) == first
    assert len({tuple(text(seeded(seed, rule))) for seed in range(8)}) == 8
    assert text(seeded(5, rule), sequence=1) != first


@pytest.mark.parametrize("rule", [Match(), Rejection()], ids=["match", "rejection"])
def test_the_order_of_prompts_is_irrelevant(rule: AcceptRule) -> None:
    prompts = [(0, 1, 2), (3, 4, 5, 1), (2,)]
    made = seeded(0, rule)
    forwards = {n: text(made, prompts[n], n) for n in (0, 1, 2)}
    backwards = {n: text(made, prompts[n], n) for n in (2, 1, 0)}
    assert forwards == backwards


class Garbage(Drafter):
    """Logits that have nothing to do with the text."""

    traits = Traits(laws="logits")

    def begin(self, context: Context, out: TargetOutput) -> None:
        self._generator = torch.Generator().manual_seed(len(context))

    def expand(self, frontier: Frontier) -> list[Proposal]:
        shape = (len(frontier), 6)
        return [Proposal(logits=torch.randn(shape, generator=self._generator).double())]


DRAFTERS = {
    "ngram": lambda: drafter_of("ngram", "toy"),
    "near": lambda: drafter_of("noisy", "toy"),
    "far": lambda: drafter_of("bad", "toy"),
    "garbage": Garbage,
}


def golden(
    rule: AcceptRule, temperature: float, drafter: Drafter, tree: str, how: How
) -> list[int]:
    made = Composition(
        target=toy(),
        drafter=drafter,
        tree=tree_of(tree, how),
        accept=rule,
        how=how,
        sampling=sampling_config(temperature),
    )
    return text(made.engine(24))


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_wrong_draft_never_changes_the_text(drafter: str, tree: str) -> None:
    draws: list[How] = ["place"]
    if drafter != "ngram":
        draws += ["iid", "wor", "coupled"]
    for temperature in (0.0, 1.0):
        alone = golden(Match(), temperature, drafter_of("none", "toy"), "chain", "place")
        for how in draws:
            made = golden(Match(), temperature, DRAFTERS[drafter](), tree, how)
            assert made == alone
        if temperature == 0:
            assert golden(Rejection(), 0.0, DRAFTERS[drafter](), tree, "place") == alone
    broken = golden(Careless(), 0.0, DRAFTERS[drafter](), tree, "place")
    assert broken != golden(Match(), 0.0, drafter_of("none", "toy"), "chain", "place")


@pytest.mark.parametrize("rule", [Match(), Rejection()], ids=["match", "rejection"])
@pytest.mark.parametrize("temperature", [1e-300, 1e-6, 1e-3])
def test_a_temperature_near_zero_is_greedy(temperature: float, rule: AcceptRule) -> None:
    greedy = golden(Match(), 0.0, drafter_of("none", "toy"), "chain", "place")
    assert golden(rule, temperature, drafter_of("noisy", "toy"), "static", "wor") == greedy


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(value: float) -> None:
    target = small_table()
    target.table[:, 2, 1] = value
    made = Composition(target=target, sampling=sampling_config(1.0)).engine(40)
    with pytest.raises(ValueError, match="not finite"):
        made.generate(PROMPT)


def test_re_ranked_placements_are_exact_under_rejection() -> None:
    made = engine(Rejection(), "chain", "place")
    parts = Composition(
        target=made.components.target,
        drafter=made.components.drafter,
        tree=DynamicTree(depth=2, top_k=2, max_nodes=4, proposal="place"),
        accept=Rejection(),
        sampling=sampling_config(0.7),
    )
    assert error_of(parts.engine(), 4) < 1e-12
