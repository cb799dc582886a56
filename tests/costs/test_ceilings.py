"""What a pass moves and computes, and the limits that it is held against."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
import torch

from specframe.costs.ceilings import Ceilings, MeasuredPass, PassWorkload, measure_ceilings
from specframe.measure.busy_clock import BusyClock
from specframe.task.profile.roofline import roofline
from tests.small_models import PROMPT, RUNTIME, Composition, decode, target


def test_a_pass_reads_every_weight_once() -> None:
    composed = Composition(target=target("llama"))
    loop = decode(composed, PROMPT, 4).loop
    weights = PassWorkload.of(composed.target, composed.cache)
    assert weights is not None
    # 3 layers of 32: q and o 32 x 32, k and v 32 x 16, three of 32 x 48; the head 97 x 32.
    linear = 3 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48) + 97 * 32
    assert weights.parameters == linear
    assert weights.bytes == 8 * linear
    assert (weights.token_elements, weights.queries) == (3 * 2 * 16, 2)
    one = weights.of_pass(4, 10, 2.0)
    assert one.bytes == 8 * linear + 10 * 8 * 96
    assert one.operations == 4 * (2 * linear + 2 * 96 * 2 * 10)
    assert loop.finish_reason == "length"


def test_the_roof_is_the_nearer_of_two_limits() -> None:
    ceilings = Ceilings(bytes_per_s=1e9, operations_per_s=4e9)
    narrow = MeasuredPass(rows=1, context=8, bytes=1e6, operations=1e6, ms=2.0)
    wide = MeasuredPass(rows=16, context=8, bytes=1e6, operations=16e6, ms=8.0)
    assert narrow.limit_ms(ceilings) == pytest.approx(1.0)
    assert wide.limit_ms(ceilings) == pytest.approx(4.0)
    svg = roofline([narrow, wide], ceilings, title="a < b")
    tree = ElementTree.fromstring(svg)
    texts = [node.text for node in tree.iter() if node.text]
    assert "a < b" in texts and "1" in texts and "16" in texts
    found = measure_ceilings(target("llama"), RUNTIME.weights, BusyClock(torch.device("cpu")).now)
    assert found.bytes_per_s > 1e8 and found.operations_per_s > 1e8


def test_no_pass_lies_above_the_roof() -> None:
    low = Ceilings(bytes_per_s=1e9, operations_per_s=4e9)
    quick = MeasuredPass(rows=1, context=8, bytes=1e6, operations=1e5, ms=0.5)
    wide = MeasuredPass(rows=64, context=8, bytes=1e6, operations=16e6, ms=3.0)
    raised = low.above([quick, wide])
    assert raised.bytes_per_s == pytest.approx(2e9)
    assert raised.operations_per_s == pytest.approx(16e9 / 3)
    for one in (quick, wide):
        assert one.limit_ms(raised) <= one.ms * (1 + 1e-12)
    assert raised.above([]) == raised
    # Of several tries the best counts: the others were held up.
    times = iter([0.0, 9.0, 9.0, 10.0] + [20.0, 25.0] * 100)
    found = measure_ceilings(target("llama"), RUNTIME.weights, lambda: next(times))
    assert found.bytes_per_s == 2e3 * 2**26
