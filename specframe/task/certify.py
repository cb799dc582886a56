"""Tells whether a combination is exact, in words and with an exit code."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from specframe.binding import Range
from specframe.console import show_certificate
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.generation import Engine
from specframe.sampling import GREEDY_BELOW
from specframe.task.base import TASKS, Job, Task
from specframe.task.checks import (
    Check,
    Texts,
    enumerated_law,
    greedy_text,
    not_run,
    perfect_drafter,
    sampled_law,
    seeded_text,
)
from specframe.task.enumeration import TooManyBranches
