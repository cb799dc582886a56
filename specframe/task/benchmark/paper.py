"""What the paper of an experiment claims, and in what a run differs from the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_OWN = ("acceptance_length", "tolerance")
_ABSENT = "nothing"


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What `expects` of an experiment says."""

    acceptance_length: float  # that the paper claims
    tolerance: float  # by how much a run may miss it
    # Entries of the manifest as the paper had them: dotted path -> text that occurs in the entry.
    manifest: dict[str, Any]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Expectation:
        """The expectation of the configuration's mapping, whose numbers `compose` has checked."""
        return cls(
            acceptance_length=float(values["acceptance_length"]),
            tolerance=float(values["tolerance"]),
            manifest={str(key): entry for key, entry in values.items() if key not in _OWN},
        )

    def judge(self, measured: float | None, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Whether a measured length meets it, and where this run's manifest is not the paper's."""
        met = measured is not None and abs(measured - self.acceptance_length) <= self.tolerance
        entries = {path: (paper, _entry(manifest, path)) for path, paper in self.manifest.items()}
        return {
            "acceptance_length": self.acceptance_length,
            "tolerance": self.tolerance,
            "measured": measured,
            "met": met,
            "differs": {
                path: {"paper": paper, "here": here}
                for path, (paper, here) in entries.items()
                if not _agrees(paper, here)
            },
        }


def sentence(judged: Mapping[str, Any]) -> str:
    """One line for the terminal. judged: of `Expectation.judge`."""
    measured = judged["measured"]
    here = "nothing was measured" if measured is None else f"measured {measured:.2f}"
    text = (
        f"the paper's acceptance_length {judged['acceptance_length']:g} +- {judged['tolerance']:g} "
        f"is {'met' if judged['met'] else 'not met'}: {here}"
    )
    differs = [
        f"{path}: {entry['here']} instead of {entry['paper']}"
        for path, entry in judged["differs"].items()
    ]
    return f"{text}; this run differs in {', '.join(differs)}" if differs else text


def _entry(manifest: Any, path: str) -> Any:
    for key in path.split("."):
        if not isinstance(manifest, Mapping) or manifest.get(key) is None:
            return _ABSENT
        manifest = manifest[key]
    return manifest


def _agrees(paper: Any, here: Any) -> bool:
    if isinstance(paper, str):
        return paper.lower() in str(here).lower()
    return bool(paper == here)
