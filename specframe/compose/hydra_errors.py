"""How Hydra treats errors, changed: its own are raised, and those of callbacks are not lost."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

FULL_ERROR = "HYDRA_FULL_ERROR"
_CALLBACK_RAISED = r"Callback \w+\.\w+ raised "


@contextmanager
def errors_raised() -> Iterator[None]:
    """Let Hydra raise an error instead of printing it, and let logging ignore a closed pipe."""
    before, complain = os.environ.get(FULL_ERROR), logging.raiseExceptions
    os.environ[FULL_ERROR] = "1"
    logging.raiseExceptions = False
    try:
        yield
    finally:
        logging.raiseExceptions = complain
        if before is None:
            os.environ.pop(FULL_ERROR, None)
        else:
            os.environ[FULL_ERROR] = before


@contextmanager
def callback_failures(report: Callable[[str], None]) -> Iterator[None]:
    """Call `report` with one line for every exception of a callback, which Hydra only warns of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=_CALLBACK_RAISED)
        show_others = warnings.showwarning

        def show(message: Warning | str, *rest: Any, **more: Any) -> None:
            if re.match(_CALLBACK_RAISED, str(message)):
                report(" ".join(str(message).split()))
            else:
                show_others(message, *rest, **more)

        warnings.showwarning = show
        yield
