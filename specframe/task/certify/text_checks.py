"""Checks of texts. Each runs the combination, and a broken component that it must notice.

`Check` is the result of any check of a certificate, of texts or of laws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from specframe.accept.base import AcceptRule
from specframe.cache.base import CACHES
from specframe.drafter.base import DRAFTERS, Drafter
from specframe.records import StepRecord
from specframe.session.engine import Engine
from specframe.target.base import Target
from specframe.task.certify.broken import Careless, Shifted
from specframe.task.certify.reference import Divergence, compare, greedy_reference, plain_reference


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check."""

    name: str
    passed: bool | None  # None if it was not run, or can only report (half precision)
    finding: str  # a sentence
    numbers: dict[str, Any] = field(default_factory=dict)  # behind the finding
    control: str = ""  # title of the broken component on which the check was tried
    caught: bool | None = None  # whether the check noticed it; None without a control
    stand_in: str = ""  # what was judged where the user's drafter cannot run on the toy
    ran: bool = True
    applies: bool = True  # False where nothing is promised that could be checked


def not_run(name: str, reason: str, *, applies: bool = False) -> Check:
    """The result of a check that was not run, for this reason.

    applies: False if nothing is promised that could be checked, True if it could not be run.
    """
    return Check(name=name, passed=None, finding=reason, ran=False, applies=applies)


@dataclass(frozen=True, kw_only=True)
class Texts:
    """What the checks of texts run on."""

    prompts: Sequence[Sequence[int]]  # token ids
    max_new_tokens: int
    max_gap: float  # of logits; half precision may choose otherwise at ties nearer than this


def with_rule(engine: Engine, rule: AcceptRule) -> Engine:
    """The same engine under another acceptance rule."""
    return Engine(replace(engine.components, accept=rule), engine.settings)


def with_drafter(engine: Engine, drafter: Drafter) -> Engine:
    """The same engine with another drafter."""
    return Engine(replace(engine.components, drafter=drafter), engine.settings)


def greedy_text(engine: Engine, texts: Texts) -> Check:
    """Compare the text of an engine at temperature 0 with that of full forwards without a cache."""
    reference = greedy_reference(engine, texts.max_new_tokens)
    return _text_check("greedy text", engine, texts, reference)


def seeded_text(engine: Engine, texts: Texts) -> Check:
    """Compare the text of an engine at temperature > 0 with that of drafter=none, same seed."""
    reference = plain_reference(engine, texts.max_new_tokens)
    return _text_check("same-seed text", engine, texts, reference)


def _text_check(name: str, engine: Engine, texts: Texts, reference: Any) -> Check:
    divergences, drafted, total = [], DraftCounter(), 0
    for index, prompt in enumerate(texts.prompts):
        result = engine.generate(
            prompt, sequence=index, max_new_tokens=texts.max_new_tokens, observers=[drafted]
        )
        total += len(result.tokens)
        divergences.append(_difference(engine, index, result.tokens, texts, reference))
    caught = _text_control(with_rule(engine, Careless()), texts, reference)
    split = [each for each in divergences if each is not None]
    strict = equality_is_required(engine.components.target)
    passed: bool | None = not split
    if not strict:
        passed = False if any(each.gap > texts.max_gap for each in split) else None
    return Check(
        name=name,
        passed=passed,
        finding=f"{_text_finding(engine, split, len(texts.prompts), total)}; {drafted.sentence()}",
        numbers={
            "texts": len(texts.prompts),
            "tokens": total,
            "drafted_rows": drafted.num_rows,
            "num_accepted": drafted.num_accepted,
            "divergences": [vars(each) for each in split],
        },
        control=Careless.title,
        caught=caught,
    )


def _difference(
    engine: Engine, index: int, tokens: Sequence[int], texts: Texts, reference: Any
) -> Divergence | None:
    return compare(
        engine,
        texts.prompts[index],
        tokens,
        reference,
        sequence=index,
        max_new_tokens=texts.max_new_tokens,
    )


