"""Random and perfect Medusa heads for tiny targets, in float64."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from specframe.heads.medusa_file import save_medusa
from specframe.heads.medusa_net import MedusaNet, MedusaOptions
from specframe.target.hf import HF
from tests.small_models import RUNTIME, VOCAB, model

HIDDEN = 32
WIDE = 128  # more than VOCAB, so that a state can name its token


def medusa_net(seed: int = 0, **changes: Any) -> MedusaNet:
    """Four random heads of one block, with output matrices of their own."""
    options = MedusaOptions(**{"hidden": HIDDEN, "heads": 4, "rows": VOCAB, **changes})
    net = MedusaNet(options).double().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for weight in net.parameters():
        values = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.copy_(values if weight.dim() > 1 else 0.1 * values)
    if net.token_map is not None:
        picked = torch.randperm(VOCAB, generator=generator)[: options.mapped]
        net.token_map.copy_(picked)
    return net


@lru_cache
def _jumps() -> Any:
    """A Llama whose state names its token: what comes next depends on the last token alone."""
    made = model("llama", hidden_size=WIDE, intermediate_size=8, num_attention_heads=4)
    with torch.no_grad():
        for block in made.model.layers:
            block.self_attn.o_proj.weight.zero_()
            block.mlp.down_proj.weight.zero_()
        made.model.embed_tokens.weight.copy_(WIDE**0.5 * torch.eye(WIDE)[:VOCAB])
    return made


def jumps_target(to_zero: int = 1) -> HF:
    """That model; one token in `to_zero` is followed by the token 0 (1: none in particular)."""
    made = model("llama", hidden_size=WIDE, intermediate_size=8, num_attention_heads=4)
    made.load_state_dict(_jumps().state_dict())
    if to_zero > 1:
        # Column x of the head has the scores of what follows x; 0 itself goes on to others.
        made.lm_head.weight.data[0, 1:VOCAB:to_zero] = made.lm_head.weight.abs().max() + 1
    return HF.of(made, runtime=RUNTIME)


def follower(target: HF) -> torch.Tensor:
    """[V] what comes after each token."""
    return target.model.lm_head.weight[:, :VOCAB].argmax(0).detach()


def perfect_medusa(target: HF, *, heads: int = 4, shift: int = 0) -> MedusaNet:
    """Right on `jumps_target`: head i knows where i + 2 jumps lead (i + 2 + shift, to be wrong)."""
    options = MedusaOptions(hidden=WIDE, heads=heads, rows=VOCAB)
    net = MedusaNet(options).double().requires_grad_(False)
    after = follower(target)
    for head in range(heads):
        place = torch.arange(VOCAB)
        for _ in range(head + 2 + shift):
            place = after[place]
        weight = net.output(head)
        weight.zero_()
        weight[place, torch.arange(VOCAB)] = 1.0
    return net


def words_for(family: str, folder: Path) -> tuple[str, ...]:
    """Words that give drafter=medusa random heads, saved in `folder`, for a tiny target or toy."""
    sizes = {"hidden": 6, "rows": 0} if family == "toy" else {"rows": 0}
    save_medusa(medusa_net(**sizes), folder)
    return (f"drafter.path={folder}",)
