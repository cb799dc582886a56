"""A training that starts from a trained head: its weights, and the vocabulary of its rows."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from specframe.errors import ConfigError
from specframe.heads.eagle_net import Eagle3Net
from specframe.heads.medusa_net import MedusaNet

_OF_TARGET = "embed_tokens.weight"  # published heads carry a copy; training reads the target's own


def vocabulary_of(trained: nn.Module) -> Tensor | None:
    """[Vd] target ids of the draft vocabulary that is part of a head, None if it has none."""
    if isinstance(trained, Eagle3Net):
        return trained.target_ids()
    if isinstance(trained, MedusaNet) and trained.token_map is not None:
        return trained.token_map.long()
    return None


@torch.no_grad()
def weights_digest(trained: nn.Module) -> str:
    """sha256 of the names and values of a head."""
    digest = hashlib.sha256()
    for name, value in sorted(trained.state_dict().items()):
        plain = value.detach().cpu().contiguous().flatten()
        digest.update(f"{name} {list(value.shape)} {value.dtype} ".encode())
        digest.update(plain.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@torch.no_grad()
def take_weights(fresh: nn.Module, trained: nn.Module, *, path: str) -> None:
    """Copy the weights of `trained` into `fresh`, in the dtypes of `fresh`.

    Biases that `trained` lacks stay zero. Raises ConfigError listing what does not fit.
    """
    ours, theirs = fresh.state_dict(), trained.state_dict()
    theirs.pop(_OF_TARGET, None)
    missing = {key for key in ours if key not in theirs and not key.endswith("bias")}
    wrong = [f"{key} is missing" for key in sorted(missing)]
    for key, value in theirs.items():
        if key not in ours:
            wrong.append(f"{key} is surplus")
        elif value.shape != ours[key].shape:
            wrong.append(f"{key} is {list(value.shape)}, the recipe's {list(ours[key].shape)}")
        elif not value.is_floating_point() and not torch.equal(value, ours[key]):
            wrong.append(f"{key} names other tokens")
    if wrong:
        raise ConfigError(
            f"train.start={path}: this head is not of the recipe's kind: {'; '.join(wrong)}; "
            "change the recipe's sizes or leave train.start=null"
        )
    fresh.load_state_dict({**ours, **theirs}, strict=True)
