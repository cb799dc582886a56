"""The check that no coin or draw of a sequence is asked for twice."""

from __future__ import annotations

from dataclasses import dataclass

from specframe.law.checked_streams import CheckedStreams, ReusedDraw
from specframe.session.engine import Engine
from specframe.task.certify.reused_coins import BlockAgain, Stuck
from specframe.task.certify.text_checks import Check, Texts, not_run, with_rule

NAME = "no coin twice"


def no_coin_twice(engine: Engine, texts: Texts) -> Check:
    """Decode in checking mode, where a coin or draw that comes twice in a sequence is refused."""
    seen, rule = _run(engine, texts), engine.components.accept
    # The subtle one shows nothing where no draft is two tokens deep, or none is refused.
    for broken in (BlockAgain(), Stuck(rule)):
        control = _run(with_rule(engine, broken), texts)
        if control.reason:
            break
    if not (seen.reason or control.reason):
        if max(seen.steps, control.steps) < 2:
            return not_run(NAME, "each text ends before a second step", applies=True)
        if not rule.lossless:
            return not_run(NAME, "this rule draws nothing, so there is nothing to repeat")
    size = f"{len(texts.prompts)} texts, {seen.tokens} tokens"
    return Check(
        name=NAME,
        passed=not seen.reason,
        finding=seen.reason or f"every coin and draw was a new one, in {size}",
        numbers={"texts": len(texts.prompts), "tokens": seen.tokens},
        control=broken.title,
        caught=bool(control.reason),
    )


@dataclass(kw_only=True)
class _Run:
    """What was decoded in checking mode, up to a repetition."""

    reason: str = ""  # what the repeated coin says of itself; "" if none came twice
    tokens: int = 0
    steps: int = 0  # of the text that had most


def _run(engine: Engine, texts: Texts) -> _Run:
    decoding = engine.decoding(max_new_tokens=texts.max_new_tokens, streams=CheckedStreams)
    run = _Run()
    try:
        for index, prompt in enumerate(texts.prompts):
            for step, emission in enumerate(decoding.run(prompt, sequence=index)):
                run.tokens += len(emission.tokens)
                run.steps = max(run.steps, step)
    except ReusedDraw as error:
        run.reason = str(error)
    return run
