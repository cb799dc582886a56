"""Whether two models read token ids the same way."""

from __future__ import annotations

from specframe.errors import IncompatibleComponents
from specframe.target.base import Target


def check_vocabulary(model: Target, target: Target, *, way_out: str) -> None:
    """Raises IncompatibleComponents, which ends with `way_out`, unless both read ids alike."""
    ours, theirs = target.tokenizer, model.tokenizer
    if ours is None or theirs is None or ours is theirs:
        same = model.vocab_size == target.vocab_size
    else:
        same = ours.vocabulary() == theirs.vocabulary()
    if not same:
        raise IncompatibleComponents(
            f"drafter.model={model.name} has another vocabulary than target={target.name}, so its "
            f"token ids mean other words; use a draft of the same family{way_out}"
        )
