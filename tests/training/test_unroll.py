"""Unrolled steps are what a drafter computes while it drafts."""

from __future__ import annotations

import torch

from specframe.train.base import FINAL
from specframe.training.unroll import UnrollWindow, unroll
from tests.heads.small_heads import eagle_net
from tests.training.small_courses import batch_of, samples, small_target

DEPTH = 3


def test_batching_and_padding_change_nothing() -> None:
    part, net = samples().all[:4], eagle_net(2)
    held = small_target()
    batch = batch_of(part, (FINAL,))
    together = list(
        unroll(net, held.embed, UnrollWindow.of(batch), batch.features[FINAL], steps=DEPTH)
    )
    for row, sample in enumerate(part):
        single = batch_of([sample], (FINAL,))
        states = unroll(
            net, held.embed, UnrollWindow.of(single), single.features[FINAL], steps=DEPTH
        )
        for step, alone in enumerate(states):
            count = len(sample.answer) - step
            torch.testing.assert_close(
                together[step][row, :count], alone[0, :count], rtol=0, atol=1e-9
            )


def test_pairs_of_the_prompt_are_unrolled_where_they_weigh() -> None:
    part, net = samples().all[:2], eagle_net(2)
    held = small_target()
    some, every = batch_of(part, (FINAL,)), batch_of(part, (FINAL,), weight=1.0)
    narrow, wide = UnrollWindow.of(some), UnrollWindow.of(every)
    assert wide.index[:, 0].tolist() == [0, 0]
    left = list(unroll(net, held.embed, narrow, some.features[FINAL], steps=DEPTH))
    right = list(unroll(net, held.embed, wide, every.features[FINAL], steps=DEPTH))
    first = int(narrow.index[0, 0])
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a[0, :4], b[0, first : first + 4], rtol=0, atol=1e-9)
