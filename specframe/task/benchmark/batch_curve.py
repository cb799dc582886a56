"""Throughput against latency: the sides of a benchmark at several numbers of lanes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table

from specframe.errors import IncompatibleComponents
from specframe.measure.batch_times import BatchTimes
from specframe.prompts.questions import encode_turns
from specframe.prompts.reader import PromptRecord
from specframe.session.engine import Engine
from specframe.session.lanes import Request
from specframe.task.benchmark.lineup import label_of
from specframe.task.benchmark.peer_side import PeerSide
from specframe.task.benchmark.sides import Side
from specframe.terminal.progress import PromptProgress
from specframe.terminal.text_table import shown, text_table


@dataclass(frozen=True, kw_only=True)
class BatchPoint:
    """A side at one number of lanes, over the first turns of all prompts."""

    label: str  # of the side
    batch_size: int
    throughput: float | None  # tokens of all lanes a second, prefill included
    full_throughput: float | None  # of steps in which all lanes were under way
    ms_per_token: float | None  # of one lane: its own time / its tokens of verify steps
    mean_lanes: float | None
    num_texts: int
    num_same_text: int  # that are what the prompt gets alone, token for token
    throughput_ratio: float | None = None  # over drafter=none at as many lanes
    over_best_plain: float | None = None  # over drafter=none at the lanes that suit it best


class BatchCurve:
    """Decodes the prompts with each side at each number of lanes, the sides in turns."""

    def __init__(
        self,
        sides: Sequence[Side],
        records: Sequence[PromptRecord],
        batch_sizes: Sequence[int],
        config: dict[str, Any],
    ) -> None:
        self._sides = [side for side in sides if not isinstance(side, PeerSide)]
        self._records, self._sizes, self._config = records, batch_sizes, config

    def measure(self) -> list[BatchPoint]:
        """The points, by numbers of lanes, then sides. A side that cannot is left out, in words."""
        alone = {side.name: self._texts(side.engine) for side in self._sides}
        found: list[BatchPoint] = []
        total = len(self._sizes) * len(self._sides) * len(self._records)
        with PromptProgress("lanes", total=total, done=0) as progress:
            for turn, size in enumerate(self._sizes):
                for side in self._sides if turn % 2 == 0 else self._sides[::-1]:
                    try:
                        found.append(self._point(side, size, alone[side.name], progress))
                    except IncompatibleComponents as error:
                        sys.stderr.write(f"specframe: {error}\n")
        return compared(found, plain=_plain_label(self._sides, self._config))

    def _texts(self, engine: Engine) -> list[list[int]]:
        """Each prompt's answer alone."""
        return [engine.generate(prompt, sequence=i).tokens for i, prompt in self._prompts(engine)]

    def _prompts(self, engine: Engine) -> Iterator[tuple[int, list[int]]]:
        for number, record in enumerate(self._records):
            yield number, encode_turns(engine, record, [])

    def _point(
        self, side: Side, size: int, alone: Sequence[list[int]], progress: PromptProgress
    ) -> BatchPoint:
        lanes = side.engine.lanes(size)
        requests = [
            Request(number=number, prompt_tokens=prompt, sequence=number)
            for number, prompt in self._prompts(side.engine)
        ]
        same, decode_s, num_tokens = 0, 0.0, 0
        for finished in lanes.answers(requests):
            if finished.error is not None:
                raise finished.error
            answer = finished.answer
            assert answer is not None
            same += answer.tokens == alone[finished.request.number]
            decode_s += answer.decode_s
            num_tokens += sum(step.num_tokens for step in answer.steps)
            progress.add_tokens(len(answer.tokens))
            progress.add_prompts(1)
        return _point_of(
            label_of(side, self._config),
            lanes.times,
            ms_per_token=1e3 * decode_s / num_tokens if num_tokens else None,
            num_texts=len(requests),
            num_same_text=same,
        )


def _point_of(label: str, times: BatchTimes, **numbers: Any) -> BatchPoint:
    return BatchPoint(
        label=label,
        batch_size=times.batch_size,
        throughput=times.throughput,
        full_throughput=times.full_throughput,
        mean_lanes=times.mean_lanes,
        **numbers,
    )


def _plain_label(sides: Sequence[Side], config: dict[str, Any]) -> str | None:
    """The label of the side without a draft, if there is one."""
    plain = [side for side in sides if not side.engine.components.drafter.traits.drafts]
    return label_of(plain[0], config) if plain else None


def compared(points: Sequence[BatchPoint], *, plain: str | None) -> list[BatchPoint]:
    """The points beside plain decoding at as many lanes, and at those that suit it best."""
    base = {p.batch_size: p.throughput for p in points if p.label == plain and p.throughput}
    best = max(base.values(), default=None)

    def ratio(mine: float | None, other: float | None) -> float | None:
        return mine / other if mine and other else None

    return [
        replace(
            point,
            throughput_ratio=ratio(point.throughput, base.get(point.batch_size)),
            over_best_plain=ratio(point.throughput, best),
        )
        for point in points
    ]


def printed_curve(points: Sequence[BatchPoint]) -> Iterator[Table | str]:
    """A sentence and a table of the points, sides together."""
    yield "Several answers at once (batch_size); every text is held against the one it is alone:"
    headings = ["method", "lanes", "throughput", "all full", "ms/token", "over plain", "over best"]
    rows = []
    for point in sorted(points, key=lambda one: one.label):
        rows.append(
            [
                point.label,
                str(point.batch_size),
                shown(point.throughput, 1),
                shown(point.full_throughput, 1),
                shown(point.ms_per_token, 1),
                shown(point.throughput_ratio),
                shown(point.over_best_plain),
                f"{point.num_same_text}/{point.num_texts}",
            ]
        )
    yield text_table([*headings, "same text"], rows, num_names=1)
