"""The timed passes are those of the plan, and every one of them is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specframe.costs.step_timing import StepTimer, TimingPlan, row_counts
from tests.costs.toy_engines import engine_of
from tests.small_models import Composition, drafter_of, target

SMALL = TimingPlan(rows=(1, 2, 4), contexts=(8, 24), widths=(1, 2), repeats=1)


def test_every_size_is_what_was_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes have the rows that the table says they have."""
    engine, seen = engine_of("drafter=ngram"), []
    score = engine.components.target.score

    def counted(draft: Any, *args: Any, **more: Any) -> Any:
        seen.append(draft.num_rows)
        return score(draft, *args, **more)

    monkeypatch.setattr(engine.components.target, "score", counted)
    StepTimer(engine, SMALL, capacity=None, tick=lambda _: None)._passes(
        engine.components.drafter, 8
    )
    assert seen == [1, 2, 4] * 2


@pytest.mark.parametrize(("repeats", "most"), [(1, 12), (3, 24)])
def test_progress_counts_every_pass(repeats: int, most: int) -> None:
    ticks: list[int] = []
    extent = replace(SMALL, repeats=repeats)
    StepTimer(engine_of("drafter=none"), extent, capacity=None, tick=ticks.append).table()
    assert sum(ticks) == extent.num_steps == most


def test_row_counts() -> None:
    assert row_counts(5, None) == (1, 2, 3, 4, 6, 8)
    assert row_counts(1, None) == (1,)
    assert row_counts(20, [4, 16, 64]) == (1, 4, 16, 32)


def test_contexts_fit_the_model_and_the_cache() -> None:
    wide = replace(SMALL, contexts=(8, 100_000))
    engine = Composition(target=target("llama"), drafter=drafter_of("ngram", "llama")).engine()
    made = StepTimer(engine, wide, capacity=None, tick=lambda _: None)
    assert made.plan.contexts[0] == 8
    assert made.plan.contexts[-1] < 128
    assert made.table().contexts == made.plan.contexts
    tight = StepTimer(engine, wide, capacity=64, tick=lambda _: None)
    assert tight.plan.contexts[-1] < 64


def test_levels_are_timed_by_their_width() -> None:
    engine = Composition(target=target("llama"), drafter=drafter_of("noisy", "llama")).engine()
    costs = StepTimer(engine, SMALL, capacity=None, tick=lambda _: None).table()
    assert set(costs.drafts) == {"lm"}
    assert costs.drafts["lm"].widths == (1, 2)
    assert min(costs.drafts["lm"].level_ms) > 0 and costs.drafts["lm"].root_ms > 0
