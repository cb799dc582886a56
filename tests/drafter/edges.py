"""Edges that methods of one kind share: an end within a guess, reports of cold and warm prompts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import specframe
from specframe.records import StepRecord
from specframe.target.toy import Toy
from specframe.task.base import Job
from specframe.task.certify.enumeration import exact_law, max_error, sequence_law
from specframe.task.generate import Generate
from tests.small_models import (
    CPU,
    PROMPT,
    RUNTIME,
    Composition,
    oracle,
    sampling_config,
    stop_config,
    target,
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


def small_table(blend: float = 0.0) -> Toy:
    """A toy of three tokens, whose texts can be enumerated; `blend` > 0 drafts for it."""
    return Toy(
        vocab_size=3,
        table_seed=1,
        spread=1.5,
        blend=blend,
        max_positions=None,
        device=CPU,
        runtime=RUNTIME,
        draft=None,
    )


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
    job = Job(
        engine=engine,
        config={},
        output_dir=folder,
        prompt=None,
        prompts=prompts,
        rebuild=lambda more: engine,
    )
    assert Generate(stream=False, colour="never", show_rejected=False).run(job) == 0
    lines = (folder / "generations.jsonl").read_text().splitlines()
    metrics = json.loads((folder / "metrics.json").read_text())
    return [json.loads(line).get("warm") for line in lines], metrics
