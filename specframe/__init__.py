"""specframe: speculative decoding composed from words, one per axis.

Importing the package imports no torch; its functions do, when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specframe.api.tasks import benchmark as benchmark
    from specframe.api.tasks import certify as certify
    from specframe.compose.build import load as load

__version__ = "0.2.0"
__all__ = ["__version__", "benchmark", "certify", "load"]
_HOMES = {"load": "compose.build", "benchmark": "api.tasks", "certify": "api.tasks"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"specframe.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
