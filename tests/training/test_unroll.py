"""Unrolled steps are what a drafter computes while it drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specframe.drafter.eagle import Eagle
from specframe.drafter.eagle3 import Eagle3
from specframe.drafter.medusa import Medusa
from specframe.drafter.mtp import MTP
from specframe.target.hf import HF
from specframe.train.base import FINAL, Frozen
from specframe.training.batches import Batch, collate
from specframe.training.chains import Tally
from specframe.training.samples import TrainingSample
from specframe.training.tapped_features import Features, Tapped
from specframe.training.unroll import UnrollWindow, unroll
from specframe.tree.chain import ChainTree
from tests.heads.small_heads import eagle3_net, eagle_net, mtp_net
from tests.small_models import CACHE_MAKERS, RUNTIME, Composition, decode
from tests.training.lessons import eagle, eagle3, medusa, mtp, samples, small_target

DEPTH = 3


def batch_of(
    part: list[TrainingSample],
    taps: tuple[str, ...],
    weight: float = 0.0,
    *,
    target: HF | None = None,
) -> Batch:
    tapped = Tapped(target=target or small_target(), taps=taps, dtype=torch.float64)
    width = 32 * len(taps)
    features = Features(
        tapped, part, width=width, folder=Path("unused"), max_bytes=0, identity=None
    )
    return collate(part, features, taps, prompt_weight=weight)


def medusa_net(held: HF) -> Any:
    """Heads that know what a bigram of the target does: the block maps a state to the next one."""
    net = medusa().make(held, None).double()
    states = held.model.model.norm(held.model.model.embed_tokens.weight).detach()
    following = states[held.model.lm_head(states).argmax(-1)].detach()
    step = torch.linalg.lstsq(states, following - states).solution.t()
    for head in net:
        head[0].linear.weight.data.copy_(step)
        head[0].linear.bias.data.fill_(1.0)
    return net


def bigram_mtp(held: HF) -> Any:
    """A module that reads what follows off its token: x = e, as the blocks are damped."""
    net = mtp_net(1)
    module = net.module(0)
    module.eh_proj.weight.mul_(0.05).add_(torch.cat([torch.eye(32), torch.zeros(32, 32)], dim=1))
    for one in (module.self_attn.o_proj, module.mlp.down_proj):
        one.weight.mul_(0.05)
    return net


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa", "mtp"])
def test_a_simulated_chain_is_what_decoding_accepts(kind: str) -> None:
    held, part = small_target(), samples().all
    if kind == "eagle":
        recipe: Any = eagle()
        net: Any = eagle_net(1)
        net.fc.weight.mul_(0.05).add_(torch.cat([torch.zeros(32, 32), torch.eye(32)], dim=1))
        drafter: Any = Eagle.of(net, target=held, cache=CACHE_MAKERS["dynamic"](), runtime=RUNTIME)
        frozen = Frozen.of(held, None)
    elif kind == "mtp":
        recipe, net, frozen = mtp(), bigram_mtp(held), Frozen.of(held, None)
        drafter = MTP.of(net, target=held, cache=CACHE_MAKERS["dynamic"](), runtime=RUNTIME)
    elif kind == "medusa":
        recipe, net = medusa(), medusa_net(held)
        drafter, frozen = Medusa.of(net, target=held, runtime=RUNTIME), Frozen.of(held, None)
    else:
        recipe, net = eagle3(), eagle3_net(1, draft_vocab=90, taps=(1, 2, 3))
        drafter = Eagle3.of(net, target=held, cache=CACHE_MAKERS["dynamic"](), runtime=RUNTIME)
        frozen = Frozen.of(held, net.target_ids())
    tally = Tally.empty(DEPTH)
    batch = batch_of(part, recipe.taps(held))
    found = recipe.guesses(net, frozen, batch, depth=DEPTH, top=2)
    tally.add(found, batch.categories)
    tree = ChainTree(depth=DEPTH, max_nodes=DEPTH + 1, proposal="place")
    emitted = steps = 0
    for sample in part:
        composed = Composition(target=held, drafter=drafter, tree=tree)
        outcome = decode(composed, sample.tokens[: sample.start].tolist(), len(sample.answer))
        assert outcome.tokens == sample.answer.tolist(), "the answers are greedy"
        emitted += sum(len(record.tokens) for record in outcome.records)
        steps += len(outcome.records)
    assert sum(tally.emitted.values()) == emitted
    assert sum(tally.steps.values()) == steps
    assert emitted > steps, "something is accepted, or nothing is tested"


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
