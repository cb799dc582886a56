"""specframe: speculative decoding composed from words, one per axis.

Importing the package imports no torch; `load` does, when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specframe.compose.build import load as load

__version__ = "0.2.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    if name == "load":
        return import_module("specframe.compose.build").load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
