"""task=replay agrees step by step with real runs, estimates what it must, refuses the rest."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from specframe import load
from specframe.compose import run_task
from specframe.compose.build import plan
from specframe.compose.overrides import compose
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.target.base import TARGETS
from specframe.task.replay import Replay
from specframe.task.replay.hindsight import (
    best_expected_tokens,
    expected_tokens,
    fewest_steps,
    match_steps,
)
from specframe.task.replay.recorded import read_record
from tests.heads.small_heads import words_for
from tests.trace.test_full import PROMPTS, TOY, record
from tests.turns import in_turn

WIDE = ("tree=dynamic", "tree.top_k=4", "tree.depth=4", "tree.max_nodes=24")
POLICIES = [
    ("tree=dynamic", "tree.top_k=4", "tree.depth=4", "tree.max_nodes=24"),
    ("tree=dynamic", "tree.top_k=4", "tree.depth=3", "tree.max_nodes=7"),
    ("tree=dynamic", "tree.top_k=3", "tree.depth=4", "tree.max_nodes=12"),
    ("tree=dynamic", "tree.top_k=2", "tree.depth=2", "tree.max_nodes=3"),
    ("tree=dynamic", "tree.top_k=1", "tree.depth=4", "tree.max_nodes=5"),
    ("tree=chain", "tree.depth=4", "tree.max_nodes=24"),
    ("tree=chain", "tree.depth=3", "tree.max_nodes=3"),
    ("tree=static", "tree.depth=2", "tree.max_nodes=6", "tree.paths=[[0],[1],[0,0],[0,1],[1,0]]"),
]
DRAFTERS = ("lm", "ngram", "suffix", "medusa", "eagle")
Steps = list[tuple[int, int, int]]


def replayed(folder: Path, *words: str) -> tuple[list[Steps], Any]:
    """Steps of each answer, and the record."""
    held = compose(["task=replay", f"task.trace={folder}", *words])
    made = plan(held)
    task: Any = made.bound["task"].make()
    task.check(made.config)
    found = read_record(folder)
    (policy,) = task._policies(made.config, found)
    return [list(match_steps(answer, policy)) for answer in found.answers], found


def real(words: Sequence[str], prompts: Sequence[Any] = PROMPTS) -> list[Steps]:
    """(tokens, accepted, drafted) of every step of the run itself."""
    engine, found = load([*words]), []
    for prompt in prompts:
        loop, steps = engine.decoding(), []
        loop.begin(engine.encode(prompt))
        while loop.finish_reason is None:
            step = loop.step()
            live = int(step.draft.alive.sum()) - 1
            steps.append((len(step.tokens), step.num_accepted, live))
        found.append(steps)
    return found


@pytest.mark.parametrize(
    ("drafter", "temperature"), in_turn([(word,) for word in DRAFTERS], (0.0, 0.7, 1.5), every=2)
)
def test_it_agrees_with_real_runs(tmp_path: Path, drafter: str, temperature: float) -> None:
    head = words_for(drafter, "toy", tmp_path / "head")
    shared = (f"drafter={drafter}", *head, f"sampling.temperature={temperature}", "seed=2")
    shared = (*shared, "max_new_tokens=24")
    folder = record(tmp_path / "run", *shared, *WIDE)
    seen = set()
    for policy in POLICIES:
        steps, _ = replayed(folder, *policy)
        assert steps == real([*TOY, *shared, *policy]), policy
        seen.add(json.dumps(steps))
    assert len(seen) > 2, "the policies differ"


@pytest.mark.parametrize("mode", ["pick", "merge"])
def test_several_sources(tmp_path: Path, mode: str) -> None:
    """Smaller trees may leave the record (two sources can offer one token, and a chain follows one
    source alone), which is told, never guessed."""
    shared = ("drafter=router", f"drafter.mode={mode}", "sampling.temperature=0.7")
    folder = record(tmp_path, *shared, *WIDE, "max_new_tokens=20")
    told, agreed = [], []
    for policy in POLICIES:
        try:
            steps, _ = replayed(folder, *policy)
        except IncompatibleComponents as error:
            told.append(str(error))
            continue
        assert steps == real([*TOY, *shared, *policy, "max_new_tokens=20"]), policy
        agreed.append(policy)
    assert all("were not recorded" in text for text in told)
    assert POLICIES[0] in agreed
    assert POLICIES[1] in agreed


def test_stops_penalties_and_a_full_cache(tmp_path: Path) -> None:
    shared = (
        *("drafter=lm", "stop.eos=[3]", "max_new_tokens=40", "sampling.repetition_penalty=1.3"),
        *("sampling.temperature=1", "cache=static", "cache.capacity=30"),
    )
    folder = record(tmp_path, *shared, *WIDE)
    for policy in POLICIES:
        steps, found = replayed(folder, *policy)
        assert steps == real([*TOY, *shared, *policy]), policy
    assert found.answers[0].capacity == 30


def test_static_and_chain_records(tmp_path: Path) -> None:
    shared = ("drafter=lm", "sampling.temperature=0.7")
    paths = "tree.paths=[[0],[1],[2],[0,0],[0,1],[1,0],[0,0,0]]"
    folder = record(
        tmp_path / "s", *shared, "tree=static", paths, "tree.depth=3", "tree.max_nodes=8"
    )
    for policy in (
        ("tree=static", paths, "tree.depth=2", "tree.max_nodes=5"),
        ("tree=static", "tree.paths=[[0],[1],[1,0]]", "tree.depth=3", "tree.max_nodes=8"),
        ("tree=chain", "tree.depth=3", "tree.max_nodes=8"),
    ):
        assert replayed(folder, *policy)[0] == real([*TOY, *shared, *policy]), policy
    for policy, why in (
        (("tree=static", "tree.paths=[[0],[2],[2,0]]", "tree.depth=3"), r"path \[2, 0\] is not in"),
        (("tree=dynamic",), "made with tree=static"),
        (("tree=chain", "tree.depth=4"), r"tree\.depth=4: the record has 3"),
    ):
        with pytest.raises(IncompatibleComponents, match=why):
            replayed(folder, *policy)
    folder = record(tmp_path / "c", *shared, "tree=chain", "tree.depth=4")
    policy = ("tree=chain", "tree.depth=2")
    assert replayed(folder, *policy)[0] == real([*TOY, *shared, *policy])
    with pytest.raises(IncompatibleComponents, match="made with tree=chain"):
        replayed(folder, "tree=dynamic")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("tree=dynamic", "tree.top_k=5", "tree.depth=4"), r"tree\.top_k=5: the record has 4"),
        (("tree=dynamic", "tree.top_k=4", "tree.depth=5"), r"tree\.depth=5: the record has 4"),
        (
            ("tree=dynamic", "tree.top_k=4", "tree.depth=4", "tree.max_nodes=25"),
            r"tree\.max_nodes=25: the record has 24.*record anew",
        ),
        (("tree=native", "tree.depth=4"), r"tree=native: .*use tree=chain"),
        (("tree=auto",), r"tree=auto: .*use tree=chain"),
        (
            ("tree=static", "tree.paths=[[0],[5]]", "tree.depth=4"),
            r"asks for children that were not recorded",
        ),
    ],
)
def test_wider_trees_are_refused(tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    folder = record(tmp_path, "drafter=lm", *WIDE)
    with pytest.raises(IncompatibleComponents, match=why):
        replayed(folder, *words)


def test_half_a_file_is_refused_with_its_name(tmp_path: Path) -> None:
    folder = record(tmp_path, "drafter=lm", *WIDE)
    file = folder / "positions" / "00000.npz"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(ConfigError, match=r"00000\.npz: not positions of trace=full"):
        replayed(folder, *WIDE)


def test_drawn_children_are_refused(tmp_path: Path) -> None:
    drawn = ("tree=chain", "accept=rejection", "sampling.temperature=1")
    folder = record(tmp_path, "drafter=lm", *drawn)
    for rule in ("match", "rejection"):
        with pytest.raises(IncompatibleComponents, match=r"drawn \(tree\.proposal=wor\)"):
            replayed(folder, "tree=chain", f"accept={rule}")


def test_coupled_children_are_not(tmp_path: Path) -> None:
    shared = ("drafter=lm", "tree.proposal=coupled", "sampling.temperature=1")
    folder = record(tmp_path, *shared, *WIDE)
    for policy in POLICIES[:6]:
        assert replayed(folder, *policy)[0] == real([*TOY, *shared, *policy]), policy
    with pytest.raises(IncompatibleComponents, match="only placed children"):
        replayed(folder, *WIDE, "accept=rejection")


def test_a_folder_without_a_record(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no answers\.jsonl there; give the folder"):
        replayed(tmp_path)
    with pytest.raises(ConfigError, match="no answer of two tokens"):
        replayed(record(tmp_path, "drafter=lm", "max_new_tokens=1"))


def test_the_whole_task_loads_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = record(tmp_path / "record", "drafter=lm", *WIDE)
    capsys.readouterr()

    def never(self: Any, **kwargs: Any) -> None:
        raise AssertionError("a model was loaded")

    for name in TARGETS.names():
        monkeypatch.setattr(TARGETS.get(name), "__init__", never)
    words = ["task=replay", f"task.trace={folder}", *WIDE, "task.max_nodes=[2,4,8,24]"]
    out = tmp_path / "out"
    run_task.run(compose([*words, "task.depth=[1,4]"]), output_dir=out)
    held = json.loads((out / "replay.json").read_text())
    rows = held["rows"]
    budgets = [(row["depth"], row["max_nodes"]) for row in rows]
    assert budgets == list(itertools.product((1, 4), (2, 4, 8, 24)))
    for row in rows:
        assert not row["estimate"]
        low, high = row["interval"]
        assert low <= row["acceptance_length"] <= high
        assert row["acceptance_length"] <= row["oracle_acceptance_length"] <= row["max_nodes"]
        assert row["acceptance_length"] == 30 / row["num_steps"]
    best = {row["max_nodes"]: row["oracle_acceptance_length"] for row in rows}
    assert sorted(best.values()) == list(best.values())
    lines = (out / "replay.csv").read_text().splitlines()
    assert len(lines) == 9
    assert lines[0].startswith("tree,accept,depth,max_nodes,estimate,num_prompts,acceptance_length")
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["state"], "target" in manifest) == ("finished", False)
    shown = capsys.readouterr().out
    assert "exact over 30 tokens of 2 answers" in shown
    assert "~" not in shown


def test_rejection_is_the_expectation_over_placed_children(tmp_path: Path) -> None:
    """By hand: the sum over the tree's paths of the product of the target's probabilities."""
    shared = ("drafter=lm", "sampling.temperature=0.8")
    folder = record(tmp_path, *shared, *WIDE)
    target: Any = load([*TOY, "drafter=none"]).components.target
    (policy,) = Replay(
        trace=str(folder), max_nodes=[9], depth=None, resamples=100, confidence=0.9
    )._policies(plan(compose(["task=replay", f"task.trace={folder}", *WIDE])).config, None)  # type: ignore[arg-type]
    for place in read_record(folder).answers[0].positions:
        draft, total = place.draft(policy), 1.0
        for row in range(1, draft.num_rows):
            path, node = [], row
            while node > 0:
                path.insert(0, int(draft.tokens[node]))
                node = int(draft.parents[node])
            total += math.prod(
                (target.law([*place.context, *path[:i]]) / 0.8).softmax(-1)[token].item()
                for i, token in enumerate(path)
            )
        assert math.isclose(expected_tokens(place, draft), total, rel_tol=1e-9)


@pytest.mark.parametrize(
    ("rule", "temperature"),
    in_turn([("match",), ("rejection",), ("typical",)], (1.0, 0.0), every=2),
)
def test_no_tree_does_better_than_the_oracle(tmp_path: Path, rule: str, temperature: float) -> None:
    shared = ("drafter=lm", f"sampling.temperature={temperature}", "max_new_tokens=24")
    folder = record(tmp_path / "record", *shared, *WIDE)
    words = ["task=replay", f"task.trace={folder}", f"accept={rule}"]
    gaps = []
    for policy in POLICIES:
        run_task.run(compose([*words, *policy]), output_dir=tmp_path / "out")
        (row,) = json.loads((tmp_path / "out" / "replay.json").read_text())["rows"]
        gaps.append(row["oracle_acceptance_length"] - row["acceptance_length"])
    assert min(gaps) > -1e-9
    assert max(gaps) > 0.1, "a bound that cannot be missed is none"


def test_the_likeliest_rows_are_the_best_tree(tmp_path: Path) -> None:
    """Against every sub-tree of the recorded rows."""
    folder = record(
        tmp_path,
        "drafter=lm",
        "sampling.temperature=1",
        *WIDE[:2],
        "tree.depth=3",
        "tree.max_nodes=9",
    )
    place = read_record(folder).answers[0].positions[0]
    probs = {path: place.recorded_laws.probs[row] for path, row in place.laws.items()}

    def reach(path: tuple[int, ...]) -> float:
        return math.prod(float(probs[path[:k]]) for k in range(1, len(path) + 1))

    for rows in range(1, 10):
        trees = [
            {(), *chosen}
            for chosen in itertools.combinations([path for path in probs if path], rows - 1)
        ]
        whole = [tree for tree in trees if all(path[:-1] in tree for path in tree)]
        best = max(sum(map(reach, tree)) for tree in whole)
        assert math.isclose(best_expected_tokens(place, rows), best, rel_tol=1e-12)


@pytest.mark.slow
def test_estimates_say_so_and_are_near(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = ["".join("abcdef"[(i * k + k) % 6] for i in range(5)) for k in range(1, 13)]
    shared = ("drafter=lm", "sampling.temperature=1", "max_new_tokens=60")
    folder = record(tmp_path / "record", *shared, *WIDE, "trace.top_k=6", prompts=prompts)
    for rule in ("rejection", "typical"):
        out = tmp_path / rule
        words = ["task=replay", f"task.trace={folder}", *WIDE, f"accept={rule}"]
        run_task.run(compose(words), output_dir=out)
        assert "an ESTIMATE over the positions of 708 tokens" in capsys.readouterr().out
        (row,) = json.loads((out / "replay.json").read_text())["rows"]
        assert row["estimate"]
        assert row["num_steps"] is None
        steps = real([*TOY, *shared, *WIDE, f"accept={rule}", "tree.proposal=place"], prompts)
        measured = 59 * 12 / sum(map(len, steps))
        assert abs(row["acceptance_length"] - measured) < 0.15 * measured, (rule, measured)


def test_at_temperature_zero_every_lossless_rule_is_exact(tmp_path: Path) -> None:
    folder = record(tmp_path / "record", "drafter=lm", *WIDE)
    found = {}
    for rule in ("match", "rejection"):
        words = ["task=replay", f"task.trace={folder}", *WIDE, f"accept={rule}"]
        run_task.run(compose(words), output_dir=tmp_path / rule)
        held = json.loads((tmp_path / rule / "replay.json").read_text())
        found[rule] = held["rows"][0] | {"accept": None}
        assert held["estimate"] is False
    assert found["match"] == found["rejection"]


def test_the_oracle_is_the_fewest_passes() -> None:
    """Against every way to choose how far each pass goes."""
    generator = torch.Generator().manual_seed(0)
    for count in range(1, 8):
        reaches = torch.randint(0, 4, (count,), generator=generator).tolist()
        for nodes in (2, 3, 9):

            def ways(place: int, reaches: list[int] = reaches, nodes: int = nodes) -> int:
                if place >= len(reaches):
                    return 0
                most = min(reaches[place], nodes - 1, len(reaches) - place)
                return 1 + min(ways(place + taken + 1) for taken in range(most + 1))

            assert fewest_steps(reaches, count, nodes) == ways(0)


SMOLLM2 = ("target=smollm2", "device=cpu", "threads=1")
QUESTION = "Repeat this list, then sort it: plum, apple, pear, fig, plum, apple."


def agrees_on_smollm2(tmp_path: Path, drafter: str, count: int) -> int:
    """Every policy against the run itself; returns the drafted tokens accepted in all."""
    shared = (*SMOLLM2, f"drafter={drafter}", f"max_new_tokens={count}")
    wide = ("tree=dynamic", "tree.top_k=4", "tree.depth=4", "tree.max_nodes=16")
    folder = record(tmp_path, *shared, *wide, prompts=(QUESTION,))
    total = 0
    for policy in (
        ("tree=chain", "tree.depth=4"),
        ("tree=dynamic", "tree.top_k=4", "tree.depth=4", "tree.max_nodes=8"),
        ("tree=dynamic", "tree.top_k=2", "tree.depth=3", "tree.max_nodes=6"),
    ):
        (steps,), _ = replayed(folder, *policy)
        assert [steps] == real([*shared, *policy], (QUESTION,)), policy
        total += sum(taken for _, taken, _ in steps)
    return total


@pytest.mark.slow
def test_it_agrees_on_smollm2(tmp_path: Path) -> None:
    assert agrees_on_smollm2(tmp_path, "eagle", 8) > 2


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["ngram", "suffix", "eagle", "medusa"])
def test_it_agrees_on_smollm2_at_length(tmp_path: Path, drafter: str) -> None:
    assert agrees_on_smollm2(tmp_path, drafter, 32) > 10
