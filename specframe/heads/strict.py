"""Nothing missing, nothing left over: a file's keys and shapes against those of a network."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from specframe.errors import ConfigError
from specframe.heads.eagle_layout import Held
from specframe.heads.files import check_keys

Net = TypeVar("Net", bound=nn.Module)
_Q_NORM, _K_NORM = "self_attn.q_norm.weight", "self_attn.k_norm.weight"


def check(one: Held, required: list[str], optional: list[str], what: str) -> None:
    """Raises ConfigError that lists missing and surplus keys of what is not `what`."""
    # A bias or a head norm that one layer has, every layer must have.
    inner = [key for key in optional if _part(key) is not None]
    present = {_part(key) for key in inner if key in one.tensors}
    if present & {_Q_NORM, _K_NORM}:
        present |= {_Q_NORM, _K_NORM}
    required = required + [key for key in inner if _part(key) in present]
    check_keys(
        map(one.original, one.tensors),
        required=map(one.original, required),
        optional=map(one.original, optional),
        what=f"{one.files.place} is not {what} as it should be",
    )


def _part(key: str) -> str | None:
    """The name within its layer, None for a key outside of layers."""
    pieces = key.split(".")
    return ".".join(pieces[-3:]) if len(pieces) > 3 else None


def filled(net: Net, one: Held) -> Net:
    """The network with the file's tensors in place of its own, in their dtypes."""
    expected = net.state_dict()
    wrong = [
        f"{one.original(key)} {list(value.shape)} instead of {list(expected[key].shape)}"
        for key, value in one.tensors.items()
        if value.shape != expected[key].shape
    ]
    if wrong:
        raise ConfigError(f"{one.files.place}: shapes do not fit together: {'; '.join(wrong)}")
    net.load_state_dict(one.tensors, strict=True, assign=True)
    return net.eval().requires_grad_(False)
