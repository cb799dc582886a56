"""What the columns of a benchmark's tables mean: a line below each table."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

_MEANINGS = {
    "acceptance_length": "tokens a verify pass, bonus included, [interval over prompts]",
    "over prompts": "mean of the prompts' own lengths",
    "accepted": "drafted tokens that were emitted",
    "rate": "accepted of drafted",
    "tokens/s": "of decoding, without prefill",
    "none": "tokens/s of plain decoding",
    "speedup": "tokens/s over those of none, [interval over prompts]",
    "end to end": "the same with prefill",
    "efficiency": "speedup / acceptance_length",
    "steps": "drafts that were this deep",
    "reached": "those whose walk stood just above",
    "marginal": "accepted / steps",
    "conditional": "accepted / reached",
    "prefill s": "seconds that all prompts took to read",
    "decode s": "seconds of all verify steps",
    "first token ms": "until the first token of an answer, the median",
    "per token ms p50": "between two tokens, the median",
    "per step ms p50": "between two steps, the median",
    "p95": "the 95th percentile of the column before",
    "seconds": "of all answers, with prefill",
    "over plain": "tokens/s over our plain decoding of the same target",
    "decode": "the same without prefill",
    "over peer": "over another engine that decodes in the same way",
    "forwards": "calls of the target",
    "acceptance": "tokens a verify pass, bonus included",
    "outside": "share of the seconds outside of the target's forward",
    "same text": "answers equal to plain decoding's",
}
_IN_A_COMPARISON = {
    "tokens/s": "of whole answers, with prefill",
    "efficiency": "decode / acceptance",
}


def legend(table: Table) -> Text:
    """`column: meaning; column: meaning` of a table's columns that have a meaning."""
    headings = dict.fromkeys(str(column.header) for column in table.columns)
    compared = {"over plain", "forwards"} & set(headings)
    meanings = _MEANINGS | (_IN_A_COMPARISON if compared else {})
    named = (f"{name}: {meanings[name]}" for name in headings if name in meanings)
    return Text("; ".join(named), style="dim")
