"""The check that an answer in a lane is the one that its prompt gets alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

from specframe.session.engine import Engine
from specframe.session.lanes import Request
from specframe.task.certify.text_checks import Check, DraftCounter, Texts, equality_is_required

NAME = "answers in lanes"
_CONTROL = "noise of the lane in place of the prompt's"


def answers_in_lanes(engine: Engine, texts: Texts, batch_size: int) -> Check:
    """Decode more prompts than there are lanes, at a temperature > 0, and each of them alone."""
    count = max(len(texts.prompts), 2 * batch_size + 1)
    prompts = list(islice(cycle(texts.prompts), count))
    drafted = DraftCounter()
    alone = [
        engine.generate(prompt, sequence=number, max_new_tokens=texts.max_new_tokens).tokens
        for number, prompt in enumerate(prompts)
    ]
    numbers = range(count)
    found = _decoded(engine, prompts, numbers, texts, batch_size, drafted)
    of_lanes = [number % batch_size for number in numbers]
    control = _decoded(engine, prompts, of_lanes, texts, batch_size, DraftCounter())
    same = sum(one == other for one, other in zip(found, alone, strict=True))
    strict = equality_is_required(engine.components.target)
    finding = f"{same} of {count} texts in {batch_size} lanes are what they are alone"
    if not strict:
        finding += "; this precision promises no equality, so this is a report"
    return Check(
        name=NAME,
        passed=same == count if strict else None,
        finding=f"{finding}; {drafted.sentence()}",
        numbers={"texts": count, "num_same_text": same, "batch_size": batch_size},
        control=_CONTROL,
        caught=control != alone,
    )


def _decoded(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    sequences: Sequence[int],
    texts: Texts,
    batch_size: int,
    drafted: DraftCounter,
) -> list[list[int]]:
    """The answers to all prompts, decoded in lanes, in their order."""
    requests = [
        Request(number=place, prompt_tokens=prompt, sequence=sequence, observers=[drafted])
        for place, (prompt, sequence) in enumerate(zip(prompts, sequences, strict=True))
    ]
    lanes = engine.lanes(batch_size, max_new_tokens=texts.max_new_tokens)
    found: dict[int, list[int]] = {}
    for finished in lanes.answers(requests):
        if finished.error is not None:
            raise finished.error
        assert finished.answer is not None
        found[finished.request.number] = finished.answer.tokens
    return [found[place] for place in range(len(prompts))]
