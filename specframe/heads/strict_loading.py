"""Strict loading: no key of a file is missing or left over, and every shape fits the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from torch import Tensor, nn

from specframe.errors import ConfigError
from specframe.heads.head_files import check_keys
from specframe.heads.layer_layout import RenamedFile

Net = TypeVar("Net", bound=nn.Module)
_Q_NORM, _K_NORM = "self_attn.q_norm.weight", "self_attn.k_norm.weight"


def check_layers(file: RenamedFile, required: list[str], optional: list[str], kind: str) -> None:
    """Raises ConfigError that lists missing and surplus keys of a file that is not `kind`.

    An optional key of a layer (a bias, a norm of its heads) that one layer has, every layer must
    have.
    """
    inner = [key for key in optional if _name_in_layer(key) is not None]
    present = {_name_in_layer(key) for key in inner if key in file.tensors}
    if present & {_Q_NORM, _K_NORM}:
        present |= {_Q_NORM, _K_NORM}
    required = required + [key for key in inner if _name_in_layer(key) in present]
    check_keys(
        map(file.original, file.tensors),
        required=map(file.original, required),
        optional=map(file.original, optional),
        problem=f"{file.files.place} is not {kind} as it should be",
    )


def _name_in_layer(key: str) -> str | None:
    """The name within its layer, None for a key outside of layers."""
    pieces = key.split(".")
    return ".".join(pieces[-3:]) if len(pieces) > 3 else None


def load_weights(
    net: Net,
    tensors: Mapping[str, Tensor],
    *,
    place: str,
    original: Callable[[str], str] = str,
) -> Net:
    """The network with `tensors` in place of its own, in their dtypes, frozen.

    original: the file's name of a key. Raises ConfigError, naming `place`, if shapes do not fit,
    weights are whole numbers, or a value is not finite: such a head would draft nothing, silently.
    """
    expected = net.state_dict()
    wrong = [
        f"{original(key)} {list(value.shape)} instead of {list(expected[key].shape)}"
        for key, value in tensors.items()
        if value.shape != expected[key].shape
    ]
    if wrong:
        raise ConfigError(f"{place}: shapes do not fit together: {'; '.join(wrong)}")
    kinds = [
        f"{original(key)} {str(value.dtype).removeprefix('torch.')}"
        for key, value in tensors.items()
        if value.is_floating_point() != expected[key].is_floating_point()
    ]
    if kinds:
        raise ConfigError(f"{place}: dtypes are of another kind than expected: {'; '.join(kinds)}")
    broken = [original(key) for key, value in tensors.items() if not _is_finite(value)]
    if broken:
        raise ConfigError(f"{place}: values are not finite (NaN or infinite): {', '.join(broken)}")
    net.load_state_dict(tensors, strict=True, assign=True)
    return net.eval().requires_grad_(False)


def _is_finite(value: Tensor) -> bool:
    # The sum would overflow; both ends carry a NaN.
    if not value.is_floating_point() or not value.numel():
        return True
    low, high = value.float().aminmax()
    return bool(low.isfinite()) and bool(high.isfinite())


def load_file(net: Net, file: RenamedFile) -> Net:
    """The same for a file under our names."""
    return load_weights(net, file.tensors, place=file.files.place, original=file.original)
