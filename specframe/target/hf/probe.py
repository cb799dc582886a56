"""A look at a freshly loaded model: does it score a small tree as it scores the tree's paths?

Some models derive positions or biases from a padding mask or from the order of rows, or see to the
right; nothing in their configuration says so, and their trees would be wrong without a word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specframe.cache.base import CACHES
from specframe.errors import IncompatibleComponents
from specframe.types import Rows

if TYPE_CHECKING:
    from specframe.target.hf import HF

_CHILDREN = 4  # of the probe's root; the last one is far from it in rows and near in position
_EXACT, _ROUNDED = 1e-3, 0.3  # largest error in standard deviations of the logits, by precision


@torch.inference_mode()
def check_tree(target: HF) -> None:
    """Raises IncompatibleComponents, naming the class, if trees come out wrong."""
    name, reason = type(target.model).__name__, ""
    try:
        found, expected = _tree(target), _path(target)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        reason = f"fails on one ({' '.join(str(error).split())[:160]})"
    else:
        exact = target.dtype in (torch.float32, torch.float64)
        exact = exact and not getattr(target.model, "is_quantized", False)
        error_size = (found - expected).abs().max() / expected.std()
        if not error_size <= (_EXACT if exact else _ROUNDED):  # NaN: the loop names it
            reason = "" if expected.isnan().any() else "scores its rows otherwise than its paths"
    if reason:
        raise IncompatibleComponents(
            f"target: {name} cannot verify a draft tree: it {reason}; use a model whose attention "
            "honours a 4-D mask and position ids"
        )


def _ids(target: HF) -> Tensor:
    return (7 * torch.arange(_CHILDREN + 1, device=target.device) + 1) % target.vocab_size


def _tree(target: HF) -> Tensor:
    """[2, V] logits of a root and of its last child, which has elder siblings."""
    cache, ids = CACHES.get("dynamic")(), _ids(target)
    cache.open(0, columns=len(ids), device=target.device)
    fresh = cache.reserve([len(ids)])
    sees = torch.eye(len(ids), dtype=torch.bool, device=target.device)
    sees[:, 0] = True
    rows = Rows(
        tokens=ids,
        positions=(fresh.columns > 0).long(),
        slots=fresh.slots,
        prefix=torch.zeros_like(ids),
        sees=sees,
    )
    logits = target.forward(rows, cache, want=fresh.columns[[0, -1]]).logits
    assert logits is not None
    return logits.float()


def _path(target: HF) -> Tensor:
    """[2, V] the same by the model's own forward over the two tokens."""
    logits: Tensor = target.model(_ids(target)[None, [0, -1]], use_cache=False).logits
    return logits[0].float()
