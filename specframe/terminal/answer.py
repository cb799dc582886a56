"""How an answer looks in the terminal: streamed in colours, then a table of numbers.

Without colour (piped, NO_COLOR, a dumb terminal) only plain text and line ends are written.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Literal, TextIO

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from specframe.measure.batch_times import BatchTimes
from specframe.measure.metrics import Metrics, RunSummary
from specframe.session.events import Event, Kind

Colour = Literal["auto", "always", "never"]
STYLES: dict[Kind, Style] = {
    "first": Style(),
    "accepted": Style(color="green"),
    "rejected": Style(color="red", strike=True),
    "recovered": Style(color="blue", bold=True),
    "bonus": Style(),
    "rest": Style(),
}
_LEGEND: dict[Kind, str] = {
    "accepted": "accepted",
    "rejected": "rejected",
    "recovered": "corrected",
    "bonus": "bonus",
}
_LAST_OF_STEP = ("first", "recovered", "bonus", "rest")
_PROMPT_CHARS = 300  # longer prompts are shown shortened


def _visible() -> dict[int, str]:
    """Replacements for characters that would control the terminal; tab and line feed stay."""
    table = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"}
    table[127] = "\u2421"
    directions = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
    return table | dict.fromkeys((*range(0x80, 0xA0), *directions), "\ufffd")


_VISIBLE = _visible()


def plain(text: str) -> str:
    """The text with control characters replaced by symbols, so that it is safe to print."""
    return text.translate(_VISIBLE)


class Display:
    """Writes prompts, answers and numbers to one stream (standard output if None)."""

    def __init__(self, *, colour: Colour, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self.coloured = _wants_colour(colour, self._out)
        self._encoding = getattr(self._out, "encoding", None) or "utf-8"
        self._console = Console(
            file=self._out,
            force_terminal=self.coloured,
            color_system="standard" if self.coloured else None,
            no_color=not self.coloured,
            highlight=False,
            emoji=False,
        )
        self._tail = "\n\n"  # the last two characters; the start counts as a blank line

    def shows_rejected(self, wish: bool | Literal["auto"]) -> bool:
        """Whether answers show the tokens that were rejected; `auto`: where there is colour."""
        return self.coloured if wish == "auto" else wish

    def legend(self, *, rejected: bool) -> None:
        """Write what the colours mean; nothing without colour.

        rejected: whether answers show the tokens that were rejected.
        """
        if self.coloured:
            shown = {kind: word for kind, word in _LEGEND.items() if rejected or kind != "rejected"}
            words = [STYLES[kind].render(word) for kind, word in shown.items()]
            self._write("  ".join(words) + "\n\n")

    def heading(self, text: str) -> None:
        """Write a heading above an answer."""
        self.paragraph()
        self._write(self._styled(plain(text), Style(bold=True)) + "\n")

    def prompt(self, text: str) -> None:
        """Write the prompt, shortened to a few lines."""
        shown = " ".join(plain(text).split())
        if len(shown) > _PROMPT_CHARS:
            shown = shown[:_PROMPT_CHARS].rsplit(" ", 1)[0] + " …"
        self._write(self._styled(f"> {shown}", Style(dim=True)) + "\n\n")

    def answer(self, events: Iterator[Event]) -> None:
        """Write events as they come. The text of a step is written before the next step starts."""
        step: list[Event] = []
        for event in events:
            step.append(event)
            if event.kind in _LAST_OF_STEP:
                self._write(self._joined(step))
                step.clear()
        self._write(self._joined(step))
        self.end_line()

    def note(self, text: str) -> None:
        """Write a dim line below an answer."""
        self.end_line()
        self._write(self._styled(plain(text), Style(dim=True)) + "\n")

    def say(self, sentence: str) -> None:
        """Write a sentence on a line of its own; nothing for an empty one."""
        self.end_line()
        self._write(plain(sentence) + "\n" if sentence else "")

    def end_line(self) -> None:
        """End the current line, unless it is empty."""
        if not self._tail.endswith("\n"):
            self._write("\n")

    def paragraph(self) -> None:
        """Write a blank line, unless there is one already."""
        self.end_line()
        if self._tail != "\n\n":
            self._write("\n")

    def table(self, summary: RunSummary, reasons: Sequence[str]) -> None:
        """Write the numbers of a run; reasons: why each answer ended."""
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(style="dim")
        for name, value, note in _rows(summary, reasons):
            table.add_row(name, value, Text(note))
        with self._console.capture() as drawn:
            self._console.print(table)
        lines = [line.rstrip() for line in drawn.get().splitlines()]
        self.paragraph()
        self._write("\n".join(lines) + "\n\n")

    def _joined(self, step: Sequence[Event]) -> str:
        """The text of one step. Neighbours of one kind share their colour codes."""
        pieces = []
        for kind, group in itertools.groupby(step, key=lambda event: event.kind):
            text = plain("".join(event.text for event in group))
            if kind == "rejected":
                text = text.replace("\n", "\u21b5").replace("\t", " ") if self.coloured else ""
            pieces.append(self._styled(text, STYLES[kind]))
        return "".join(pieces)

    def _styled(self, text: str, style: Style) -> str:
        if not self.coloured or not text or not style:
            return text
        # Line by line, since a colour that runs over a line end would paint the rest of the line.
        lines = [style.render(line, color_system=ColorSystem.STANDARD) for line in text.split("\n")]
        return "\n".join(lines)

    def _write(self, text: str) -> None:
        if not text:
            return
        self._tail = (self._tail + text)[-2:]
        self._out.write(text.encode(self._encoding, "replace").decode(self._encoding))
        self._out.flush()


def _wants_colour(colour: Colour, out: TextIO) -> bool:
    if colour != "auto":
        return colour == "always"
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in ("dumb", "unknown"):
        return False
    return out.isatty()


def one_line(metrics: Metrics, reason: str) -> str:
    """The numbers of one answer among several, in one line."""
    parts = [
        f"{metrics.num_tokens} tokens ({reason})",
        f"{metrics.num_steps} steps",
        f"acceptance_length {_number(metrics.acceptance_length)}",
        f"{_number(metrics.tokens_per_s, 1)} tokens/s",
    ]
    return ", ".join([*parts, "synthetic"] if metrics.synthetic else parts)


def _rows(summary: RunSummary, reasons: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    total = summary.total
    if total.synthetic:
        yield "synthetic", "yes", "the drafter is told the text: these are no method's numbers"
    ended = ", ".join(f"{reasons.count(reason)} {reason}" for reason in dict.fromkeys(reasons))
    only = reasons[0] if len(reasons) == 1 else ended
    yield "tokens", str(total.num_tokens), f"ended by: {only}"
    yield "steps", str(total.num_steps), "verify passes of the target, after prefill"
    length = "tokens per verify pass, bonus included"
    if summary.num_prompts > 1:
        mean = _number(summary.acceptance_length_mean_over_prompts)
        length = f"tokens per verify pass; mean over prompts {mean}"
    yield "acceptance_length", _number(total.acceptance_length), length
    for name, start in summary.starts.items():
        note = f"the same over answers that began {name}: {start.num_prompts}"
        yield f"  {name}", _number(start.total.acceptance_length), note
    yield "num_accepted", str(total.num_accepted), _drafted(total)
    if summary.batch is not None:
        yield from _batch_rows(summary.batch, total)
        return
    speed = f"decoding; {_number(total.tokens_per_s_end_to_end, 1)} with prefill"
    yield "tokens/s", _number(total.tokens_per_s, 1), speed
    if total.decode_s:
        yield "ms/step", _number(1e3 * total.decode_s / total.num_steps, 1), _shares(total)


def _batch_rows(batch: BatchTimes, total: Metrics) -> Iterator[tuple[str, str, str]]:
    full = _number(batch.full_throughput, 1)
    note = f"tokens/s of all lanes; {full} while all {batch.batch_size} were under way"
    yield "throughput", _number(batch.throughput, 1), note
    yield "mean_lanes", _number(batch.mean_lanes, 1), "answers under way, in the mean over steps"
    if total.num_step_tokens:
        ms = 1e3 * total.decode_s / total.num_step_tokens
        yield "ms/token", _number(ms, 1), "of one lane, in the mean"


def _drafted(total: Metrics) -> str:
    if not total.num_drafted:
        return "nothing was drafted"
    rate = total.acceptance_rate
    text = f"of {total.num_drafted} drafted, bonus excluded"
    return text if rate is None else f"{text}; acceptance_rate {_number(rate)}"


def _shares(total: Metrics) -> str:
    shares = {name: 0.1 * ms / total.decode_s for name, ms in total.phase_ms.items()}
    return ", ".join(f"{name} {share:.0f}%" for name, share in shares.items())


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
