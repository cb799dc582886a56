"""Measures the composed method over a suite of prompts, beside plain decoding."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from specframe.measure.bootstrap import Bootstrap
from specframe.prompts.reader import BUILTIN, PromptRecord, read_prompts
from specframe.registry import Range
from specframe.session.manifest import write_json
from specframe.task.base import TASKS, Job, Task
from specframe.task.benchmark.contest import Contest, Rules
from specframe.task.benchmark.humaneval_check import code_is_right
from specframe.task.benchmark.lineup import Lineup
from specframe.task.benchmark.paper import Expectation
from specframe.task.benchmark.rows import ROWS, Row, RowFile, hash_of, read_reference, settings_of
from specframe.task.benchmark.scoreboard import summary
from specframe.task.benchmark.tables import show, write_csv
from specframe.task.benchmark.verdict import BenchmarkVerdict, verdict
from specframe.terminal.progress import PromptProgress


@TASKS.register("benchmark")
class Benchmark(Task):
    """Every number of a method, by category and overall, over `data=`, `prompts=` or the built-in
    set; a conversation keeps each side's own answers.

    baseline: also drafter=none, interleaved in this process with the same target, runtime, cache,
    stop rule and counter; false: acceptance alone, for which nothing must be timed. reference: rows
    of an earlier baseline to compare texts with. rounds: answers to each prompt, times are their
    medians. warmup: prompts answered before, uncounted. per_category: the first prompts of each.
    split: once more with a clock that waits for the device, for where the time goes; its times
    never enter a speed. run_code: run answers to HumanEval (in a process with limits). resamples
    and confidence: of the bootstrap over prompts. Where the drafter keeps what it learnt, every
    answer begins with what the counted answers to earlier prompts left: warm-up, rounds and split
    teach it nothing, cold and warm answers are told apart, and a run that goes on learns first.

    compare: further sides, each the words that make it another composition ("drafter=suffix
    tree=auto": axes and device, since all are asked the same); `peers` stands for other engines on
    the same weights (task/peers.py): transformers and what else is installed, peers=NAME for one
    of them. All are asked the same prompts in turns and printed in one table. passes: rows of
    passes that are timed at the end, beside those of peers, with the memory of the composed method
    in a process of its own.

    Writes rows.jsonl (a line a prompt, on the disk before the next one starts; the same command
    with the same hydra.run.dir goes on, another configuration is refused), summary.json and
    table.csv. Exit code 1 if a prompt could not be answered, if a rule that must give the exact
    text did not, or if the split misses more than 2 % of its time.
    """

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
        self.compare = compare
        self.passes = passes
        self.bootstrap = Bootstrap(resamples=resamples, confidence=confidence)

    def run(self, job: Job) -> int:
        records = self._records(job)
        if job.config.get("expects") is not None:
            Expectation.of(job.config["expects"])  # a mistake is told before the work
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
        lineup = self._lineup(job, contest)
        settings |= {} if lineup is None else lineup.settings()
        with RowFile(job.output_dir / ROWS, settings=settings) as file:
            try:
                self._ask(contest, records, file)
                if lineup is not None:
                    lineup.measure(records[0], gaps=self.split)
            finally:
                if file.rows:
                    head = {"settings_hash": hash_of(settings), "num_planned": len(records)}
                    said = self._report(job, file.rows, lineup, head)
        return said.exit_code

    def _lineup(self, job: Job, contest: Contest) -> Lineup | None:
        """With task.compare or task.passes, all the sides, which the contest is told."""
        if self.compare is None and self.passes is None:
            return None
        held = contest.sides
        lineup = Lineup(job, held, entries=self.compare or [], rows=self.passes)
        contest.sides = lineup.sides
        return lineup

    def _report(
        self, job: Job, rows: Sequence[Row], lineup: Lineup | None, head: dict[str, Any]
    ) -> BenchmarkVerdict:
        """Write and print what the rows say."""
        found = summary(rows, bootstrap=self.bootstrap, engine=job.engine)
        said = verdict(rows, engine=job.engine, config=job.config, found=found)
        comparison, tables = ({}, []) if lineup is None else lineup.told(rows, said)
        held = {**head, **found, **({"comparison": comparison} if comparison else {})}
        write_json(job.output_dir / "summary.json", {**held, **said.as_dict()})
        write_csv(job.output_dir / "table.csv", found)
        show(found, said, folder=job.output_dir, instead=tables)
        return said

    def _ask(self, contest: Contest, records: Sequence[PromptRecord], file: RowFile) -> None:
        done = {row.index for row in file.rows}
        left = [index for index in range(len(records)) if index not in done]
        if done:
            sys.stderr.write(f"benchmark: {len(done)} of {len(records)} prompts are there\n")
        # Numbers of turns, not of prompts asked so far: a run that was cut has the same noise.
        first = [sum(len(one.turns) for one in records[:index]) for index in range(len(records))]
        if done and left and contest.keeps:
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
                    made=progress.add_tokens,
                )
                file.add(row)
                if row.error is not None:
                    sys.stderr.write(f"specframe: prompt {index + 1}: {row.error}\n")
                progress.add_prompts(1)

    def _records(self, job: Job) -> list[PromptRecord]:
        if job.prompt is not None:
            return [PromptRecord(turns=(job.prompt,))]
        records = read_prompts(BUILTIN if job.prompts is None else job.prompts)
        taken: dict[str | None, int] = {}
        kept = []
        for record in records:
            taken[record.category] = taken.get(record.category, 0) + 1
            if self.per_category is None or taken[record.category] <= self.per_category:
                kept.append(record)
        return kept
