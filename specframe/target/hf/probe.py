"""A look at a freshly loaded model: does it score a small tree as it scores the tree's paths, and
does a row mind the rows beside it?

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
_FAILURES = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_EXACT, _ROUNDED = 1e-3, 0.3  # largest error in standard deviations of the logits, by precision


@torch.inference_mode()
def check_tree(target: HF) -> None:
    """Raises IncompatibleComponents, naming the class, if trees come out wrong, or if a row depends
    on rows that it does not see."""
    name, reason = type(target.model).__name__, ""
    way_out = "use a model whose attention honours a 4-D mask and position ids"
    try:
        expected = _path(target)
    except _FAILURES as error:
        raise IncompatibleComponents(
            f"target: {name} cannot run: its own forward pass fails on two tokens "
            f"({_line(error)}); correct its config.json or its weights"
        ) from error
    try:
        found = _tree(target)
    except _FAILURES as error:
        reason, way_out = f"fails on one ({_line(error)})", "use another model"
    else:
        error_size = (found - expected).abs().max() / expected.std()
        if not error_size <= _limit(target):  # NaN: the loop names it
            reason = "" if expected.isnan().any() else "scores its rows otherwise than its paths"
    if reason:
        raise IncompatibleComponents(
            f"target: {name} cannot verify a draft tree: it {reason}; {way_out}"
        )
    _check_company(target)


def _limit(target: HF) -> float:
    exact = target.dtype in (torch.float32, torch.float64)
    return _EXACT if exact and not getattr(target.model, "is_quantized", False) else _ROUNDED


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


def _check_company(target: HF) -> None:
    """Some models choose a table or a temperature of attention by the largest position of a pass,
    or by its number of rows. A draft that looks far ahead would change the text before it.
    """
    if target.gives.max_positions is None:
        return
    alone = _last_logits(target, company=False)
    try:
        beside = _last_logits(target, company=True)
    except _FAILURES:  # no such position after all: no draft gets there
        return
    error_size = (alone - beside).abs().max() / alone.std()
    if error_size > _limit(target):
        raise IncompatibleComponents(
            f"target: {type(target.model).__name__} computes a row by the largest position in its "
            "pass, so that drafts would change the text; use a model whose positions are fixed"
        )


def _last_logits(target: HF, *, company: bool) -> Tensor:
    """[V] logits of the second of two tokens, alone or beside a row far behind, seen by none."""
    assert target.gives.max_positions is not None
    cache, ids = CACHES.get("dynamic")(), _ids(target)[:3]
    cache.open(0, columns=len(ids), device=target.device)
    cache.reach[0] = 2  # a short text
    count = 3 if company else 2
    fresh = cache.reserve([count])
    sees = torch.eye(count, dtype=torch.bool, device=target.device)
    sees[1, 0] = True
    positions = fresh.columns.clone()
    positions[2:] = target.gives.max_positions - 1
    rows = Rows(
        tokens=ids[:count],
        positions=positions,
        slots=fresh.slots,
        prefix=torch.zeros_like(ids[:count]),
        sees=sees,
    )
    logits = target.forward(rows, cache, want=fresh.columns[1:2]).logits
    assert logits is not None
    return logits[0].float()


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
