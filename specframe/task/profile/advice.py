"""What follows from measured costs: where a run's time goes, and which tree would be fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.table import Table

from specframe.costs.ceilings import Ceilings, MeasuredPass
from specframe.costs.provider import with_costs
from specframe.costs.rank_accuracy import CalibrationSample, calibration_prompts
from specframe.measure.busy_clock import BusyClock
from specframe.planning.cost_table import CostTable, RankTable
from specframe.planning.tree_speed import TreeChoice, TreeSpeeds, level_widths
from specframe.session.engine import Engine
from specframe.terminal.text_table import plain_console, text_table

_TARGET = ("verify", "accept", "commit")  # phases that every pass of the target needs
_MAX_DEPTH = 16  # levels of the deepest tree that is looked at


def phase_times(
    engine: Engine, costs: CostTable, sample: CalibrationSample, tick: Callable[[int], None]
) -> dict[str, float]:
    """Milliseconds of the composed method by phase, over its answer to a built-in prompt.

    sample: how long the answer is; tick: called with 1 once it is done.
    """
    parts = engine.components
    settings = replace(engine.settings, max_new_tokens=sample.tokens)
    run = Engine(replace(parts, tree=with_costs(parts.tree, costs)), settings)
    spent: Counter[str] = Counter()
    clock = BusyClock(parts.target.device)
    for emission in run.decoding(clock=clock).run(run.encode(calibration_prompts(engine, 1)[0])):
        if emission.record is not None:
            spent.update(clock.durations_ms(emission.record.marks))
    tick(1)
    return dict(spent)


_MEANINGS = (
    "behind: tokens in the cache; of one row: how many times a forward of one row; least ms: what "
    "this device's copies and products allow; operations a byte: of weights and keys that are read"
)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A table of costs and the advice that follows from it."""

    costs: CostTable
    shares: Mapping[str, RankTable]  # source -> how often its guesses are right, by depth and rank
    split: Mapping[str, float]  # milliseconds by phase, of `phase_times`
    max_rows: int  # of the largest tree that is looked at
    # Whether the children of a node are always its first ranks in a row, as where they are drawn.
    closed: bool

    def sentences(self) -> list[str]:
        """The advice in words: where time goes, then the best tree for each source."""
        time = [self._time()] if sum(self.split.values()) else []
        return time + [self._tree(source) for source in self.shares]

    def show(self, passes: Sequence[MeasuredPass], ceilings: Ceilings) -> None:
        """Print the costs as tables and lines, then the sentences."""
        console = plain_console()
        console.print(self._table(passes, ceilings))
        console.print(_MEANINGS if passes else _MEANINGS.partition("; least")[0], style="dim")
        console.print(
            f"This device copies {ceilings.bytes_per_s / 1e9:.1f} GB/s and multiplies matrices at "
            f"{ceilings.operations_per_s / 1e9:.1f} GFLOP/s.",
            soft_wrap=True,
        )
        for source, cost in self.costs.drafts.items():
            levels = " and ".join(
                f"{ms:.3g} ms for one of {width} nodes"
                for width, ms in zip(cost.widths, cost.level_ms, strict=True)
            )
            console.print(
                f"Drafting with {source} takes {cost.root_ms:.3g} ms for the children of the root; "
                f"a deeper level takes {levels}.",
                soft_wrap=True,
            )
        if self.costs.looks_up:
            console.print(f"Looking up takes {self.costs.lookup_ms:.3g} ms a step.", soft_wrap=True)
        for sentence in self.sentences():
            console.print(sentence, soft_wrap=True)

    def _table(self, passes: Sequence[MeasuredPass], ceilings: Ceilings) -> Table:
        headings = ["rows", *(f"ms behind {tokens}" for tokens in self.costs.contexts)]
        headings += ["of one row"]
        headings += ["least ms", "operations a byte"] if passes else []
        lines = []
        for place, rows in enumerate(self.costs.rows):
            line = [column[place] for column in self.costs.forward_ms]
            cells = [str(rows), *(f"{ms:.4g}" for ms in line)]
            cells.append(f"{line[0] / self.costs.forward_ms[0][0]:.2f}")
            if passes:
                cells += [f"{passes[place].limit_ms(ceilings):.4g}"]
                cells += [f"{passes[place].intensity:.3g}"]
            lines.append(cells)
        return text_table(headings, lines, title="milliseconds of a forward by rows", num_names=0)

    def _time(self) -> str:
        total = sum(self.split.values())
        target = sum(self.split.get(phase, 0.0) for phase in _TARGET)
        draft = self.split.get("draft", 0.0)
        parts = {"target": target, "draft": draft, "host": total - target - draft}
        shares = ", ".join(f"{100 * ms / total:.0f} % {name}" for name, ms in parts.items())
        return f"The time after prefill, as composed, goes to: {shares}."

    def _tree(self, source: str) -> str:
        speeds = TreeSpeeds(
            costs=self.costs,
            source=source,
            right=self.shares[source],
            context=self.costs.contexts[0],
            closed=self.closed,
        )
        sizes = speeds.fastest_by_rows(rows=self.max_rows, depth=_MAX_DEPTH)
        best = max(sizes.values(), key=lambda choice: (choice.speed, -choice.rows))
        plain = sizes[1]
        if not best.paths:
            return f"{source}: no tree pays here; {_worse(sizes, plain, 2)}"
        gain = best.speed / plain.speed
        text = (
            f"{source}: {best.rows} nodes are best here, {len(level_widths(best.paths))} deep "
            f"({best.tokens:.2f} tokens a pass, {gain:.2f} times plain decoding)"
        )
        # The next smaller and larger sizes that a person would try.
        larger = [rows for rows in sizes if rows >= 1.6 * best.rows]
        smaller = [rows for rows in sizes if 1 < rows <= best.rows / 1.6]
        others = [*smaller[-1:], *larger[:1]]
        return "; ".join([text, *(_worse(sizes, best, rows) for rows in others)])


def _worse(sizes: Mapping[int, TreeChoice], best: TreeChoice, rows: int) -> str:
    """How much more a token costs with a tree of so many rows than with the best."""
    if rows not in sizes:
        return "its guesses were never right"
    percent = 100 * (best.speed / sizes[rows].speed - 1)
    return f"{rows} cost {percent:.0f} % more a token"
