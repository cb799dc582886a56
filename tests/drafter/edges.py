"""Edges that methods of one kind share: an end within a guess, reports of cold and warm prompts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import specframe
from specframe.accept.base import AcceptRule
from specframe.accept.rejection import Rejection
from specframe.drafter.base import Drafter
from specframe.loop import Decoding
from specframe.records import StepRecord
from specframe.session.stopping import Stopping
from specframe.target.toy import Toy
from specframe.task.certify.enumeration import (
    Enumerator,
    branches,
    exact_law,
    max_error,
    sequence_law,
)
from specframe.task.generate import Generate
from specframe.tree.chain import ChainTree
from specframe.types import How
from tests.commands import job_of
from tests.small_models import (
    PROMPT,
    Composition,
    lm_of,
    oracle,
    sampling_config,
    stop_config,
    target,
    toy,
)


def ends_within(
    drafter: Any, tree: Any, teach: Callable[[list[int], list[int]], None]
) -> Iterator[StepRecord]:
    """The last step of texts that end by a token at each of several places.

    teach: called before every step with what was emitted and the whole text; it gives the drafter
    a right guess, so that the end lies within one.
    """
    text = oracle("llama", PROMPT, 60)
    places = [place for place, token in enumerate(text[:22]) if token not in text[:place]]
    for place in places[2:]:
        stop = stop_config(eos=[text[place]])
        composed = Composition(target=target("llama"), drafter=drafter, tree=tree, stop=stop)
        loop = composed.decoding(60)
        emitted = loop.begin(PROMPT)
        while loop.finish_reason is None:
            teach(emitted, text)
            record = loop.step()
            emitted += record.tokens
        assert emitted == text[: place + 1]
        assert loop.finish_reason == "eos"
        yield record


def law_error(drafter: Any, tree: Any, big: Toy, *, length: int = 5) -> float:
    """How far the law of a whole text is from the target's, by enumeration."""
    made = Composition(
        target=big, drafter=drafter, tree=tree, sampling=sampling_config(1.0)
    ).engine()
    law, _ = sequence_law(made, (0, 1, 2, 0), length=length, max_branches=3000)
    return max_error(law, exact_law(big, made.sampling(4), (0, 1, 2, 0), length=length))


def report_of_three(folder: Path, *words: str) -> tuple[list[Any], dict[str, Any]]:
    """task=generate over three prompts: whether each answer was warm, and metrics.json."""
    engine = specframe.load(["target=toy", "max_new_tokens=16", *words])
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in ("abc", "de", "f")))
    job = job_of(engine, folder, prompts=prompts)
    assert Generate(stream=False, colour="never", show_rejected=False).run(job) == 0
    lines = (folder / "generations.jsonl").read_text().splitlines()
    metrics = json.loads((folder / "metrics.json").read_text())
    return [json.loads(line).get("warm") for line in lines], metrics


def nested_law(
    cascade: Callable[[Decoding, Toy, Toy], Drafter],
    *,
    length: int,
    rule: AcceptRule,
    how: How,
    penalty: float | None = None,
) -> float:
    """Error of the law of a drafter over an inner loop, on two tokens, all draws enumerated.

    cascade: (the inner loop, its target, the outer target) -> the drafter.
    """
    outer, middle = toy(vocab_size=2), toy(vocab_size=2, blend=0.5)
    hot = sampling_config(1.0, repetition_penalty=penalty)

    def decoding(composition: Composition, rng: Enumerator, room: int) -> Any:
        loop = composition.decoding(room)
        loop.terms = replace(loop.terms, stopping=Stopping([]), streams=lambda sequence: rng)
        return loop

    def run(rng: Enumerator) -> tuple[int, ...]:
        inside = Composition(
            target=middle,
            drafter=lm_of(toy(vocab_size=2, blend=0.9), middle),
            tree=ChainTree(depth=1, max_nodes=3, proposal=how),
            accept=rule,
            how=how,
            sampling=hot,
        )
        outside = Composition(
            target=outer,
            drafter=cascade(decoding(inside, rng.beside(), 20), middle, outer),
            tree=ChainTree(depth=2, max_nodes=4, proposal="place"),
            accept=Rejection(),
            sampling=hot,
        )
        loop = decoding(outside, rng, length)
        tokens = loop.begin((0, 1))
        while loop.finish_reason is None:
            tokens += loop.step().tokens
        return tuple(tokens)

    law: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for tokens, probability in branches(run, max_branches=60_000):
        law[tokens] += probability
    sampling = Composition(target=outer, sampling=hot).engine().sampling(2)
    return max_error(dict(law), exact_law(outer, sampling, (0, 1), length=length))
