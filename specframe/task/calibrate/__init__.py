"""Measures how often a drafter's guesses are right, by depth and rank, and plans static trees."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

from rich.table import Table

from specframe.costs.calibration import Calibrator
from specframe.costs.rank_counts import RankCounts
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.planning.rank_paths import (
    RankPath,
    best_first,
    expected_length,
    most_worth_first,
    sequoia,
)
from specframe.prompts.questions import conversation
from specframe.prompts.reader import BUILTIN
from specframe.registry import Range
from specframe.session.manifest import write_json
from specframe.task.base import TASKS, Job, Task
from specframe.task.calibrate.heatmap import cell, heatmap
from specframe.terminal.progress import PromptProgress
from specframe.terminal.text_table import plain_console, text_table
from specframe.tree.base import Depth, MaxNodes

_TITLE = "How often the guess of each rank was right, in % of the positions that were judged:"
_MEANINGS = (
    "judged: positions whose guesses down to this depth were right; r0: the likeliest guess, r1 "
    "the next; any: one of those shown"
)


@TASKS.register("calibrate")
class Calibrate(Task):
    """Counts which rank the true token has among the drafter's guesses.

    It looks at every position of the target's own answers to `prompt=`, `prompts=` (a file) or the
    built-in set, first turns only. A guess of rank r at depth k is judged only where the text goes
    on for k tokens and the k - 1 tokens above were guessed too, so shares are conditional on the
    walk having come so far. Ranks are those that tree=static uses: the order of scores, or of draws
    where tree.proposal draws. Guesses are judged as accept=match judges them.

    The run leaves calibration.json, heatmap.svg and two trees for `tree=static tree.paths=FILE`:
    tree_greedy.json (the most useful node first, as Medusa does) and tree_sequoia.json (Sequoia's
    recursion, with one row of shares for all depths). Both say which acceptance length the table
    expects and which one was counted over all positions. Ctrl-C keeps what was counted so far.
    """

    def __init__(
        self, *, max_nodes: MaxNodes, depth: Depth, top_k: Annotated[int, Range(1, 256)]
    ) -> None:
        self.max_nodes = max_nodes
        self.depth = depth
        self.top_k = top_k

    def check(self, config: dict[str, Any]) -> None:
        if config["drafter"]["name"] == "none":
            raise IncompatibleComponents(
                "task=calibrate drafter=none: nothing is guessed; choose a drafter"
            )

    def run(self, job: Job) -> int:
        counts = RankCounts(depth=self.depth, top_k=self.top_k)
        try:
            num_skipped = _count(job, counts)
        finally:
            if counts.num_positions:
                self._report(job, counts)
        if not counts.num_positions:
            raise ConfigError(
                "task=calibrate: no answer has two tokens, so nothing was judged; raise "
                "max_new_tokens or give other prompts"
            )
        return int(num_skipped > 0)

    def _report(self, job: Job, counts: RankCounts) -> None:
        trees = self._trees(job, counts)
        for name, tree in trees.items():
            if tree["paths"]:
                write_json(job.output_dir / f"tree_{name}.json", tree)
        calibration = {
            **_origin(job, counts),
            "depth": self.depth,
            "top_k": self.top_k,
            "reached": counts.reached(),
            "hits": counts.hits(),
            "accuracy": counts.table(),
            "trees": trees,
        }
        write_json(job.output_dir / "calibration.json", calibration)
        title = f"drafter={job.config['drafter']['name']}: how often each guess is right"
        svg = heatmap(counts.table(), reached=counts.reached(), title=title)
        (job.output_dir / "heatmap.svg").write_text(svg, encoding="utf-8")
        _print(job, counts, trees)

    def _trees(self, job: Job, counts: RankCounts) -> dict[str, dict[str, Any]]:
        closed = (
            job.engine.components.how != "place"
            or job.engine.components.drafter.traits.laws == "drawn"
        )
        table, rows = counts.table(), self.max_nodes - 1
        chosen: dict[str, list[RankPath]] = {
            "greedy": best_first(table, max_paths=rows, closed=closed),
            "sequoia": sequoia(counts.pooled(), max_paths=rows),
        }
        return {
            name: {
                "method": name,
                **_origin(job, counts),
                "max_nodes": 1 + len(paths),
                "depth": max(map(len, paths), default=0),
                "expected_acceptance_length": expected_length(table, paths),
                "counted_acceptance_length": counts.counted_length(paths),
                "paths": [list(path) for path in paths],
            }
            for name, selected in chosen.items()
            for paths in [most_worth_first(table, selected)]
        }


def _count(job: Job, counts: RankCounts) -> int:
    """Count over all prompts; returns how many could not be answered."""
    records, skipped = job.records(), 0
    calibrator = Calibrator(job.engine, counts)
    with PromptProgress("calibrate", total=len(records), done=0) as progress:
        for number, record in enumerate(records, start=1):
            try:
                prompt = conversation(job.engine, record, [])
                progress.add_tokens(calibrator.count(prompt, sequence=number - 1))
            except ConfigError as error:
                skipped += 1
                sys.stderr.write(f"specframe: prompt {number}: {' '.join(str(error).split())}\n")
            progress.add_prompts(1)
    return skipped


def _origin(job: Job, counts: RankCounts) -> dict[str, Any]:
    """What a table or tree was made from."""
    return {
        "target": job.engine.components.target.name,
        "drafter": job.config["drafter"],
        "sampling": job.config["sampling"],
        "proposal": job.engine.components.how,
        "prompts": str(job.prompts or BUILTIN) if job.prompt is None else None,
        "num_positions": counts.num_positions,
    }


def _print(job: Job, counts: RankCounts, trees: dict[str, dict[str, Any]]) -> None:
    console = plain_console()
    console.print(_TITLE)
    console.print(_table(counts.table(), counts.reached()))
    console.print(_MEANINGS, style="dim")
    for name, tree in trees.items():
        file = job.output_dir / f"tree_{name}.json"
        if not tree["paths"]:
            console.print(f"No guess was ever right, so there is no {name} tree.")
            continue
        console.print(
            f"The {name} tree has {tree['max_nodes']} nodes. It is expected to emit "
            f"{tree['expected_acceptance_length']:.2f} tokens a pass, and would have emitted "
            f"{tree['counted_acceptance_length']:.2f} here. Use it with"
        )
        # Printed without wrapping, since it is there to be copied.
        print(
            f"  tree=static tree.paths={file} "
            f"tree.max_nodes={tree['max_nodes']} tree.depth={tree['depth']}"
        )


def _table(table: Sequence[Sequence[float]], reached: Sequence[int]) -> Table:
    headings = ("depth", "judged", *(f"r{rank}" for rank in range(len(table[0]))), "any")
    rows = []
    for depth, (row, count) in enumerate(zip(table, reached, strict=True), start=1):
        cells = [cell(share) if count else "" for share in row]
        rows.append((str(depth), str(count), *cells, f"{100 * sum(row):.1f}" if count else ""))
    # With a gap of one blank, ten ranks fit a terminal of 80 columns.
    return text_table(headings, rows, num_names=0, gap=1)
