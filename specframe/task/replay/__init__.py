"""Scores trees and rules on a record of trace=full, without the models."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from specframe.accept.base import RULES, AcceptRule
from specframe.compose.binding import bind
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.measure.bootstrap import Bootstrap, point_estimate, pooled
from specframe.registry import Range
from specframe.session.manifest import write_json
from specframe.task.base import TASKS, Job, Task
from specframe.task.replay.recorded import Record, read_record
from specframe.task.replay.scoring import Score, Scorer, scorer_of
from specframe.task.replay.subtrees import check_kind, check_rule, check_within, unfit_message
from specframe.terminal.progress import StepProgress
from specframe.terminal.text_table import plain_console, shown, text_table, with_interval, write_csv
from specframe.tree.base import TREES, Depth, MaxNodes, TreePolicy

_MEANINGS = (
    "acceptance_length: tokens a pass, bonus included, [interval over prompts]; over prompts: mean "
    "of the prompts' own lengths; accepted: drafted tokens that were emitted; drafted/step: nodes "
    "of a draft; oracle: the best sub-tree of the record with so many rows"
)


@TASKS.register("replay")
class Replay(Task):
    """Scores `tree=` and `accept=` on the text of an earlier run, as if they had decoded it.

    `task.trace` names the folder of a run with trace=full. The policies themselves grow their trees
    on that record, so no weights are loaded. `max_nodes` and `depth` are lists of which every pair
    is scored; their numbers must not exceed those of the recorded tree.

    With accept=match, and with every lossless rule at temperature 0, the steps are exactly those of
    a real run. For other rules the figures are estimates over the positions of that text, and are
    marked as such: a lossless rule accepts a placed child with the target's probability of it, and
    a lossy rule judges the recorded laws, whose tail is spread evenly. The oracle takes at every
    step the best sub-tree of the record of so many nodes, in hindsight or by the same estimate; no
    policy of that budget does better on this record. Intervals are over prompts.

    Refused are trees that ask for more than was recorded, drawn children (their draws depend on
    the tree's own numbering), and policies that learn from steps.

    The run leaves replay.json and replay.csv.
    """

    uses_drafter: ClassVar[bool] = False
    uses_engine: ClassVar[bool] = False

    numbers: ClassVar[tuple[str, ...]] = ("drafted_per_step", "oracle_acceptance_length")

    def __init__(
        self,
        *,
        trace: str,
        max_nodes: list[MaxNodes] | None,
        depth: list[Depth] | None,
        resamples: Annotated[int, Range(100, 100_000)],
        confidence: Annotated[float, Range(0.5, 0.999)],
    ) -> None:
        self.trace = trace
        self.max_nodes = max_nodes
        self.depth = depth
        self.bootstrap = Bootstrap(resamples=resamples, confidence=confidence)

    def check(self, config: dict[str, Any]) -> None:
        record = read_record(Path(self.trace))
        for policy in self._policies(config, record):
            check_within(policy, config["tree"]["name"], record.settings)
        check_rule(_rule(config), config["accept"]["name"], record.settings)

    def run(self, job: Job) -> int:
        record = read_record(Path(self.trace))
        policies = self._policies(job.config, record)
        rule = _rule(job.config)
        scorer = scorer_of(rule, record.settings)
        rows = []
        answers = [answer for answer in record.answers if len(answer.tokens) > 1]
        with StepProgress("replay", total=len(policies) * len(answers)) as progress:
            for policy in policies:
                progress.begin(f"depth {policy.depth}, {policy.max_nodes} rows")
                scores = []
                for answer in answers:
                    best = scorer.best(answer, policy.max_nodes)
                    scores.append((scorer.of(answer, policy), best))
                    progress.add(1)
                rows.append(self._row(job.config, policy, scorer, scores))
        replay = {
            "trace": str(record.folder),
            "recorded": record.settings,
            "tree": job.config["tree"]["name"],
            "accept": job.config["accept"]["name"],
            "estimate": scorer.estimate,
            "rows": rows,
        }
        write_json(job.output_dir / "replay.json", replay)
        ends = ("interval", "oracle_interval")
        write_csv(
            job.output_dir / "replay.csv",
            [{**row, **{key: row[key] or (None, None) for key in ends}} for row in rows],
        )
        _show(rows, record, scorer, job.output_dir)
        return 0

    def _policies(self, config: dict[str, Any], record: Record) -> list[TreePolicy]:
        tree = config["tree"]
        cls: Any = TREES.get(tree["name"])
        check_kind(cls, tree["name"])
        policies = []
        for depth in self.depth or [tree["depth"]]:
            for max_nodes in self.max_nodes or [tree["max_nodes"]]:
                values = {**tree, "depth": depth, "max_nodes": max_nodes, "proposal": "place"}
                try:
                    policies.append(cls(**bind(cls, values, where="tree")))
                except (TypeError, ConfigError) as error:
                    if hasattr(cls, "for_trace") or isinstance(error, ConfigError):
                        raise
                    raise IncompatibleComponents(unfit_message(config["tree"]["name"])) from None
        return policies

    def _row(
        self,
        config: dict[str, Any],
        policy: TreePolicy,
        scorer: Scorer,
        results: Sequence[tuple[Score, Score]],
    ) -> dict[str, Any]:
        """A line of the table; results: of each answer, its score and the best one there is."""
        scores = [score for score, _ in results]
        tokens, steps = _columns(scores)
        num_drafted = sum(score.num_drafted for score in scores)
        num_accepted = sum(score.num_accepted for score in scores)
        oracle = _columns([best for _, best in results])
        return {
            "tree": config["tree"]["name"],
            "accept": config["accept"]["name"],
            "depth": policy.depth,
            "max_nodes": policy.max_nodes,
            "estimate": scorer.estimate,
            "num_prompts": len(results),
            "acceptance_length": point_estimate(pooled, (tokens, steps)),
            "interval": self.bootstrap.interval(pooled, (tokens, steps)),
            "acceptance_length_mean_over_prompts": statistics.fmean(
                t / s for t, s in zip(tokens, steps, strict=True)
            ),
            "num_steps": None if scorer.estimate else sum(steps),
            "num_accepted": None if scorer.estimate else num_accepted,
            "num_drafted": num_drafted,
            "drafted_per_step": num_drafted / sum(steps),
            "oracle_acceptance_length": point_estimate(pooled, oracle),
            "oracle_interval": self.bootstrap.interval(pooled, oracle),
        }


def _columns(scores: Sequence[Score]) -> tuple[list[float], list[int]]:
    """Tokens and steps of several answers."""
    return [score.num_tokens for score in scores], [score.num_steps for score in scores]


def _rule(config: dict[str, Any]) -> AcceptRule:
    cls: Any = RULES.get(config["accept"]["name"])
    rule: AcceptRule = cls(**bind(cls, config["accept"], where="accept"))
    return rule


def _show(rows: Sequence[dict[str, Any]], record: Record, scorer: Scorer, folder: Path) -> None:
    headings = ("tree", "depth", "max_nodes", "acceptance_length", "over prompts", "accepted")
    lines = [
        (
            row["tree"],
            str(row["depth"]),
            str(row["max_nodes"]),
            ("~" if row["estimate"] else "")
            + with_interval(row["acceptance_length"], row["interval"]),
            shown(row["acceptance_length_mean_over_prompts"]),
            shown(row["num_accepted"], 0),
            shown(row["num_steps"], 0),
            shown(row["drafted_per_step"], 1),
            with_interval(row["oracle_acceptance_length"], row["oracle_interval"]),
        )
        for row in rows
    ]
    console = plain_console()
    console.print(text_table((*headings, "steps", "drafted/step", "oracle"), lines))
    count = sum(len(answer.tokens) - 1 for answer in record.answers)
    how = "by the same estimate" if scorer.estimate else "in hindsight"
    console.print(f"{_MEANINGS}, {how}", style="dim")
    kind = "an ESTIMATE over the positions of" if scorer.estimate else "exact over"
    console.print(
        f"These numbers are {kind} {count} tokens of {len(record.answers)} answers, recorded with "
        f"{_recorded(record.settings)}.",
        soft_wrap=True,
    )
    console.print(_best(rows), soft_wrap=True)
    console.print(f"written to {os.path.relpath(folder)}", soft_wrap=True)


def _best(rows: Sequence[dict[str, Any]]) -> str:
    """Which of the trees emits most tokens a pass."""
    best = max(rows, key=lambda row: row["acceptance_length"] or 0.0)
    return (
        f"Most tokens a pass, {shown(best['acceptance_length'])}, has {best['tree']} with depth "
        f"{best['depth']} and {best['max_nodes']} rows; any tree of that size could have had "
        f"{shown(best['oracle_acceptance_length'])}."
    )


def _recorded(settings: dict[str, Any]) -> str:
    """What was recorded, whatever the words of this command say."""
    words = [f"{axis}={settings[axis]['name']}" for axis in ("target", "drafter", "tree")]
    temperature = settings["sampling"]["temperature"]
    return " ".join([*words, f"sampling.temperature={temperature:g}", f"seed={settings['seed']}"])
