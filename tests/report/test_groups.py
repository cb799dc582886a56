"""Configurations: seeds together, everything else apart, named by what differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specframe.measure.bootstrap import Bootstrap
from specframe.report.comparable import comparable_sets, conditions_of_sets, ranked
from specframe.report.conditions import apart_sentence
from specframe.report.groups import Group, differences, group_runs
from specframe.report.paired import compare, compare_pair, signed_rank
from specframe.report.reasons import versus, why
from specframe.report.runs import find
from tests.report.folders import Prompt, benchmark

BOOTSTRAP = Bootstrap(resamples=200, confidence=0.95)
SLOW: list[Prompt] = [(20, 10, 2.0 + i / 50, 1.5) for i in range(8)]


def groups_of(folder: Path, *runs: tuple[list[Prompt], dict[str, Any]]) -> list[Group]:
    for number, (prompts, changes) in enumerate(runs):
        benchmark(folder / str(number), prompts, **changes)
    return group_runs(find([folder], bootstrap=BOOTSTRAP).runs, bootstrap=BOOTSTRAP)


def test_seeds_are_one_configuration(tmp_path: Path) -> None:
    faster: list[Prompt] = [(20, 10, 1.0, 1.5)] * 8
    one, other = groups_of(
        tmp_path, (SLOW, {"seed": 0}), (faster, {"seed": 1}), (SLOW, {"tree__depth": 3})
    )
    assert [len(one.runs), len(other.runs)] == [2, 1]
    assert one.numbers.num_prompts == 8
    mine, base = sum(x[2] for x in (*SLOW, *faster)), 1.5 * 16
    assert one.numbers.speedup == pytest.approx(base / mine)
    low, high = one.spread("speedup") or (0, 0)
    assert (low, high) == pytest.approx((12 / sum(x[2] for x in SLOW), 1.5))
    assert other.spread("speedup") is None


def test_the_same_seed_twice_stays_apart(tmp_path: Path) -> None:
    one, other = groups_of(tmp_path, (SLOW, {}), (SLOW, {}))
    assert one.label != other.label
    assert one.label.startswith("lm chain (")


def test_names_say_what_differs(tmp_path: Path) -> None:
    made = groups_of(
        tmp_path,
        (SLOW, {}),
        (SLOW, {"tree__depth": 4}),
        (SLOW, {"accept": {"name": "typical", "epsilon": 0.1}, "max_new_tokens": 9}),
        (SLOW, {"drafter": {"name": "none"}, "tree__depth": 9}),
    )
    assert [one.label for one in made] == [
        "lm chain match tree.depth=2",
        "lm chain match tree.depth=4",
        "lm chain typical tree.depth=2",
        "none",
    ]
    assert made[2].around == "max_new_tokens=9"
    assert [one.lossless for one in made] == [True, True, False, True]
    assert ("max_new_tokens", 8, 9) in differences(made[0], made[2])


def test_plain_decoding_run_apart_is_a_measure_but_no_speed(tmp_path: Path) -> None:
    benchmark(tmp_path / "a", [(20, 10, 4.0, 0.0)] * 6, baseline=False)
    plain = {"drafter": {"name": "none"}}
    benchmark(tmp_path / "b", [(20, 20, 2.0, 0.0)] * 6, baseline=False, **plain)
    lm, none = group_runs(find([tmp_path], bootstrap=BOOTSTRAP).runs, bootstrap=BOOTSTRAP)
    assert lm.plain_is_separate and not none.plain_is_separate
    assert lm.numbers.pass_cost == pytest.approx(4)
    assert lm.numbers.speedup is None
    assert "not interleaved" in why(lm)[0]


def test_the_reason_holds_the_measured_numbers(tmp_path: Path) -> None:
    (one,) = groups_of(tmp_path, ([(20, 10, 2.0, 1.5)] * 6, {}))
    first, *rest = why(one)
    assert first.startswith("2.00 tokens a pass, but a pass costs 2.67 plain steps: 0.75 times")
    assert "3.0 rows a pass to keep 1.00 drafted tokens (50 %)" in rest[0]
    assert "the first level is right 100 % of the time" in rest[0]
    assert "would have to emit 2.67 tokens a pass" in rest[1]


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ((20, 5, 1.0, 1.5), "the longer acceptance decides"),
        ((20, 10, 0.5, 1.5), "the cheaper pass decides"),
        ((20, 8, 0.5, 1.5), "both help, the cost of a pass more"),
        ((20, 4, 0.7, 1.5), "both help, acceptance more"),
        ((20, 10, 2.0, 1.5), "no difference to speak of"),
        ((20, 5, 2.0, 1.5), "the two balance"),
        ((20, 10, 4.0, 1.5), "the dearer pass decides"),
        ((20, 20, 4.0, 1.5), "the shorter acceptance decides"),
    ],
)
def test_what_decides(prompt: Prompt, reason: str, tmp_path: Path) -> None:
    one, other = groups_of(
        tmp_path, ([prompt] * 2, {}), ([(20, 10, 2.0, 1.5)] * 2, {"tree__depth": 3})
    )
    assert reason in versus(one, other)


def test_pairs_of_prompts(tmp_path: Path) -> None:
    quicker: list[Prompt] = [(20, 8, seconds / 1.25, plain) for _, _, seconds, plain in SLOW]
    made = groups_of(tmp_path, (SLOW, {}), (quicker, {"tree__depth": 3}))
    (found,) = compare(made, bootstrap=BOOTSTRAP)
    assert (found.faster, found.slower) == (made[1], made[0])
    assert found.ratio == pytest.approx(1.25)
    assert (found.num_wins, found.num_prompts) == (8, 8)
    assert found.p_value == pytest.approx(2 / 2**8)
    assert found.p_adjusted == found.p_value
    assert found.interleaved


def test_a_slower_machine_cancels(tmp_path: Path) -> None:
    loaded: list[Prompt] = [(t, n, 3 * seconds, 3 * plain) for t, n, seconds, plain in SLOW]
    made = groups_of(tmp_path, (SLOW, {}), (loaded, {"tree__depth": 3}))
    (found,) = compare(made, bootstrap=BOOTSTRAP)
    assert found.ratio == pytest.approx(1)


def test_a_killed_run_is_paired_over_the_prompts_that_it_answered(tmp_path: Path) -> None:
    benchmark(tmp_path / "a", SLOW)
    killed = benchmark(tmp_path / "b", SLOW[:3], tree__depth=3) / "manifest.json"
    killed.write_text(killed.read_text("utf-8").replace("finished", "interrupted"), "utf-8")
    made = group_runs(find([tmp_path], bootstrap=BOOTSTRAP).runs, bootstrap=BOOTSTRAP)
    (found,) = compare(made, bootstrap=BOOTSTRAP)
    assert found.num_prompts == 3
    assert found.ratio == pytest.approx(1)
    assert "no difference to speak of" in found.reason
    assert found.p_value is None


FASTER: list[Prompt] = [(20, 8, seconds / 2, plain) for _, _, seconds, plain in SLOW]


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("target.name", {"target": {"name": "random"}}),
        ("sampling.temperature", {"sampling__temperature": 1.0}),
        ("max_new_tokens", {"max_new_tokens": 16}),
        ("seed", {"seed": 1}),
        ("runtime.name", {"runtime": {"name": "packed"}}),
        ("stop.strings", {"stop": {"strings": ["x"]}}),
        ("raw", {"raw": True}),
        ("cache.name", {"cache": {"name": "static"}}),
    ],
)
def test_what_differs_around_the_method_is_never_compared(
    key: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    made = groups_of(tmp_path, (SLOW, {}), (FASTER, {"tree__depth": 3, **changes}))
    assert len(made) == 2
    assert compare(made, bootstrap=BOOTSTRAP) == []
    assert compare_pair(*made, bootstrap=BOOTSTRAP) is None
    sets = comparable_sets(made)
    assert [len(each) for each in sets] == [1, 1]
    sentence = apart_sentence(conditions_of_sets(sets))
    assert sentence.startswith("These runs form 2 groups, between which nothing is compared")
    assert f"differ in {key} (" in sentence


@pytest.mark.parametrize(
    ("key", "entry", "value"),
    [
        ("threads", ("hardware", "torch_threads"), 2),
        ("machine", ("hardware", "cpu"), "another processor"),
        ("dtype", ("target", "dtype"), "bfloat16"),
        ("weights", ("target", "weights"), {"sha256": "ab"}),
        ("torch", ("packages", "torch"), "2.14.0"),
    ],
)
def test_what_the_manifest_says_of_the_machine_is_never_compared(
    key: str, entry: tuple[str, str], value: Any, tmp_path: Path
) -> None:
    benchmark(tmp_path / "a", SLOW)
    path = benchmark(tmp_path / "b", FASTER, tree__depth=3) / "manifest.json"
    manifest = json.loads(path.read_text("utf-8"))
    manifest.setdefault(entry[0], {})[entry[1]] = value
    path.write_text(json.dumps(manifest), "utf-8")
    made = group_runs(find([tmp_path], bootstrap=BOOTSTRAP).runs, bootstrap=BOOTSTRAP)
    assert compare(made, bootstrap=BOOTSTRAP) == []
    assert f"differ in {key} (" in apart_sentence([group.conditions for group in made])


def test_other_prompts_are_never_compared(tmp_path: Path) -> None:
    made = groups_of(tmp_path, (SLOW, {}), (SLOW[:3], {"tree__depth": 3}))
    assert compare(made, bootstrap=BOOTSTRAP) == []
    assert "differ in prompts (" in apart_sentence([group.conditions for group in made])


def test_pairs_are_of_the_seeds_that_both_have(tmp_path: Path) -> None:
    slower: list[Prompt] = [(20, 10, 3 * seconds, plain) for _, _, seconds, plain in SLOW]
    made = groups_of(
        tmp_path, (SLOW, {}), (slower, {"seed": 1}), (FASTER, {"tree__depth": 3, "seed": 0})
    )
    assert len(comparable_sets(made)) == 1
    (found,) = compare(made, bootstrap=BOOTSTRAP)
    assert found.ratio == pytest.approx(2), "seed 1 was three times slower and has no partner"
    assert "together 2.00 over all tokens" in found.reason


def test_threads_make_configurations_of_their_own(tmp_path: Path) -> None:
    benchmark(tmp_path / "a", SLOW)
    path = benchmark(tmp_path / "b", SLOW, seed=1) / "manifest.json"
    text = path.read_text("utf-8")
    path.write_text(text.replace('"torch_threads": 1', '"torch_threads": 2'), "utf-8")
    runs = find([tmp_path], bootstrap=BOOTSTRAP).runs
    assert len(group_runs(runs, bootstrap=BOOTSTRAP)) == 2


def test_plain_decoding_of_another_length_is_no_measure(tmp_path: Path) -> None:
    benchmark(tmp_path / "a", [(20, 10, 4.0, 0.0)] * 6, baseline=False)
    plain = {"drafter": {"name": "none"}, "seed": 5}
    benchmark(tmp_path / "b", [(20, 20, 2.0, 0.0)] * 6, baseline=False, **plain)
    lm, _ = group_runs(find([tmp_path], bootstrap=BOOTSTRAP).runs, bootstrap=BOOTSTRAP)
    assert lm.numbers.plain_ms is None and not lm.plain_is_separate


def test_the_fastest_comes_first_in_its_set(tmp_path: Path) -> None:
    made = ranked(
        groups_of(
            tmp_path,
            (SLOW, {}),
            (FASTER, {"max_new_tokens": 9}),
            (FASTER, {"tree__depth": 3}),
            ([(20, 20, 9.0, 0.0)] * 8, {"drafter": {"name": "none"}}),
        )
    )
    assert [group.number for group in made] == [1, 2, 3, 4]
    depths = [group.facts.get("tree.depth") for group in made]
    assert depths == [3, None, 2, 2], "plain decoding is 1 between faster and slower ones"
    assert made[3].facts["max_new_tokens"] == 9


def test_many_tests_are_paid_for(tmp_path: Path) -> None:
    runs = [
        ([(20, 10, seconds * (1 + depth / 4), plain) for _, _, seconds, plain in SLOW], depth)
        for depth in range(3)
    ]
    made = groups_of(tmp_path, *((list(held), {"tree__depth": depth}) for held, depth in runs))
    found = compare(made, bootstrap=BOOTSTRAP)
    assert len(found) == 3
    assert [one.p_adjusted for one in found] == pytest.approx([3 * 2 / 2**8] * 3)


def test_no_test_of_too_few_or_of_nothing() -> None:
    assert signed_rank([1.0] * 5) is None
    assert signed_rank([0.0] * 9) is None
    assert signed_rank([0.1 * i for i in range(1, 10)]) == pytest.approx(2 / 2**9)
