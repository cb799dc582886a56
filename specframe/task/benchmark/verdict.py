"""The verdict of a benchmark: are texts exact, do times add up, is a paper's figure met?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from specframe.law.sampling import GREEDY_BELOW
from specframe.session.engine import Engine
from specframe.session.manifest import describe
from specframe.task.benchmark.paper import Expectation, sentence
from specframe.task.benchmark.rows import Row
from specframe.task.benchmark.sides import BASELINE

_COVERED = 0.02  # share of the wall time by which the phases may miss it


@dataclass
class BenchmarkVerdict:
    """What a benchmark says in words at its end."""

    sentences: list[str] = field(default_factory=list)  # for the reader
    failures: list[str] = field(default_factory=list)  # each of them makes the exit code 1
    conclusion: list[str] = field(default_factory=list)  # what came out, the last words
    expects: dict[str, Any] | None = None  # `Expectation.judge`

    @property
    def exit_code(self) -> int:
        """1 if anything failed."""
        return int(bool(self.failures))

    def as_dict(self) -> dict[str, Any]:
        """For metrics.json."""
        return {
            "notes": self.sentences,
            "failures": self.failures,
            "conclusion": self.conclusion,
            "expects": self.expects,
        }


def verdict_of(
    rows: Sequence[Row], *, engine: Engine, config: dict[str, Any], numbers: dict[str, Any]
) -> BenchmarkVerdict:
    """Judge the rows of a run. numbers: of `scoreboard.summary`."""
    verdict = BenchmarkVerdict()
    if numbers["num_errors"]:
        verdict.failures.append(f"{numbers['num_errors']} prompts could not be answered")
    if numbers["overall"] is not None:
        _judge_texts(rows, engine, verdict)
        _judge_split(numbers["overall"], verdict)
        if config.get("expects") is not None:
            _judge_paper(numbers["overall"], engine, config, verdict)
    return verdict


def must_be_exact(engine: Engine) -> bool:
    """Whether rule, dtype and device promise the text of plain decoding, token for token."""
    parts = engine.components
    greedy = engine.settings.sampling.temperature < GREEDY_BELOW
    same = parts.accept.lossless and (greedy or parts.accept.same_text)
    exact = parts.target.dtype in (torch.float32, torch.float64)
    return same and exact and parts.target.device.type == "cpu"


def _judge_texts(rows: Sequence[Row], engine: Engine, verdict: BenchmarkVerdict) -> None:
    parts = engine.components
    pairs = [(row, pair) for row in rows for pair in row.agreements]
    if not pairs:
        verdict.sentences.append("no exact text to compare with; give task.reference=")
        return
    apart = [(row, pair) for row, pair in pairs if not pair.same]
    greedy = engine.settings.sampling.temperature < GREEDY_BELOW
    if not apart:
        verdict.sentences.append(f"all {len(pairs)} texts equal plain decoding's, token for token")
        return
    row, first = apart[0]
    gap = "" if first.logit_gap is None else f", logit gap {first.logit_gap:.2e}"
    where = f"first in prompt {row.index + 1} at token {first.num_common + 1}{gap}"
    text = f"{len(apart)} of {len(pairs)} texts differ from plain decoding's, {where}"
    if not parts.accept.lossless or not (greedy or parts.accept.same_text):
        reason = "lossy" if not parts.accept.lossless else "exact in law, not in text"
        verdict.sentences.append(f"{text} (the rule is {reason})")
    elif parts.runtime.weights.lossy and not any(row.sides.get(BASELINE) for row in rows):
        # Another run's texts, whose weights may not be rounded as these are.
        verdict.sentences.append(f"{text} ({parts.runtime.weights.lossy})")
    elif must_be_exact(engine):
        verdict.failures.append(f"{text}; this rule must give the same")
    else:
        verdict.sentences.append(f"{text} (in {parts.target.dtype} near ties may fall either way)")


def _judge_split(overall: dict[str, Any], verdict: BenchmarkVerdict) -> None:
    for name in ("method", "baseline"):
        split = overall.get(name, {}).get("split")
        if split is not None and abs(1 - split["covered"]) > _COVERED:
            verdict.failures.append(
                f"the phases of {name} cover {100 * split['covered']:.1f} % of their wall time"
            )


def _judge_paper(
    overall: dict[str, Any], engine: Engine, config: dict[str, Any], verdict: BenchmarkVerdict
) -> None:
    expected = Expectation.of(config["expects"])
    verdict.expects = expected.judge(
        overall["method"]["acceptance_length"], describe(engine, config)
    )
    verdict.sentences.append(sentence(verdict.expects))
