"""Says in words what a table of costs makes of each source of a drafter."""

from __future__ import annotations

from specframe.planning.cost_table import CostTable
from specframe.planning.lookup_chances import LookupChances, chain_prospect, likeliest_paths
from specframe.planning.tree_speed import TreeChoice, TreeSpeeds, level_widths
from specframe.types import Budget

_CONTEXT = 256  # cached tokens for which costs are read off the table
_LONGEST = 32  # matched tokens of the longest look-up that is considered


def explain_sources(
    costs: CostTable, chances: LookupChances, *, room: Budget, closed: bool, margin: float
) -> str:
    """A clause about the passes, then one about each source, joined by semicolons.

    closed: whether ranks are draws (see `best_first`). margin: by how much a tree must be faster
    than plain decoding to be drafted, as a share.
    """
    if not costs.drafts and not costs.looks_up:
        return "there is nothing to draft with"
    plain = costs.step_ms(1, _CONTEXT)
    rows = [size for size in costs.rows if 1 < size <= max(room.rows, 2)]
    parts = [f"a step of plain decoding takes {plain:.3g} ms"]
    if rows:
        times = [f"{costs.step_ms(size, _CONTEXT) / plain:.2f} with {size}" for size in rows[1:]]
        two = f"{costs.step_ms(rows[0], _CONTEXT) / plain:.2f} times as long with {rows[0]} rows"
        parts.append(f"a step takes {', '.join([two, *times])}")
    for source in costs.right:
        speeds = TreeSpeeds(
            costs=costs,
            source=source,
            right=costs.right[source],
            context=_CONTEXT,
            closed=closed,
        )
        best = speeds.fastest(rows=room.rows, depth=room.depth)
        parts.append(_of_network(source, best, costs, margin))
    if costs.looks_up:
        parts.append(_of_lookup(costs, chances, room, margin))
    return "; ".join(parts)


def _of_network(source: str, best: TreeChoice, costs: CostTable, margin: float) -> str:
    plain = costs.step_ms(1, _CONTEXT)
    gain = best.speed * plain - 1
    if not best.paths:
        guess = costs.right[source][0][0] if costs.right[source] else 0.0
        two_rows = costs.step_ms(2, _CONTEXT) + costs.draft_ms(source, [1])
        return (
            f"{source} drafts nothing: its first guess is right in {100 * guess:.0f} %, and one "
            f"row more with its draft takes {two_rows / plain:.2f} times a plain step"
        )
    tree = (
        f"{best.rows} rows, {len(level_widths(best.paths))} deep: {best.tokens:.2f} tokens in "
        f"{best.ms / plain:.2f} times a plain step"
    )
    if gain < margin:
        return f"{source} drafts nothing: the best would be {tree}, less than {margin:.0%} gained"
    return f"{source} drafts {tree}"


def _of_lookup(costs: CostTable, chances: LookupChances, room: Budget, margin: float) -> str:
    for length in range(1, _LONGEST + 1):
        most, speed, tokens = 0, (1 + margin) / costs.step_ms(1, _CONTEXT), 1.0
        chain = chain_prospect(min(room.depth, room.rows - 1), match_length=length)
        for size, node in enumerate(likeliest_paths(chain, chances, depth=room.depth), start=1):
            tokens += node.chance
            ahead = tokens / costs.step_ms(1 + size, _CONTEXT)
            most, speed = (size, ahead) if ahead > speed else (most, speed)
        if most:
            matched = f"{length} matched token{'s' if length > 1 else ''}"
            return f"what is looked up is drafted from {matched} on, there {1 + most} rows"
    return "what is looked up is never drafted"
