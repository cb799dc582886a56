"""Measures the composed method over a suite of prompts, beside plain decoding."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, ClassVar

from specframe.measure.bootstrap import Bootstrap
from specframe.prompts.reader import PromptRecord
from specframe.registry import Range
from specframe.session.arguments import BatchSize
from specframe.session.manifest import write_json
from specframe.task.base import TASKS, Job, Task
from specframe.task.benchmark.batch_curve import BatchCurve, BatchPoint, printed_curve
from specframe.task.benchmark.comparison import Comparison, SideSummary, judge_sides
from specframe.task.benchmark.conclusion import conclusion
from specframe.task.benchmark.contest import Contest, Rules
from specframe.task.benchmark.humaneval_check import code_is_right
from specframe.task.benchmark.lineup import method_label
from specframe.task.benchmark.printout import comparison_printout, method_printout, show
from specframe.task.benchmark.rows import ROWS, Row, RowFile, hash_of, read_reference, settings_of
from specframe.task.benchmark.scoreboard import csv_rows, summary
from specframe.task.benchmark.sides import Side
from specframe.task.benchmark.verdict import BenchmarkVerdict, verdict_of
from specframe.terminal.progress import PromptProgress
from specframe.terminal.text_table import write_csv


@TASKS.register("benchmark")
class Benchmark(Task):
    """Measures a method over the prompts of `data=`, `prompts=` or the built-in set.

    Every number is given by category and overall. In a conversation each side goes on from its own
    answers. The settings:

    - `baseline` also runs drafter=none, interleaved in this process with the same target, runtime,
      cache, stop rule and counter. Without it only acceptance is meaningful, not speed.
    - `reference` names rows of an earlier baseline, whose texts are then compared with.
    - `rounds` is the number of answers to each prompt, whose times are their medians; `warmup` the
      number of prompts that are answered before, uncounted; `per_category` keeps only the first
      prompts of each category.
    - `split` answers each prompt once more with a clock that waits for the device, which tells
      where the time goes. The times of that answer never enter a speed.
    - `run_code` runs the answers to HumanEval in a process with limits.
    - `compare` lists further sides, each given by the words that make it another composition
      ("drafter=suffix tree=auto"); these may set axes and the device, since all sides are asked the
      same. The entry `peers` stands for other engines on the same weights, see `peers.py`. All
      sides answer the prompts in turns and are printed in one table.
    - `passes` lists row counts whose forward passes are timed at the end, beside those of peers;
      the memory of the composed method is measured too, in a process of its own.
    - `batch_sizes` lists numbers of lanes at which every side answers the first turns once more, at
      the end: throughput against the latency of a lane, beside drafter=none at as many lanes and
      at its own best. Each text is held against the one that its prompt gets alone.
    - `resamples` and `confidence` are those of the bootstrap over prompts.

    A drafter that learns from prompt to prompt begins every answer with what the counted answers
    to earlier prompts left: warm-up, rounds and split teach it nothing, and cold and warm answers
    are reported apart.

    The run leaves rows.jsonl (one line a prompt, on the disk before the next prompt starts),
    metrics.json and table.csv. The same command with the same hydra.run.dir goes on after a kill;
    another configuration is refused. The exit code is 1 if a prompt could not be answered, if a
    rule that must give the exact text did not, or if the split misses more than 2 % of its time.
    """

    numbers: ClassVar[tuple[str, ...]] = (
        *("speedup", "speedup_end_to_end", "efficiency", "baseline", "category", "intervals"),
        *("num_compared", "num_same_text", "agreement_prefix", "agreement_tokens", "scores"),
        *("first_token_p50_ms", "first_token_p95_ms", "between_tokens_p50_ms", "target_logprob"),
        *("between_tokens_p95_ms", "between_steps_p50_ms", "between_steps_p95_ms", "starts"),
        *("split", "batches"),
    )
    free: ClassVar[tuple[str, ...]] = ("resamples", "confidence")

    def __init__(
        self,
        *,
        baseline: bool,
        reference: str | None,
        rounds: Annotated[int, Range(1, 1000)],
        warmup: Annotated[int, Range(0, 1000)],
        per_category: Annotated[int, Range(1, None)] | None,
        split: bool,
        run_code: bool,
        compare: list[str] | None,
        passes: list[Annotated[int, Range(1, 4096)]] | None,
        batch_sizes: list[BatchSize] | None,
        resamples: Annotated[int, Range(100, 100_000)],
        confidence: Annotated[float, Range(0.5, 0.999)],
    ) -> None:
        self.baseline = baseline
        self.reference = reference
        self.rounds = rounds
        self.warmup = warmup
        self.per_category = per_category
        self.split = split
        self.run_code = run_code
        if passes is not None and (passes[:1] != [1] or passes != sorted(set(passes))):
            raise ValueError(f"task.passes={passes} must grow from 1, such as [1, 8, 16]")
        if batch_sizes is not None and (batch_sizes != sorted(set(batch_sizes)) or not batch_sizes):
            raise ValueError(f"task.batch_sizes={batch_sizes} must grow, such as [1, 2, 4, 8]")
        self.batch_sizes = batch_sizes
        self.compare = compare
        self.passes = passes
        self.bootstrap = Bootstrap(resamples=resamples, confidence=confidence)

    def run(self, job: Job) -> int:
        records = self._records(job)
        settings = settings_of(job.engine, job.config, records)
        reference = self.reference and read_reference(Path(self.reference), settings)
        contest = Contest(
            job.engine,
            Rules(
                rounds=self.rounds,
                split=self.split,
                code_is_right=code_is_right if self.run_code else None,
            ),
            baseline=self.baseline and job.config["drafter"]["name"] != "none",
            reference=reference or None,
        )
        comparison = self._comparison(job, contest)
        settings |= {} if comparison is None else comparison.settings()
        points: list[BatchPoint] = []
        with RowFile(job.output_dir / ROWS, settings=settings) as file:
            try:
                self._ask(contest, records, file)
                if comparison is not None:
                    comparison.measure(records[0], gaps=self.split)
                if self.batch_sizes is not None:
                    curve = BatchCurve(contest.sides, records, self.batch_sizes, job.config)
                    points = curve.measure()
            finally:
                if file.rows:
                    head = {"settings_hash": hash_of(settings), "num_planned": len(records)}
                    verdict = self._report(job, file.rows, comparison, head, points)
        return verdict.exit_code

    def _comparison(self, job: Job, contest: Contest) -> Comparison | None:
        """The comparison that task.compare or task.passes ask for; its sides join the contest."""
        if self.compare is None and self.passes is None:
            return None
        entries = self.compare or []
        comparison = Comparison(job, contest.sides, entries=entries, rows=self.passes)
        contest.sides = comparison.sides
        return comparison

    def _report(
        self,
        job: Job,
        rows: Sequence[Row],
        comparison: Comparison | None,
        head: dict[str, Any],
        points: Sequence[BatchPoint],
    ) -> BenchmarkVerdict:
        """Write and print what rows and points say. head: first keys of metrics.json."""
        numbers = summary(rows, bootstrap=self.bootstrap, engine=job.engine)
        verdict = verdict_of(rows, engine=job.engine, config=job.config, numbers=numbers)
        written = {**head, **numbers}
        printed = method_printout(numbers)
        sides: list[tuple[Side, SideSummary]] = []
        if comparison is not None:
            summaries = comparison.summaries(rows)
            sides = list(zip(comparison.sides, summaries, strict=False))  # none without an answer
            judge_sides(summaries, comparison.sides, verdict)
            written["comparison"] = comparison.as_dict(summaries)
            printed = comparison_printout(comparison, summaries) or printed
        sides = (
            list(zip(comparison.sides, summaries, strict=True)) if comparison and summaries else []
        )
        if points:
            written["batches"] = [asdict(point) for point in points]
            write_csv(job.output_dir / "batches.csv", written["batches"])
            printed = [*printed, *printed_curve(points)]
        name = method_label(job.config)
        verdict.conclusion = conclusion(numbers, name=name, sides=sides)
        write_json(job.output_dir / "metrics.json", {**written, **verdict.as_dict()})
        write_csv(job.output_dir / "table.csv", csv_rows(numbers))
        show(printed, verdict, folder=job.output_dir)
        return verdict

    def _ask(self, contest: Contest, records: Sequence[PromptRecord], file: RowFile) -> None:
        """Ask all prompts that the file has no row of, and add their rows."""
        done = {row.index for row in file.rows}
        left = [index for index in range(len(records)) if index not in done]
        if done:
            sys.stderr.write(f"benchmark: {len(done)} of {len(records)} prompts are there\n")
        # Numbers of turns, not of prompts asked so far: a run that was cut has the same noise.
        first = [sum(len(r.turns) for r in records[:index]) for index in range(len(records))]
        if done and left and contest.learns:
            sys.stderr.write("benchmark: they are asked again, uncounted, for what is learnt\n")
            for index in sorted(done):
                contest.learn(records[index], sequence=first[index])
        for index in left[: self.warmup]:
            contest.warm_up(records[index])
        with PromptProgress("benchmark", total=len(records), done=len(done)) as progress:
            for index in left:
                row = contest.row(
                    records[index],
                    index=index,
                    sequence=first[index],
                    tick=progress.add_tokens,
                )
                file.add(row)
                if row.error is not None:
                    sys.stderr.write(f"specframe: prompt {index + 1}: {row.error}\n")
                progress.add_prompts(1)

    def _records(self, job: Job) -> list[PromptRecord]:
        """The prompts of the run: of each category the first `per_category`, in their order."""
        counts: Counter[str | None] = Counter()
        chosen = []
        for record in job.records():
            counts[record.category] += 1
            if self.per_category is None or counts[record.category] <= self.per_category:
                chosen.append(record)
        return chosen
