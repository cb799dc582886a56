"""Checks of a certificate on texts: each runs the combination and a broken one it must catch."""

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
from specframe.task.certify.broken import Careless, Shifted
from specframe.task.certify.reference import Divergence, compare, greedy_oracle, plain


@dataclass(frozen=True, kw_only=True)
class Check:
    """What one check found.

    passed: None if it was not run, or if it can only report (half precision). control: the broken
    component it was tried on; caught: whether it noticed (None: there was no control).
    applies: false where nothing is promised that could be checked.
    """

    name: str
    passed: bool | None
    finding: str
    numbers: dict[str, Any] = field(default_factory=dict)
    control: str = ""
    caught: bool | None = None
    ran: bool = True
    applies: bool = True


def not_run(name: str, reason: str, *, applies: bool = False) -> Check:
    """A check that does not apply, or that could not be run, and why."""
    return Check(name=name, passed=None, finding=reason, ran=False, applies=applies)


@dataclass(frozen=True, kw_only=True)
class Texts:
    """What the checks of text run on: token ids, tokens per answer, gap of a near tie."""

    prompts: Sequence[Sequence[int]]
    max_new_tokens: int
    max_gap: float


def with_rule(engine: Engine, rule: AcceptRule) -> Engine:
    """The same engine under another acceptance rule."""
    return Engine(replace(engine.parts, accept=rule), engine.settings)


def with_drafter(engine: Engine, drafter: Drafter) -> Engine:
    """The same engine with another drafter."""
    return Engine(replace(engine.parts, drafter=drafter), engine.settings)


def greedy_text(engine: Engine, texts: Texts) -> Check:
    """Text of an engine at temperature 0 against full forwards that use no cache."""
    return _text_check("greedy text", engine, texts, greedy_oracle(engine, texts.max_new_tokens))


def seeded_text(engine: Engine, texts: Texts) -> Check:
    """Text of an engine at temperature > 0 against drafter=none with the same seed."""
    return _text_check("same-seed text", engine, texts, plain(engine, texts.max_new_tokens))


def _text_check(name: str, engine: Engine, texts: Texts, reference: Any) -> Check:
    found, drafted, total = [], CountedText(), 0
    for index, prompt in enumerate(texts.prompts):
        result = engine.generate(
            prompt, sequence=index, max_new_tokens=texts.max_new_tokens, observers=[drafted]
        )
        total += len(result.tokens)
        found.append(compare(engine, prompt, result.tokens, reference, sequence=index))
    caught = _text_control(with_rule(engine, Careless()), texts, reference)
    split = [one for one in found if one is not None]
    strict = _equality_is_required(engine)
    passed: bool | None = not split
    if not strict:
        passed = False if any(one.gap > texts.max_gap for one in split) else None
    return Check(
        name=name,
        passed=passed,
        finding=_text_finding(engine, split, len(found), total) + drafted.words(),
        numbers={
            "texts": len(found),
            "tokens": total,
            "drafted_rows": drafted.rows,
            "num_accepted": drafted.accepted,
            "divergences": [vars(one) for one in split],
        },
        control=Careless.title,
        caught=caught,
    )


def _text_control(broken: Engine, texts: Texts, reference: Any) -> bool:
    """Whether any text of a broken engine is seen to differ."""
    for index, prompt in enumerate(texts.prompts):
        tokens = broken.generate(prompt, sequence=index, max_new_tokens=texts.max_new_tokens).tokens
        if compare(broken, prompt, tokens, reference, sequence=index) is not None:
            return True
    return False


def _equality_is_required(engine: Engine) -> bool:
    target = engine.parts.target
    exact = target.dtype == torch.float64
    return exact or (target.dtype == torch.float32 and target.device.type == "cpu")


def _text_finding(engine: Engine, split: list[Divergence], texts: int, total: int) -> str:
    target = engine.parts.target
    if not split:
        same = f"no divergence in {texts} texts, {total} tokens"
        if _equality_is_required(engine):
            return same
        kind = f"{str(target.dtype).removeprefix('torch.')} on {target.device.type}"
        return f"{same}; {kind} promises no equality, so this is a report"
    first = split[0]
    return (
        f"{len(split)} of {texts} texts diverge, the first at its token {first.place}: "
        f"{first.got} instead of {first.wanted}, logit gap {first.gap:.3g}"
    )


class CountedText:
    """Counts drafted rows and accepted tokens, so that a report shows what was at stake."""

    def __init__(self) -> None:
        self.rows = 0
        self.accepted = 0

    def words(self) -> str:
        """What was at stake, to end a sentence."""
        return f"; {self.rows} rows drafted, {self.accepted} tokens of them emitted"

    def observe(self, record: StepRecord) -> None:
        """Add one step."""
        self.rows += record.draft.num_rows - 1
        self.accepted += record.num_accepted


def perfect_drafter(engine: Engine, prompt: Sequence[int], *, max_new_tokens: int) -> Check:
    """A draft model that is the target itself must be accepted down to a leaf at every step."""
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
        model=engine.parts.target,
        target=engine.parts.target,
        new_cache=CACHES.get("dynamic"),
        trust_vocabulary=True,
    )


class Refusals:
    """Steps whose walk ended above a leaf of the draft."""

    def __init__(self) -> None:
        self.steps = 0
        self.refused = 0
        self.drafted = 0
        self.accepted = 0

    def observe(self, record: StepRecord) -> None:
        """Look at one step."""
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
