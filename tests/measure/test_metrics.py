"""Metrics by hand: scripted steps, cuts, trees, pooled and per-prompt means, times that add up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import specframe
from specframe.measure.clock import PHASES
from specframe.measure.meter import Meter
from specframe.measure.metrics import DepthCount, Metrics, RunSummary, peak_memory_bytes
from specframe.records import StepRecord
from specframe.types import Draft, TargetOutput, Verdict

CPU = torch.device("cpu")
TOY = ("target=toy", "drafter=lm", "max_new_tokens=40")


def draft(parents: Sequence[int], *, dead: Sequence[int] = (), chain: bool = True) -> Draft:
    """A draft of these parents (row 0 the root); tokens do not matter."""
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    rows = torch.arange(len(parents))
    alive = torch.ones(len(parents), dtype=torch.bool)
    alive[list(dead)] = False
    return Draft(
        tokens=rows,
        parents=torch.tensor(parents),
        alive=alive,
        depths=torch.tensor(depths),
        origin=rows,
        row_of=rows,
        depth=max(depths),
        chain=chain,
    )


class NoLaws:
    """Counting asks for no law."""

    def at(self, nodes: torch.Tensor, depth: int) -> torch.Tensor:
        raise AssertionError


CHAIN = draft([-1, 0, 1, 2])
TREE = draft([-1, 0, 0, 2, 2, 4], chain=False)


def step(shape: Draft, path: Sequence[int], *, cut: bool = False, start: float = 0.0) -> StepRecord:
    """A step that walked `path`; cut: a stop ended it at the last of them. Phases take 1 s each."""
    empty = torch.zeros(0, dtype=torch.long)
    marks: list[tuple[str, object]] = [("start", start)]
    marks += [(phase, start + i) for i, phase in enumerate(PHASES, 1)]
    return StepRecord(
        draft=shape,
        laws=NoLaws(),
        out=TargetOutput(logits=torch.zeros(1, 1)),
        verdict=Verdict(path=empty[None], tokens=empty[None], count=torch.tensor([0])),
        path=list(path[:-1] if cut else path),
        tokens=list(range(len(path) + (not cut))),
        num_accepted=len(path),
        was_cut=cut,
        length_before=1,
        marks=marks,
    )


def measure(*records: StepRecord) -> Metrics:
    meter = Meter(CPU)
    meter.begin()
    for record in records:
        meter.observe(record)
    return meter.end()


def test_rounds_of_zero_three_and_one() -> None:
    found = measure(step(CHAIN, []), step(CHAIN, [1, 2, 3]), step(CHAIN, [1]))
    assert (found.num_steps, found.num_accepted, found.num_drafted) == (3, 4, 9)
    assert (found.num_step_tokens, found.num_tokens, found.num_target_forwards) == (7, 8, 4)
    assert found.acceptance_length == pytest.approx(7 / 3)
    assert found.acceptance_rate == pytest.approx(4 / 9)
    assert found.num_draft_rows == 12
    assert found.depths == [
        DepthCount(drafted=3, reached=3, accepted=2),
        DepthCount(drafted=3, reached=2, accepted=1),
        DepthCount(drafted=3, reached=1, accepted=1),
    ]


def test_a_cut_step_has_no_bonus() -> None:
    found = measure(step(CHAIN, [1, 2], cut=True))
    assert (found.num_step_tokens, found.num_accepted, found.num_cut) == (2, 2, 1)
    assert found.acceptance_length == 2
    # What lay behind the cut was no opportunity.
    assert [one.reached for one in found.depths] == [1, 1, 0]


def test_trees_have_rates_by_depth_and_no_acceptance_rate() -> None:
    found = measure(step(TREE, [2, 4]), step(TREE, [1]), step(TREE, []), step(draft([-1]), []))
    assert found.acceptance_rate is None
    assert found.num_drafted == 15
    assert found.depths == [
        DepthCount(drafted=3, reached=3, accepted=2),
        DepthCount(drafted=3, reached=1, accepted=1),  # row 1 is a leaf
        DepthCount(drafted=3, reached=1, accepted=0),
    ]
    second = found.depths[1]
    assert second.marginal_rate == pytest.approx(1 / 3)
    assert second.conditional_rate == 1


def test_dead_rows_are_verified_and_not_drafted() -> None:
    found = measure(step(draft([-1, 0, 1, 2], dead=[2, 3]), [1]))
    assert (found.num_draft_rows, found.num_drafted, found.acceptance_rate) == (4, 1, 1.0)
    assert len(found.depths) == 1


def test_nothing_drafted_and_nothing_verified() -> None:
    plain = measure(step(draft([-1]), []))
    assert (plain.acceptance_length, plain.acceptance_rate, plain.depths) == (1.0, None, [])
    prefill_only = measure()
    assert (prefill_only.num_tokens, prefill_only.num_steps) == (1, 0)
    assert prefill_only.acceptance_length is None
    assert prefill_only.tokens_per_s is None
    assert prefill_only.prefill_s == pytest.approx(prefill_only.total_s)


def test_broken_counts_are_caught() -> None:
    record = step(CHAIN, [1])
    record.num_accepted = 2
    with pytest.raises(AssertionError, match="verify steps emitted 2 tokens"):
        measure(record)


def test_phases_add_up_to_decode_and_gaps_are_the_hosts() -> None:
    found = measure(step(CHAIN, [], start=10.0), step(CHAIN, [], start=17.0))
    # Five seconds a step, and two between them.
    assert found.decode_s == pytest.approx(12.0)
    assert found.phase_ms == pytest.approx(dict.fromkeys(PHASES, 2000.0) | {"host": 4000.0})
    assert found.tokens_per_s == pytest.approx(2 / 12)


def test_pooled_and_per_prompt_means_can_order_two_methods_differently() -> None:
    def summary(short: float, long: float) -> RunSummary:
        made = RunSummary(CPU)
        made.add(Metrics(num_steps=10, num_step_tokens=int(10 * short)))
        made.add(Metrics(num_steps=1000, num_step_tokens=int(1000 * long)))
        return made

    one, other = summary(5.0, 2.0), summary(2.0, 3.0)
    pooled = [made.total.acceptance_length or 0 for made in (one, other)]
    by_prompt = [made.acceptance_length_mean_over_prompts or 0 for made in (one, other)]
    assert pooled == pytest.approx([2050 / 1010, 3020 / 1010])
    assert by_prompt == pytest.approx([3.5, 2.5])


def test_summary_adds_everything() -> None:
    summary = RunSummary(CPU)
    first, second = measure(step(CHAIN, [1])), measure(step(TREE, [2, 4]), step(TREE, []))
    summary.add(first)
    summary.add(second)
    found = summary.as_dict()
    assert (found["num_prompts"], found["num_steps"], found["num_accepted"]) == (2, 3, 3)
    assert found["acceptance_rate"] is None
    assert found["verify_ms"] == pytest.approx(3000.0)
    assert [one["num_drafted"] for one in found["acceptance_by_depth"]] == [3, 3, 3]
    assert first.num_steps == 1, "an answer's own metrics stay as they are"
    assert found["peak_memory_bytes"] > 10**6
    assert peak_memory_bytes(CPU) == found["peak_memory_bytes"]


def test_warm_answers_are_reported_apart() -> None:
    summary = RunSummary(CPU)
    summary.add(measure(step(TREE, [2])))
    assert not {"cold", "warm"} & set(summary.as_dict()), "this drafter keeps nothing"
    summary = RunSummary(CPU)
    summary.add(measure(step(TREE, []), step(TREE, [])), warm=False)
    summary.add(measure(step(TREE, [2, 4])), warm=True)
    found = summary.as_dict()
    assert [found[name]["num_prompts"] for name in ("cold", "warm")] == [1, 1]
    assert [found[name]["acceptance_length"] for name in ("cold", "warm")] == [1.0, 3.0]
    assert found["acceptance_length"] == pytest.approx(5 / 3), "all of them together"


def test_a_meter_keeps_no_tensor_of_a_record_and_none_at_all_after_the_end() -> None:
    record = step(CHAIN, [1])
    meter = Meter(CPU)
    meter.begin()
    meter.observe(record)
    record.draft.alive.zero_()  # a later pass may write there
    found = meter.end()
    assert found.num_drafted == 3
    assert not [held for held in _values(vars(meter)) if isinstance(held, torch.Tensor)]


def _values(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [one for item in value.values() for one in _values(item)]
    if isinstance(value, list | tuple):
        return [one for item in value for one in _values(item)]
    return [value]


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_counts_of_a_real_loop(tree: str, temperature: float) -> None:
    engine = specframe.load([*TOY, f"tree={tree}", f"sampling.temperature={temperature}"])
    meter = Meter(engine.components.target.device)
    meter.begin()
    made = engine.generate([1, 2, 3], observers=[meter])
    found = meter.end()
    assert found.num_tokens == len(made.tokens) == 40
    assert found.num_accepted == sum(one.accepted for one in found.depths)
    for above, below in zip(found.depths, found.depths[1:], strict=False):
        assert below.reached <= above.accepted
    for one in found.depths:
        assert one.accepted <= one.reached <= one.drafted <= found.num_steps
    assert (found.acceptance_rate is not None) == (tree == "chain")


def test_injected_sleeps_show_up_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = specframe.load([*TOY, "max_new_tokens=8"])
    _delay(monkeypatch, engine.components.drafter, "expand", 0.01)
    _delay(monkeypatch, engine.components.target, "prefill", 0.05)
    meter = Meter(CPU)
    meter.begin()
    engine.generate([1, 2, 3], observers=[meter])
    found = meter.end()
    assert found.prefill_s >= 0.05
    assert found.phase_ms["draft"] >= 10 * found.num_steps
    assert found.phase_ms["draft"] > 0.5 * sum(found.phase_ms.values())
    assert sum(found.phase_ms.values()) == pytest.approx(1e3 * found.decode_s)
    assert found.prefill_s + found.decode_s == pytest.approx(found.total_s, abs=0.02)


def _delay(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, seconds: float) -> None:
    inner = getattr(owner, name)

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return inner(*args, **kwargs)

    monkeypatch.setattr(owner, name, slow)
