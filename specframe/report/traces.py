"""Traces for the tree viewer: trace.jsonl, each text kept once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError
from specframe.report.run_answers import PHASES, lines_of

_DIGITS = 3  # of a probability, significant


class TraceReader:
    """The steps of one run, in the order of its answers, up to `max_steps`.

    What the page reads: strings (every text once; a number stands for it, -1 for none) and answers,
    each with its steps. A step's keys: n rows of the pass, t tokens, p parents, q target's and d
    draft's probabilities, x the target's softmax where its law is one-hot, s sources, w why
    refused, a accepted nodes, e emitted tokens, k how many of these were drafted, c whether a stop
    cut it, m milliseconds by phase.
    """

    def __init__(self, *, max_steps: int) -> None:
        self.max_steps = max_steps
        self.num_left_out = 0
        self._strings: dict[str, int] = {}
        self._answers: dict[int, dict[str, Any]] = {}
        self._num_steps = 0

    def read(self, path: Path) -> TraceReader:
        """Take the lines of a file. Raises ConfigError for what is no trace."""
        for number, line in enumerate(lines_of(path), start=1):
            try:
                self._take(line)
            except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
                raise ConfigError(
                    f"{path}:{number}: not a line of trace=steps ({error!r})"
                ) from None
        return self

    @property
    def num_steps(self) -> int:
        """Steps that were kept."""
        return self._num_steps

    def as_dict(self, name: str) -> dict[str, Any]:
        """What the viewer reads of a run that is called `name`."""
        answers = [one for one in self._answers.values() if one["steps"]]
        return {
            "name": name,
            "phases": list(PHASES),
            "strings": list(self._strings),
            "answers": answers,
            "left_out": self.num_left_out,
        }

    def _take(self, line: dict[str, Any]) -> None:
        kind = line.get("kind")
        if kind == "answer":
            self._answers[line["answer"]] = self._answer(line)
        elif kind == "step":
            if self._num_steps >= self.max_steps:
                self.num_left_out += 1
                return
            self._num_steps += 1
            self._answers[line["answer"]]["steps"].append(self._step(line))
        elif kind == "end":
            self._answers[line["answer"]]["reason"] = line["finish_reason"]

    def _answer(self, line: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": "" if line.get("id") is None else str(line["id"]),
            "category": line.get("category") or "",
            "prompt": line["prompt"],
            "first": self._all(line["texts"]),
            "prefill_ms": _rounded(line.get("prefill_ms")),
            "reason": None,
            "steps": [],
        }

    def _step(self, line: dict[str, Any]) -> dict[str, Any]:
        size = len(line["tokens"])
        columns = ("texts", "parents", "target_probs", "draft_probs", "sources", "why")
        for key in columns:
            if len(line[key]) != size:
                raise ValueError(f"{key} has {len(line[key])} entries, tokens {size}")
        if any(not -1 <= parent < node for node, parent in enumerate(line["parents"])):
            raise ValueError("a parent stands after its child")
        return {
            "n": line["rows"],
            "t": self._all(line["texts"]),
            "p": line["parents"],
            "q": [_rounded(one) for one in line["target_probs"]],
            "d": [_rounded(one) for one in line["draft_probs"]],
            **_greedy(line),
            "s": self._all(line["sources"]),
            "w": self._all(line["why"]),
            "a": line["path"],
            "e": self._all(line["emitted_texts"]),
            "k": line["num_accepted"],
            "c": int(bool(line["was_cut"])),
            "m": [_rounded(line["ms"].get(phase)) for phase in PHASES],
        }

    def _all(self, texts: Sequence[str | None]) -> list[int]:
        strings = self._strings
        return [-1 if one is None else strings.setdefault(str(one), len(strings)) for one in texts]


def _greedy(line: dict[str, Any]) -> dict[str, Any]:
    """Where the target's law is one-hot, as at temperature 0, its softmax says more: as `x`."""
    softmax = line.get("target_softmax")
    if softmax is None or any(one not in (None, 0, 1) for one in line["target_probs"]):
        return {}
    return {"x": [_rounded(one) for one in softmax]}


def script_json(value: Any) -> str:
    """JSON that may stand in a script element, whatever its texts hold."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _rounded(number: float | None) -> float | None:
    """NaN and infinities, which JSON has not, become null."""
    if number is None or number != number or abs(number) == float("inf"):
        return None
    return float(f"{float(number):.{_DIGITS}g}")
