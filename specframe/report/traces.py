"""Traces for the tree viewer: trace.jsonl in a short form in which each text stands once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError
from specframe.measure.clock import PHASES
from specframe.report.run_answers import lines_of

_DIGITS = 3  # of a probability, significant


class TraceReader:
    """Reads the steps of one run, in the order of its answers, up to `max_steps`.

    The page reads `strings`, in which every text stands once, and `answers` with their steps. In a
    step the index of a string stands for a text, and -1 for none. The keys of a step are short,
    since there are many:

        n  rows of the pass                  s  sources of the nodes
        t  texts of the tokens               w  why a node was refused
        p  parents                           a  accepted nodes
        q  the target's probabilities        e  texts of the emitted tokens
        d  the draft's probabilities         k  how many of these were drafted
        x  the target's softmax, where its   c  whether a stop condition cut the step
           law is one-hot                    m  milliseconds by phase
    """

    def __init__(self, *, max_steps: int) -> None:
        self.max_steps = max_steps
        self.num_left_out = 0
        self._strings: dict[str, int] = {}
        self._answers: dict[int, dict[str, Any]] = {}
        self._num_steps = 0

    def read(self, path: Path) -> TraceReader:
        """Read a file. Raises ConfigError for a line that is not of trace=steps."""
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
        """Steps that were read."""
        return self._num_steps

    def as_dict(self, name: str) -> dict[str, Any]:
        """What the viewer reads of a run that is called `name`."""
        answers = [answer for answer in self._answers.values() if answer["steps"]]
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
            "q": [_rounded(prob) for prob in line["target_probs"]],
            "d": [_rounded(prob) for prob in line["draft_probs"]],
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
        return [
            -1 if text is None else strings.setdefault(str(text), len(strings)) for text in texts
        ]


def _greedy(line: dict[str, Any]) -> dict[str, Any]:
    """The key `x`, where the target's law is one-hot and its softmax says more."""
    softmax = line.get("target_softmax")
    if softmax is None or any(prob not in (None, 0, 1) for prob in line["target_probs"]):
        return {}
    return {"x": [_rounded(prob) for prob in softmax]}


def script_json(value: Any) -> str:
    """JSON that may stand in a script element, whatever its texts hold."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _rounded(number: float | None) -> float | None:
    """The number with few digits. NaN and infinities, which JSON does not have, become null."""
    if number is None or number != number or abs(number) == float("inf"):
        return None
    return float(f"{float(number):.{_DIGITS}g}")
