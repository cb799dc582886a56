"""What a benchmark says at its end: whether texts are exact, times add up, and a paper is met."""

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
    """sentences for the reader; failures among them make the exit code 1."""

    sentences: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    expects: dict[str, Any] | None = None  # `Expectation.judge`

    @property
    def exit_code(self) -> int:
        """1 if anything failed."""
        return int(bool(self.failures))

    def as_dict(self) -> dict[str, Any]:
        """For summary.json."""
        return {"notes": self.sentences, "failures": self.failures, "expects": self.expects}


def verdict(
    rows: Sequence[Row], *, engine: Engine, config: dict[str, Any], found: dict[str, Any]
) -> BenchmarkVerdict:
    """Judge the rows of a run. found: their summary."""
    said = BenchmarkVerdict()
    if found["num_errors"]:
        said.failures.append(f"{found['num_errors']} prompts could not be answered")
    if found["overall"] is not None:
        _judge_texts(rows, engine, said)
        _judge_split(found["overall"], said)
        if config.get("expects") is not None:
            _judge_paper(found["overall"], engine, config, said)
    return said


def must_be_exact(engine: Engine) -> bool:
    """Whether its text has to be plain decoding's, token for token: by rule, dtype and device."""
    parts = engine.parts
    greedy = engine.settings.sampling.temperature < GREEDY_BELOW
    same = parts.accept.lossless and (greedy or parts.accept.same_text)
    exact = parts.target.dtype in (torch.float32, torch.float64)
    return same and exact and parts.target.device.type == "cpu"


def _judge_texts(rows: Sequence[Row], engine: Engine, said: BenchmarkVerdict) -> None:
    parts = engine.parts
    pairs = [(row, one) for row in rows for one in row.agreements]
    if not pairs:
        said.sentences.append("no exact text to compare with; give task.reference=")
        return
    apart = [(row, one) for row, one in pairs if not one.same]
    greedy = engine.settings.sampling.temperature < GREEDY_BELOW
    if not apart:
        said.sentences.append(f"all {len(pairs)} texts equal plain decoding's, token for token")
        return
    row, first = apart[0]
    gap = "" if first.logit_gap is None else f", logit gap {first.logit_gap:.2e}"
    where = f"first in prompt {row.index + 1} at token {first.num_common + 1}{gap}"
    text = f"{len(apart)} of {len(pairs)} texts differ from plain decoding's, {where}"
    if not parts.accept.lossless or not (greedy or parts.accept.same_text):
        reason = "lossy" if not parts.accept.lossless else "exact in law, not in text"
        said.sentences.append(f"{text} (the rule is {reason})")
    elif parts.runtime.weights.lossy and not any(row.sides.get(BASELINE) for row in rows):
        # Another run's texts, whose weights may not be rounded as these are.
        said.sentences.append(f"{text} ({parts.runtime.weights.lossy})")
    elif must_be_exact(engine):
        said.failures.append(f"{text}; this rule must give the same")
    else:
        said.sentences.append(f"{text} (in {parts.target.dtype} near ties may fall either way)")


def _judge_split(overall: dict[str, Any], said: BenchmarkVerdict) -> None:
    for name in ("method", "baseline"):
        split = overall.get(name, {}).get("split")
        if split is not None and abs(1 - split["covered"]) > _COVERED:
            said.failures.append(
                f"the phases of {name} cover {100 * split['covered']:.1f} % of their wall time"
            )


def _judge_paper(
    overall: dict[str, Any], engine: Engine, config: dict[str, Any], said: BenchmarkVerdict
) -> None:
    expected = Expectation.of(config["expects"])
    said.expects = expected.judge(overall["method"]["acceptance_length"], describe(engine, config))
    said.sentences.append(sentence(said.expects))
