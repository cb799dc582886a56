"""The engine beside transformers' own `generate`: same model, same prompts, one process."""

from __future__ import annotations

import inspect
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from specframe.binding import Range
from specframe.data.prompts import PromptRecord, read_prompts
from specframe.errors import IncompatibleComponents
from specframe.generation import Engine
from specframe.task.base import TASKS, Job, Task


@dataclass(frozen=True, kw_only=True)
class Runner:
    """A way to answer a prompt: token ids in, answer ids out. owner: has the `forward` to time."""

    name: str
    answer: Callable[[list[int]], list[int]]
    owner: Any


@dataclass(frozen=True, kw_only=True)
class Line:
    """Sums over prompts of the median over rounds. forward_s: inside the target's forward."""

    name: str
    wall_s: float
    forward_s: float
    num_tokens: int
    num_forwards: int
    same_text: int  # prompts whose ids equal the first runner's


@TASKS.register("peers")
class Peers(Task):
    """Times drafter=none against `generate`, and the run's drafter against its peer there.

    Interleaved A B C D A B C D ..., greedy, after one uncounted answer each; ratios count, seconds
    depend on the machine. `generate` runs on the weights as they were loaded, ours on what runtime=
    makes of them. Peers: ngram - prompt_lookup_num_tokens, lm - assistant_model; another
    drafter has none and is timed beside the plain `generate`.
    """

    def __init__(
        self,
        *,
        rounds: Annotated[int, Range(1, 100)],
        per_category: Annotated[int, Range(1, 8)],
        lookup_tokens: Annotated[int, Range(1, 64)],
    ) -> None:
        self.rounds = rounds
        self.per_category = per_category
        self.lookup_tokens = lookup_tokens

    def run(self, job: Job) -> int:
        if not hasattr(job.engine.parts.target, "model"):
            raise IncompatibleComponents("task=peers needs a model of transformers: use target=hf")
        runners = self._runners(job)
        prompts = [job.engine.encode(record.turns[0]) for record in self._prompts(job)]
        for runner in runners:
            runner.answer(prompts[0])
        samples: list[dict[str, list[_Sample]]] = []
        for prompt in _with_progress(prompts):
            taken: dict[str, list[_Sample]] = {runner.name: [] for runner in runners}
            for _ in range(self.rounds):
                for runner in runners:
                    taken[runner.name].append(_measure(runner, prompt))
            samples.append(taken)
        lines = [_line(runner.name, runners[0].name, samples) for runner in runners]
        report = {"num_prompts": len(prompts), "rounds": self.rounds, "lines": lines}
        self._write(job, {**report, "lines": [asdict(line) for line in lines]})
        Console().print(_table(lines))
        return 0

    def _prompts(self, job: Job) -> list[PromptRecord]:
        if job.prompts is not None:
            return read_prompts(job.prompts)
        chosen: dict[str | None, list[PromptRecord]] = {}
        for record in read_prompts("builtin"):
            chosen.setdefault(record.category, []).append(record)
        return [record for group in chosen.values() for record in group[: self.per_category]]

    def _runners(self, job: Job) -> list[Runner]:
        drafter = job.config["drafter"]["name"]
        greedy = ["sampling.temperature=0"]
        plain = job.rebuild([*greedy, "runtime=eager"])  # packed weights are not transformers' own
        model = plain.parts.target.model  # type: ignore[attr-defined]
        ours = {"none": job.rebuild([*greedy, "drafter=none"])}
        peers: dict[str, dict[str, Any] | None] = {"none": {}}
        if drafter != "none":
            ours[drafter] = job.rebuild(greedy)
            peers[drafter] = self._peer(drafter, plain)
        runners = []
        for name, engine in ours.items():
            label = "drafter=none" if name == "none" else f"drafter={name}"
            target = engine.parts.target
            runners.append(Runner(name=label, answer=_engine_answer(engine), owner=target))
            options = peers[name]
            if options is None:
                continue
            title = ", ".join(f"{key}={_short(value)}" for key, value in options.items())
            answer = _model_answer(model, engine, options)
            runners.append(Runner(name=f"generate({title})", answer=answer, owner=model))
        return runners

    def _peer(self, drafter: str, engine: Engine) -> dict[str, Any] | None:
        """Options of `generate` that draft as this drafter does, None if there are none."""
        if drafter == "ngram":
            return {"prompt_lookup_num_tokens": self.lookup_tokens}
        if drafter == "lm":
            return {"assistant_model": engine.parts.drafter.model.model}  # type: ignore[attr-defined]
        return None

    def _write(self, job: Job, report: dict[str, Any]) -> None:
        text = json.dumps(report, indent=2)
        (job.output_dir / "peers.json").write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class _Sample:
    wall_s: float
    forward_s: float
    num_forwards: int
    tokens: list[int]