def _text_control(broken: Engine, texts: Texts, reference: Any) -> bool:
    """Whether any text of a broken engine differs from the reference."""
    for index, prompt in enumerate(texts.prompts):
        tokens = broken.generate(prompt, sequence=index, max_new_tokens=texts.max_new_tokens).tokens
        if _difference(broken, index, tokens, texts, reference) is not None:
            return True
    return False


def equality_is_required(target: Target) -> bool:
    """Whether other passes must give the same text: in float64, and in float32 on a CPU."""
    exact = target.dtype == torch.float64
    return exact or (target.dtype == torch.float32 and target.device.type == "cpu")


def _text_finding(engine: Engine, split: list[Divergence], texts: int, total: int) -> str:
    target = engine.components.target
    if not split:
        same = f"no divergence in {texts} texts, {total} tokens"
        if equality_is_required(engine.components.target):
            return same
        kind = f"{str(target.dtype).removeprefix('torch.')} on {target.device.type}"
        return f"{same}; {kind} promises no equality, so this is a report"
    first = split[0]
    return (
        f"{len(split)} of {texts} texts diverge, the first at its token {first.place}: "
        f"{first.got} instead of {first.wanted}, logit gap {first.gap:.3g}"
    )


class DraftCounter:
    """Counts drafted rows and accepted tokens: where nothing was drafted, a check proves little."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.num_accepted = 0

    def sentence(self) -> str:
        """The counts in words."""
        return f"{self.num_rows} rows drafted, {self.num_accepted} tokens of them emitted"

    def observe(self, record: StepRecord) -> None:
        """Count one step."""
        self.num_rows += record.draft.num_rows - 1
        self.num_accepted += record.num_accepted


def perfect_drafter(engine: Engine, prompt: Sequence[int], *, max_new_tokens: int) -> Check:
    """Check that a draft model which is the target itself is accepted to a leaf at each step."""
    short = _refusals(with_drafter(engine, perfect_lm(engine)), prompt, max_new_tokens)
    name = f"perfect drafter, T = {engine.settings.sampling.temperature:g}"
    if not short.drafted:
        return not_run(name, "this tree drafts nothing here, so there is nothing to accept")
    shifted = Shifted(inner=perfect_lm(engine))
    broken = _refusals(with_drafter(engine, shifted), prompt, max_new_tokens)
    return Check(
        name=name,
        passed=short.refused == 0,
        finding=(
            f"{short.steps - short.refused} of {short.steps} drafts accepted in full, "
            f"{short.accepted} drafted tokens emitted"
        ),
        numbers={**vars(short), "control_refused": broken.refused},
        control=Shifted.title,
        caught=broken.refused > 0,
    )


def perfect_lm(engine: Engine) -> Drafter:
    """drafter=lm whose model is the target itself."""
    build: Any = DRAFTERS.get("lm")
    return build(
        model=engine.components.target,
        target=engine.components.target,
        new_cache=CACHES.get("dynamic"),
        trust_vocabulary=True,
    )


class Refusals:
    """Counts steps, and those whose walk ended above a leaf of the draft (`refused`)."""

    def __init__(self) -> None:
        self.steps = 0
        self.refused = 0
        self.drafted = 0
        self.accepted = 0

    def observe(self, record: StepRecord) -> None:
        """Count one step."""
        draft, last = record.draft, record.path[-1] if record.path else 0
        inner = ((draft.parents == last) & draft.alive).any()
        self.steps += 1
        self.drafted += draft.num_rows - 1
        self.accepted += record.num_accepted
        self.refused += int(bool(inner) and not record.was_cut)


def _refusals(engine: Engine, prompt: Sequence[int], max_new_tokens: int) -> Refusals:
    watcher = Refusals()
    engine.generate(prompt, max_new_tokens=max_new_tokens, observers=[watcher])
    return watcher
