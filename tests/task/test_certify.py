"""A certificate is true: exact combinations pass, broken and lossy ones never do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from specframe.accept.base import AcceptRule
from specframe.accept.match import Match
from specframe.compose.build import load, plan
from specframe.compose.overrides import compose
from specframe.drafter.none import NoDraft
from specframe.errors import IncompatibleComponents
from specframe.law.checked_streams import UsedCounters
from specframe.law.streams import Streams
from specframe.law.target_laws import Laws
from specframe.session.engine import Engine
from specframe.session.lanes import Lanes
from specframe.task import certify
from specframe.task.base import Job
from specframe.task.certify import text_checks as checks
from specframe.task.certify.broken import Careless, NoResidual
from specframe.task.certify.certificate import Certificate
from specframe.task.certify.coin_checks import no_coin_twice
from specframe.task.certify.enumeration import exact_law, max_error, sequence_law
from specframe.task.certify.lane_checks import answers_in_lanes
from specframe.task.certify.law_checks import chi_square
from specframe.task.certify.pass_checks import Swayed, row_company
from specframe.task.certify.reference import greedy_reference
from specframe.task.certify.reused_coins import BlockAgain, Stuck
from specframe.task.certify.text_checks import Check, Texts, greedy_text, not_run, with_rule
from specframe.testing import defaults
from specframe.types import Draft, Verdict
from tests.commands import job_of
from tests.turns import rest_slow

QUICK = ["task=certify", "target=toy", "task.draws=300", "task.length=3", "task.tokens=12"]
AXES = ("target", "drafter", "tree", "accept", "cache", "runtime")


def merged(words: Sequence[str], more: Sequence[str]) -> list[str]:
    """`more` on top of `words`, without the words that it replaces."""
    keys = {word.partition("=")[0] for word in more}
    kept = [w for w in words if not {w.partition("=")[0], w.split(".")[0]} & keys]
    return [*kept, *more]


def run(
    folder: Path, *words: str, rule: AcceptRule | None = None
) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """(exit code, certificate, checks by name), with another rule smuggled in everywhere."""

    def changed(engine: Engine) -> Engine:
        if rule is None:
            return engine
        return Engine(replace(engine.components, accept=rule), engine.settings)

    chosen = {word.partition("=")[0] for word in words}
    usual = {"drafter": "ngram", "tree": "chain"}
    more = [f"{axis}={word}" for axis, word in usual.items() if axis not in chosen]
    whole = merged(QUICK, [*more, *words])
    made = plan(compose(whole))
    job = Job(
        engine=changed(made.load()),
        config=made.config,
        output_dir=folder,
        prompt=None,
        prompts=None,
        rebuild=lambda more: changed(load(merged(whole, more))),
        batch_size=made.top["batch_size"],
    )
    code = made.bound["task"].make().run(job)
    held = json.loads((folder / "certificate.json").read_text())
    return code, held, {check["name"]: check for check in held["checks"]}


@pytest.mark.parametrize("dear", rest_slow([True, False]), ids=["drafts nothing", "drafts"])
def test_a_tree_by_costs_is_judged_by_what_it_drafts(dear: bool, tmp_path: Path) -> None:
    held = json.loads(Path(defaults.__file__).with_name("costs.json").read_text(encoding="utf-8"))
    if dear:
        held["costs"]["pass_ms"] = [[10.0, 9000.0]]
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps(held), encoding="utf-8")
    words = ("drafter=lm", "tree=auto", f"tree.costs={costs}", "sampling.temperature=1")
    code, held, found = run(tmp_path, *words, "accept=rejection")
    assert code == 0 and held["verdict"].startswith("exact: accept=rejection")
    for temperature in (0, 1):
        perfect = found[f"perfect drafter, T = {temperature}"]
        assert perfect["status"] == ("no claim" if dear else "holds"), perfect
    assert found["law by enumeration"]["numbers"]["max_error"] < 1e-12
    assert dear or found["law by enumeration"]["caught"] is True


def test_match_is_exact(tmp_path: Path) -> None:
    code, held, found = run(tmp_path, "drafter=lm", "tree=static")
    assert code == 0
    assert held["verdict"].startswith("exact: accept=match")
    texts = ("greedy text", "same-seed text", "rows of a pass", "no coin twice")
    for name in (*texts, "law by enumeration", "perfect drafter, T = 0"):
        assert found[name]["status"] == "holds", found[name]
        assert found[name]["caught"] is True
    assert found["law by enumeration"]["numbers"]["max_error"] < 1e-12
    assert found["perfect drafter, T = 1"]["status"] == "no claim"
    assert (tmp_path / "manifest.json").is_file()


@pytest.mark.parametrize("proposal", rest_slow(["wor", "iid"]))
def test_rejection_is_exact(tmp_path: Path, proposal: str) -> None:
    words = ("accept=rejection", "drafter=lm", "sampling.temperature=0.8")
    code, held, found = run(tmp_path, *words, f"tree.proposal={proposal}")
    assert code == 0
    assert held["verdict"].startswith("exact: accept=rejection")
    assert "same-seed text" not in found
    assert found["no coin twice"]["control"] == BlockAgain.title
    assert found["no coin twice"]["caught"] is True
    assert found["law by sampling"]["numbers"]["control_p_value"] < 1e-6
    assert found["perfect drafter, T = 0.8"]["status"] == "holds"


def test_a_target_that_is_swayed_by_far_rows_is_not_certified() -> None:
    engine = load(["target=toy", "drafter=none"])
    check = row_company(engine, [0, 1, 2])
    assert check.passed and check.caught and check.numbers["difference"] == 0.0
    parts = replace(engine.components, target=Swayed(engine.components.target))
    swayed = row_company(Engine(parts, engine.settings), [0, 1, 2])
    assert swayed.passed is False and swayed.numbers["difference"] > 0.1


def test_coupled_draws_are_certified_by_their_text(tmp_path: Path) -> None:
    words = ("drafter=lm", "tree.proposal=coupled", "sampling.temperature=0.7")
    code, held, found = run(tmp_path, *words)
    assert code == 0
    assert found["law by enumeration"]["status"] == "no claim"
    assert found["perfect drafter, T = 0.7"]["status"] == "holds"
    assert held["verdict"].startswith("exact")


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_drafters_without_laws_are_certified_too(tmp_path: Path, drafter: str) -> None:
    code, held, found = run(tmp_path, f"drafter={drafter}")
    assert code == 0
    assert found["no coin twice"]["caught"] is True
    assert held["verdict"].startswith("exact")
    assert found["law by enumeration"]["status"] == "holds"
    assert found["perfect drafter, T = 0"]["status"] == "no claim"


def test_a_lossy_rule_is_lossy_as_declared(tmp_path: Path) -> None:
    code, held, found = run(tmp_path, "accept=typical", "drafter=lm", "tree=static")
    assert code == 0
    assert held["verdict"].startswith("lossy, as declared")
    assert found["law by enumeration"]["status"] == "deviates"
    assert found["law by enumeration"]["numbers"]["total_variation"] > 0.01
    assert "exact" not in held["verdict"]


@pytest.mark.parametrize(
    ("rule", "words", "failing"),
    [
        (Careless(), ("drafter=lm",), "greedy text"),
        (
            NoResidual(),
            ("accept=rejection", "drafter=lm", "sampling.temperature=1.0"),
            "law by enumeration",
        ),
    ],
)
def test_a_broken_rule_that_calls_itself_lossless_is_exposed(
    tmp_path: Path, rule: AcceptRule, words: tuple[str, ...], failing: str
) -> None:
    code, held, found = run(tmp_path, *words, rule=rule)
    assert code == 1
    assert held["verdict"].startswith("NOT EXACT")
    assert failing in held["verdict"]
    assert found[failing]["status"] == "FAILS"


class BlockOnce(BlockAgain):
    """The block rule with coins that are keyed by the step."""

    def counters(self, position: int | torch.Tensor, level: int) -> tuple[int | torch.Tensor, ...]:
        return (position, level)


@pytest.mark.parametrize(("rule", "code"), rest_slow([(BlockAgain(), 1), (BlockOnce(), 0)]))
def test_a_rule_that_tosses_a_coin_again_is_exposed(
    tmp_path: Path, rule: AcceptRule, code: int
) -> None:
    """With independent coins both are exact; only one of them has such coins."""
    words = ("accept=rejection", "drafter=lm", "sampling.temperature=1.0")
    words = (*words, "task.length=4", "task.draws=100", "task.max_branches=500")
    got, held, found = run(tmp_path, *words, rule=rule)
    assert got == code
    law, coins = found["law by enumeration"], found["no coin twice"]
    if code:
        assert held["verdict"].startswith("NOT EXACT: accept=rejection calls itself lossless and")
        assert law["status"] == coins["status"] == "FAILS"
        assert law["finding"].startswith("the accept stream was asked twice")
        assert law["finding"].split(";")[0].endswith("at the counters (7, 0)")
        assert coins["finding"].startswith("the accept stream was asked twice")
    else:
        assert held["verdict"].startswith("exact")
        assert law["numbers"]["max_error"] < 1e-15
        assert coins["status"] == "holds"


def test_the_old_enumeration_could_not_tell_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UsedCounters, "use", lambda *_: None)
    words = ["drafter=lm", "tree=chain", "accept=rejection", "sampling.temperature=1"]
    small = ["target.vocab_size=3", "tree.depth=2", "tree.max_nodes=5"]
    model = ["drafter.model=toy_draft", "drafter.trust_vocabulary=true"]
    engine = with_rule(load(["target=toy", *words, *small, *model]), BlockAgain())
    prompt = [0, 1, 2, 0, 1]
    law, _ = sequence_law(engine, prompt, length=4, max_branches=1000)
    toy: Any = engine.components.target
    assert max_error(law, exact_law(toy, engine.sampling(5), prompt, length=4)) < 1e-15


def test_coins_are_checked_where_there_are_any() -> None:
    engine = load(["target=toy", "drafter=lm", "tree=chain", "sampling.temperature=1"])
    texts = Texts(prompts=[[0, 1, 2]], max_new_tokens=12, max_gap=0.0)
    assert no_coin_twice(engine, texts).caught
    found = no_coin_twice(with_rule(engine, Stuck(Match())), texts)
    assert found.passed is False
    assert "the target stream was asked twice" in found.finding
    short = no_coin_twice(engine, replace(texts, max_new_tokens=1))
    assert short.applies and not short.ran
    assert "before a second step" in short.finding


def test_a_control_that_is_not_caught_makes_the_certificate_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Harmless(Match):
        title: ClassVar[str] = "a rule that is right"

    monkeypatch.setattr(checks, "Careless", Harmless)
    code, held, _ = run(tmp_path, "drafter=lm")
    assert code == 1
    assert held["verdict"].startswith("no verdict")


def test_a_combination_that_the_toy_cannot_have_is_not_called_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Engine:
        raise IncompatibleComponents("this drafter needs what the toy lacks")

    monkeypatch.setattr(certify.Certify, "_toy", refuse)
    code, held, found = run(tmp_path, "drafter=ngram")
    assert code == 0
    assert held["verdict"].startswith("not certified in full")
    assert "needs what the toy lacks" in found["law by enumeration"]["finding"]


def test_a_drafter_that_stands_in_is_named(tmp_path: Path) -> None:
    made = plan(compose([*QUICK, "drafter=lm"]))
    engine = made.load()
    other = Engine(replace(engine.components, drafter=NoDraft()), engine.settings)
    config = {**made.config, "drafter": {"name": "eagle"}}
    job = job_of(other, tmp_path, config=config, rebuild=lambda more: engine)
    task = made.bound["task"].make()
    check = task._enumerated(job)
    assert check.stand_in == "drafter=lm in place of drafter=eagle"
    verdict = certificate(ok(), check).verdict
    assert verdict == (
        "exact: accept=x passed every check that applies to it; law by enumeration: judged for "
        "drafter=lm in place of drafter=eagle, which target=toy cannot have"
    )
    assert "drafter=eagle" in certificate(replace(check, passed=False)).verdict
    assert "drafter=eagle" not in certificate(ok()).verdict


@pytest.mark.parametrize(
    ("words", "rule", "branches"),
    rest_slow(
        [
            (("drafter=router",), "match", 27),
            (("drafter=cascade", "drafter.length=2"), "match", 216),
            (("drafter=router", "drafter.mode=merge"), "rejection", 39),
        ]
    ),
)
def test_a_drafter_of_several_is_judged_itself(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    rule: str,
    branches: int,
) -> None:
    """On target=random, whose models are none of the toy's."""
    judged = []
    whole = certify.enumerated_law

    def noted(engine: Engine, *args: Any, **more: Any) -> Check:
        judged.append(type(engine.components.drafter).__name__)
        return whole(engine, *args, **more)

    monkeypatch.setattr(certify, "enumerated_law", noted)
    target = ("target=random", "target.layers=1", "target.hidden=16", "target.heads=1")
    target += ("target.kv_heads=1", "target.intermediate=16", "target.dtype=float64")
    models = [f"{key}=random" for key in ("drafter.lm.model", "drafter.model")]
    model = models["cascade" in words[0]]
    code, held, found = run(
        tmp_path, *target, *words, model, f"accept={rule}", "sampling.temperature=1"
    )
    assert code == 0
    assert held["verdict"] == (
        f"exact: accept={rule} with this combination passed every check that applies to it"
    )
    assert judged == [words[0].partition("=")[2].capitalize()]
    law = found["law by enumeration"]
    assert law["status"] == "holds"
    assert law["stand_in"] == ""
    assert law["numbers"]["branches"] == branches


