"""A certificate: the verdict of all checks as a sentence, a table, JSON and an exit code."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import rich
from rich.table import Table
from rich.text import Text

from specframe.task.certify.text_checks import Check

_COLOURS = {"holds": "green", "FAILS": "red", "INVALID": "red", "deviates": "yellow"}


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The checks of one combination of components, and what follows from them."""

    words: dict[str, str]  # axis -> word
    lossless: bool  # what the rule says of itself
    checks: Sequence[Check]

    @property
    def _invalid(self) -> list[Check]:
        return [check for check in self.checks if check.caught is False]

    @property
    def _failed(self) -> list[Check]:
        # A check that does not notice its broken component says nothing at all.
        failed = [check for check in self.checks if check.passed is False]
        return [check for check in failed if check.caught is not False]

    @property
    def exit_code(self) -> int:
        """1 if a rule that calls itself lossless fails, or if a check cannot be trusted."""
        return int(bool(self._invalid or (self.lossless and self._failed)))

    @property
    def verdict(self) -> str:
        """One sentence. Only a lossless rule that passed every check is called exact.

        Where the law is that of another drafter than the user's, the sentence says so.
        """
        return f"{self._judgement}{self._stand_in}"

    @property
    def _stand_in(self) -> str:
        judged = [check for check in self.checks if check.stand_in and check.ran]
        if not judged:
            return ""
        names = " and ".join(check.name for check in judged)
        return f"; {names}: judged for {judged[0].stand_in}, which target=toy cannot have"

    @property
    def _judgement(self) -> str:
        rule = f"accept={self.words['accept']}"
        failed = ", ".join(check.name for check in self._failed)
        invalid = ", ".join(check.name for check in self._invalid)
        if invalid and not (failed and self.lossless):
            return (
                f"no verdict: {invalid} did not notice a broken component, so nothing is certified"
            )
        if not self.lossless:
            seen = f"deviations in {failed}" if failed else "none seen here, which is no promise"
            return f"lossy, as declared: {rule} changes the target's distribution ({seen})"
        if failed:
            return f"NOT EXACT: {rule} calls itself lossless and fails {failed}"
        if not any(check.passed for check in self.checks):
            return "not certified: no check could be run to a verdict"
        reported = ", ".join(check.name for check in self.checks if _is_report(check))
        if reported:
            return (
                f"not certified: {reported} can only report in this precision; "
                "use target.dtype=float32 on a CPU, or float64, for a verdict"
            )
        blocked = ", ".join(check.name for check in self.checks if not check.ran and check.applies)
        if blocked:
            return f"not certified in full: no deviation seen, but {blocked} could not be run"
        subject = "" if self._stand_in else " with this combination"
        return f"exact: {rule}{subject} passed every check that applies to it"

    def status(self, check: Check) -> str:
        """One word for one check."""
        if not check.ran:
            return "not run" if check.applies else "no claim"
        if check.caught is False:
            return "INVALID"
        if check.passed is None:
            return "reported"
        if self.lossless:
            return "holds" if check.passed else "FAILS"
        return "none seen" if check.passed else "deviates"

    def show(self) -> None:
        """Print a table on a terminal, and plain lines elsewhere."""
        console = rich.get_console()
        if not console.is_terminal:
            for check in self.checks:
                print(f"{check.name}: {self.status(check)}. {check.finding}{_control(check)}")
            print(f"verdict: {self.verdict}")
            return
        table = Table("check", "verdict", "found", "negative control", title="certificate")
        for check in self.checks:
            status = self.status(check)
            word = Text(status, style=_COLOURS.get(status, ""))
            table.add_row(check.name, word, Text(check.finding), Text(_control(check).strip(" ;")))
        console.print(table)
        console.print(Text(f"verdict: {self.verdict}"))

    def write(self, path: Path) -> None:
        """Write it as JSON, with the verdict first."""
        values = {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "words": self.words,
            "lossless": self.lossless,
            "checks": [asdict(check) | {"status": self.status(check)} for check in self.checks],
        }
        path.write_text(json.dumps(_finite(values), indent=2) + "\n", encoding="utf-8")


def _is_report(check: Check) -> bool:
    return check.ran and check.passed is None


def _control(check: Check) -> str:
    if check.caught is None:
        return ""
    return f"; {check.control} {'was caught' if check.caught else 'WAS NOT CAUGHT'}"


def _finite(value: Any) -> Any:
    """The same value with null for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
