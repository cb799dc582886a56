"""Random and perfect draft networks for tiny targets, in float64."""

from __future__ import annotations

import copy
import random
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specframe.heads.eagle_export import save_eagle
from specframe.heads.eagle_net import Eagle3Net, Eagle3Options, EagleNet, EagleOptions
from specframe.heads.layers import Shape
from specframe.heads.mtp_file import save_mtp
from specframe.heads.mtp_net import MTPNet, MTPOptions
from specframe.target.hf import HF
from tests.heads import small_medusa_heads as medusa_heads
from tests.small_models import RUNTIME, VOCAB, model

HIDDEN = 32
LAYERS = [1, 2, 3]  # of a tiny target of three blocks


def shape(hidden: int = HIDDEN, **changes: Any) -> Shape:
    """Four heads over two groups."""
    sizes = {"intermediate": 48, "heads": 4, "kv_heads": 2, "head_dim": hidden // 4}
    return Shape(**{"hidden": hidden, **sizes, **changes})


def filled(net: Any, seed: int, scale: float = 3.0) -> Any:
    """The network with random matrices, large enough that attention matters."""
    generator = torch.Generator().manual_seed(seed)
    net = net.double().requires_grad_(False)
    for name, weight in net.named_parameters():
        values = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        if weight.dim() > 1:
            weight.copy_(scale * values / weight.shape[-1] ** 0.5)
        else:
            weight.copy_(("norm" in name) + 0.1 * values)
    return net


def eagle_net(
    seed: int = 0, *, hidden: int = HIDDEN, bias: bool = True, **changes: Any
) -> EagleNet:
    """A random EAGLE-1/2 network."""
    options = EagleOptions(shape=shape(hidden), vocab_size=VOCAB, bias=bias)
    options = EagleOptions(**{**vars(options), **changes})
    return filled(EagleNet(options), seed)


def eagle3_net(seed: int = 0, *, draft_vocab: int = 40, **changes: Any) -> Eagle3Net:
    """A random EAGLE-3 network over `draft_vocab` scattered tokens."""
    fields = {"shape": shape(), "feature_size": HIDDEN, "vocab_size": VOCAB}
    net = Eagle3Net(Eagle3Options(**{**fields, "draft_vocab": draft_vocab, **changes}))
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(VOCAB, generator=generator)[:draft_vocab].sort().values
    if net.d2t is not None:
        net.d2t.copy_(ids - torch.arange(draft_vocab))
    if net.t2d is not None:
        net.t2d.copy_(torch.isin(torch.arange(VOCAB), ids))
    return filled(net, seed)


def mtp_net(seed: int = 0, **changes: Any) -> MTPNet:
    """Random modules, one unless told."""
    fields = {"shape": shape(), "first": 3, "vocab_size": VOCAB}
    return filled(MTPNet(MTPOptions(**{**fields, **changes})), seed)


@lru_cache
def bigram(vocab: int = VOCAB) -> Any:
    """A Llama whose blocks add nothing: its feature is its token's embedding, of unit rms."""
    made = model("llama", vocab_size=vocab)
    with torch.no_grad():
        for block in made.model.layers:
            block.self_attn.o_proj.weight.zero_()
            block.mlp.down_proj.weight.zero_()
        table = made.model.embed_tokens.weight
        table.div_(table.square().mean(-1, keepdim=True).sqrt())
        made.lm_head.weight.mul_(0.05)
    return made


def bigram_target(vocab: int = VOCAB, *, sharp: float = 1.0) -> HF:
    """That model as a target of its own; `sharp` multiplies its logits."""
    made = copy.deepcopy(bigram(vocab))
    made.lm_head.weight.data.mul_(sharp)
    return HF.of(made, runtime=RUNTIME)


def silence(net: nn.Module) -> None:
    """Keys and values stay, but the layers add nothing."""
    for name, weight in net.named_parameters():
        if "o_proj" in name or "down_proj" in name:
            weight.data.zero_()


def perfect_eagle(noise: float = 0.0) -> EagleNet:
    """Right on `bigram`: the next feature is the next token's embedding."""
    net = eagle_net(3, bias=False)
    silence(net)
    held = torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], dim=1).double()
    net.fc.weight.copy_(held + noise * net.fc.weight)
    return net


def perfect_mtp(noise: float = 0.0, **changes: Any) -> MTPNet:
    """Right on `bigram`: every module hands on the embedding of the token that it reads."""
    net = mtp_net(3, **changes)
    silence(net)
    held = torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], dim=1).double()
    for index in range(net.options.modules):
        module = net.module(index)
        module.eh_proj.weight.copy_(held + noise * module.eh_proj.weight)
        module.enorm.weight.fill_(1.0)
        module.shared_head.norm.weight.fill_(1.0)
    return net


class EchoNet(Eagle3Net):
    """An EAGLE-3 network that feeds back the embedding of the token it was given, which is the
    next state of `bigram`; its head is the target's."""

    def forward(self, states: Tensor, embedded: Tensor, view: Any) -> Tensor:
        super().forward(states, embedded, view)  # writes keys as ever
        return embedded

    def normed(self, states: Tensor) -> Tensor:
        return states


def perfect_eagle3(target: HF, *, draft_vocab: int = VOCAB) -> Eagle3Net:
    """Right on `bigram` wherever the target's token is among the `draft_vocab` it knows."""
    net = eagle3_net(4, draft_vocab=draft_vocab)
    echo = EchoNet(net.options).double().requires_grad_(False)
    echo.load_state_dict(net.state_dict())
    echo.lm_head.weight.copy_(target.model.lm_head.weight.detach()[echo.target_ids()])
    return echo


def words_for(drafter: str, family: str, folder: Path) -> tuple[str, ...]:
    """Words that give `drafter` a random head, saved in `folder`, for a tiny target or the toy, or
    a datastore of a few random answers.

    Empty for drafters that need none; the toy has no residual stream, so eagle3 has no head there.
    """
    if drafter == "eagle3":
        save_eagle(eagle3_net(), folder)
        return (f"drafter.path={folder}", f"drafter.layers={LAYERS}".replace(" ", ""))
    if drafter == "rest":
        path = folder / "answers.jsonl"
        dice = random.Random(0)
        path.write_text(
            "".join(f'{{"tokens": {dice.choices(range(6), k=30)}}}\n' for _ in range(9))
        )
        return (f"drafter.corpus={path}",)
    if drafter == "medusa":
        return medusa_heads.words_for(family, folder)
    if drafter not in ("eagle", "mtp"):
        return ()
    small: dict[str, Any] = {
        "hidden": 6,
        "shape": shape(6, heads=1, kv_heads=1, head_dim=6),
        "vocab_size": 6,
    }
    given = small if family == "toy" else {}
    if drafter == "mtp":
        given = {key: value for key, value in given.items() if key != "hidden"}
        save_mtp(mtp_net(modules=2, **given), folder)
    else:
        save_eagle(eagle_net(**given), folder)
    return (f"drafter.path={folder}",)