@pytest.mark.slow
def test_a_cascade_with_draws_is_sampled_itself(tmp_path: Path) -> None:
    words = ("drafter=cascade", "accept=rejection", "sampling.temperature=1", "task.draws=100")
    code, held, found = run(tmp_path, *words)
    assert code == 0
    assert held["verdict"].startswith("exact: accept=rejection with this combination")
    assert found["law by enumeration"]["status"] == "no claim"
    assert found["law by sampling"]["status"] == "holds"


class Slipping(Match):
    """Wrong once, late in the text."""

    def decide(self, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        verdict = super().decide(draft, laws, rng)
        if laws.position < 20:
            return verdict
        tokens = torch.where(verdict.tokens >= 0, (verdict.tokens + 1) % 6, -1)
        return Verdict(path=verdict.path, tokens=tokens, count=verdict.count)


def toy_engine(*words: str) -> Engine:
    return load(["target=toy", "drafter=none", *words])


def test_the_first_divergence_is_placed_and_measured() -> None:
    made = toy_engine()
    engine = Engine(replace(made.components, accept=Slipping()), made.settings)
    texts = Texts(prompts=[[0, 1, 2]], max_new_tokens=24, max_gap=0.0)
    found = greedy_text(engine, texts)
    (divergence,) = found.numbers["divergences"]
    assert divergence["place"] == 18  # 3 prompt tokens, and the law at position 20 gives the 18th
    assert divergence["gap"] > 0


@pytest.mark.parametrize(("gap", "passed"), [(1e9, None), (0.0, False)])
def test_half_precision_is_reported_never_called_equal(gap: float, passed: bool | None) -> None:
    made = toy_engine()
    made.components.target.dtype, kept = torch.bfloat16, made.components.target.dtype
    try:
        texts = Texts(prompts=[[0, 1, 2]], max_new_tokens=24, max_gap=gap)
        right = greedy_text(made, texts)
        assert right.passed is None
        assert "promises no equality" in right.finding
        wrong = greedy_text(
            Engine(replace(made.components, accept=Slipping()), made.settings), texts
        )
        assert wrong.passed is passed
        assert "logit gap" in wrong.finding
    finally:
        made.components.target.dtype = kept


def test_end_tokens_and_stop_strings_are_no_divergence() -> None:
    engine = load(["target=toy", "drafter=ngram", "stop.eos=[0,4]"])
    prompts = [[0, 1, 2], [5], [3, 3]]
    found = greedy_text(engine, Texts(prompts=prompts, max_new_tokens=24, max_gap=0.0))
    assert found.passed
    assert found.numbers["tokens"] < 72


def certificate(*found: Check, lossless: bool = True) -> Certificate:
    return Certificate(words=dict.fromkeys(AXES, "x"), lossless=lossless, checks=found)


def ok(**changes: Any) -> Check:
    return Check(**{"name": "a", "passed": True, "finding": "", "caught": True, **changes})


@pytest.mark.parametrize(
    ("held", "words", "code"),
    [
        (certificate(ok()), "exact", 0),
        (certificate(ok(), not_run("b", "why")), "exact", 0),
        (certificate(ok(), not_run("b", "why", applies=True)), "not certified in full", 0),
        (certificate(ok(), ok(passed=None)), "not certified", 0),
        (certificate(ok(), ok(passed=False)), "NOT EXACT", 1),
        (certificate(ok(), ok(caught=False)), "no verdict", 1),
        (certificate(ok(passed=False), ok(caught=False)), "NOT EXACT", 1),
        (certificate(ok(), ok(passed=False, caught=False)), "no verdict", 1),
        (certificate(not_run("b", "why")), "not certified", 0),
        (certificate(ok(), lossless=False), "lossy, as declared", 0),
        (certificate(ok(passed=False), lossless=False), "lossy, as declared", 0),
        (certificate(ok(caught=False), lossless=False), "no verdict", 1),
    ],
)
def test_verdicts_in_words(held: Certificate, words: str, code: int) -> None:
    assert held.verdict.startswith(words)
    assert held.exit_code == code


def test_what_is_piped_carries_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    certificate(ok(finding="[red]no[/red]"), ok(passed=False)).show()
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("verdict: NOT EXACT")
    assert "[red]no[/red]" in out
    assert all(character.isprintable() or character == "\n" for character in out)


def test_json_holds_no_infinity(tmp_path: Path) -> None:
    certificate(ok(numbers={"gap": float("inf")})).write(tmp_path / "certificate.json")
    held = json.loads((tmp_path / "certificate.json").read_text(), parse_constant=_refuse)
    assert held["checks"][0]["numbers"]["gap"] is None


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def _counts(probs: dict[tuple[int, ...], float], scale: int) -> Counter[tuple[int, ...]]:
    return Counter({tokens: round(p * scale) for tokens, p in probs.items()})


def test_chi_square_sees_shifts_impossible_texts_and_rare_cells() -> None:
    law = {(0,): 0.5, (1,): 0.3, (2,): 0.199, (3,): 0.001}
    assert chi_square(_counts(law, 1000), law) > 0.9
    shifted = {(0,): 0.4, (1,): 0.4, (2,): 0.199, (3,): 0.001}
    assert chi_square(_counts(shifted, 1000), law) < 1e-6
    assert chi_square(_counts({**law, (4,): 0.001}, 1000), law) == 0.0
    assert chi_square(Counter({(0,): 500}), {(0,): 1.0}) == 1.0


def test_oracle_remembers_what_it_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from specframe.task.certify import reference as oracle

    calls = []
    whole: Callable[..., Any] = oracle.full_forward

    def counted(*args: Any) -> Any:
        calls.append(args)
        return whole(*args)

    monkeypatch.setattr(oracle, "full_forward", counted)
    answer = oracle.greedy_reference(toy_engine(), 6)
    assert answer([0, 1], 0) == answer([0, 1], 0)
    assert len(calls) == 6


def test_the_reference_is_of_its_seed_and_its_sequence() -> None:
    texts = set()
    for seed in (0, 7):
        engine = load(["target=toy", "drafter=none", "sampling.temperature=1", f"seed={seed}"])
        reference = greedy_reference(engine, 12)
        for sequence in (0, 3):
            text = engine.generate([0, 1, 2], sequence=sequence, max_new_tokens=12).tokens
            assert reference([0, 1, 2], sequence) == text
            texts.add(tuple(text))
    assert len(texts) == 4


@pytest.mark.parametrize("words", rest_slow([[("accept=rejection",)], [("accept=match",)]]))
def test_texts_in_lanes_are_those_alone(words: list[tuple[str, ...]], tmp_path: Path) -> None:
    rule = words[0]
    code, _, found = run(tmp_path, "drafter=lm", "tree=static", *rule, "batch_size=3")
    check = found["answers in lanes"]
    assert code == 0
    assert (check["status"], check["caught"]) == ("holds", True)
    assert check["numbers"] == {"texts": 7, "num_same_text": 7, "batch_size": 3}


def test_a_lane_with_anothers_noise_is_not_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load(["target=toy", "drafter=none", "sampling.temperature=1"])
    texts = Texts(prompts=[[0, 1, 2], [3]], max_new_tokens=12, max_gap=1.0)
    assert answers_in_lanes(engine, texts, 2).passed is True
    begin = Lanes._begin
    monkeypatch.setattr(
        Lanes,
        "_begin",
        lambda self, lane, request: begin(self, lane, replace(request, sequence=lane)),
    )
    found = answers_in_lanes(engine, texts, 2)
    assert found.passed is False
    assert "of 5 texts in 2 lanes are what they are alone" in found.finding