def _engine_answer(engine: Engine) -> Callable[[list[int]], list[int]]:
    return lambda prompt: engine.generate(prompt).tokens


def _model_answer(
    model: Any, engine: Engine, options: dict[str, Any]
) -> Callable[[list[int]], list[int]]:
    import transformers

    # A model's own generation config may sample or penalise, which nobody asked for here.
    config = transformers.GenerationConfig(
        max_new_tokens=engine.settings.max_new_tokens,
        do_sample=False,
        repetition_penalty=engine.settings.sampling.repetition_penalty or 1.0,
        eos_token_id=list(engine.eos_ids) or None,
        pad_token_id=0,
        **{key: value for key, value in options.items() if isinstance(value, int)},
    )
    models = {key: value for key, value in options.items() if not isinstance(value, int)}

    def answer(prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt], device=model.device)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            **models,
        )
        return out[0, len(prompt) :].tolist()

    return answer


def _measure(runner: Runner, prompt: list[int]) -> _Sample:
    with _forwards(runner.owner) as spent:
        start = time.perf_counter()
        tokens = runner.answer(prompt)
        wall = time.perf_counter() - start
    return _Sample(wall, sum(spent), len(spent), tokens)


@contextmanager
def _forwards(owner: Any) -> Iterator[list[float]]:
    """Seconds of each forward of a target or a model, while it lasts."""
    spent: list[float] = []
    forward = owner.forward

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return forward(*args, **kwargs)
        finally:
            spent.append(time.perf_counter() - start)

    # generate() looks at the signature to know what the model takes.
    timed.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    owner.forward = timed
    try:
        yield spent
    finally:
        del owner.forward


def _with_progress(prompts: list[list[int]]) -> Iterable[list[int]]:
    bar = Console(stderr=True)
    return track(prompts, "prompts", console=bar, transient=True, disable=not bar.is_terminal)


def _line(name: str, reference: str, samples: list[dict[str, list[_Sample]]]) -> Line:
    def total(field: str) -> float:
        return sum(statistics.median(getattr(s, field) for s in one[name]) for one in samples)

    return Line(
        name=name,
        wall_s=total("wall_s"),
        forward_s=total("forward_s"),
        num_tokens=sum(len(one[name][0].tokens) for one in samples),
        num_forwards=sum(one[name][0].num_forwards for one in samples),
        same_text=sum(one[name][0].tokens == one[reference][0].tokens for one in samples),
    )


def _short(value: Any) -> str:
    return str(value) if isinstance(value, int) else type(value).__name__


def _table(lines: list[Line]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "seconds", "tokens/s", "forwards", "outside forward", "same text"):
        table.add_column(heading, justify="left" if not heading else "right")
    for line in lines:
        table.add_row(
            line.name,
            f"{line.wall_s:.2f}",
            f"{line.num_tokens / line.wall_s:.1f}",
            str(line.num_forwards),
            f"{100 * (1 - line.forward_s / line.wall_s):.1f} %",
            str(line.same_text),
        )
    return table
