"""Runs the checks of a certificate one after the other, and says which of them is running."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specframe.errors import ConfigError, IncompatibleComponents
from specframe.task.certify.text_checks import Check, not_run
from specframe.terminal.progress import StepProgress


def results_of(checks: Sequence[tuple[str, Callable[[], Check]]]) -> list[Check]:
    """The results of all checks, with a word on which of them is running."""
    results = []
    with StepProgress("certify", total=len(checks)) as progress:
        for name, check in checks:
            progress.begin(name)
            results.append(_guarded(name, check))
            progress.add(1)
    return results


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    """The result of a check; where its combination cannot be composed, the reason for that."""
    try:
        return check()
    except (ConfigError, IncompatibleComponents) as error:
        return not_run(name, str(error), applies=True)
