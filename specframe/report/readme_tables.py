"""Result files as Markdown: the tables of the READMEs, each with its conditions below it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from specframe.errors import ConfigError

Values = dict[str, Any]
Column = tuple[str, Callable[[Values], str]]
_WIDTH = 150  # characters of a line of prose
_OUTPUT_WIDTH = 118  # characters of a line of recorded output
_NUM_COMMANDS = 2  # commands that are shown, where runs of several made a table
_NUM_LINES = 10  # lines of recorded output that are shown


def markdown(result: Values, table: str | None, link: str) -> str:
    """The lines of one table of a result, its conditions and a link to the file.

    table: one of `TABLES`, None for the first that suits the kind of the result. Raises
    ConfigError for a table that the result cannot fill.
    """
    name = table or ("speed" if result["kind"] == "benchmark" else result["kind"])
    if name not in TABLES:
        raise ConfigError(f"no table is called {name}; use one of {', '.join(TABLES)}")
    lines = TABLES[name](result)
    if not lines:
        raise ConfigError(f"the result file has nothing for the table {name}")
    gap = [] if lines[-1] == "```" else [""]  # a table ends at an empty line
    return "\n".join([*lines, *gap, *conditions(result, link)]) + "\n"


def conditions(result: Values, link: str) -> list[str]:
    """Date, machine, versions and commands of a result, wrapped to the width of a README."""
    machine = result["hardware"]
    threads = machine.get("threads")
    place = machine.get("device") or machine["processor"] or "an unnamed processor"
    if threads and not machine.get("device"):
        place += f", {threads} thread{'s' if threads > 1 else ''}"
    if result["kind"] == "output":  # the command stands above it, the rest is in the file
        text = f"Recorded on {result['date']} on {place}; whole in [{_file(link)}]({link})."
        return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    commands = "; ".join(f"`{command}`" for command in result["commands"][:_NUM_COMMANDS])
    if len(result["commands"]) > _NUM_COMMANDS:
        commands += f"; and {len(result['commands']) - _NUM_COMMANDS} more in the file"
    text = (
        f"Measured on {result['date']} on {place}; {versions}.{_asked(result)} "
        f"Command: {commands}. Data: [{_file(link)}]({link})."
    )
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _file(link: str) -> str:
    return link.rpartition("/")[2]


def _asked(result: Values) -> str:
    """What was asked of every row of a benchmark."""
    if result["kind"] != "benchmark":
        return ""
    target, rounds = result["target"], result["rounds"]
    parts = [
        f"{target['name']} in {target['dtype']}",
        f"{result['num_prompts']} prompts",
        f"at most {result['max_new_tokens']} new tokens",
        f"temperature {result['temperature']:g}",
        *([f"medians of {rounds} rounds"] if rounds and rounds > 1 else []),
    ]
    return f" {', '.join(parts)}."


def _speed(result: Values) -> list[str]:
    columns: list[Column] = [
        ("method", _label),
        ("tokens/s", lambda row: _number(row["tokens_per_s"], 1)),
        ("speed", lambda row: _number(row["speedup"])),
        (
            "decoding alone",
            lambda row: _number(row["speedup_decode"], ends=row.get("speedup_decode_interval")),
        ),
        ("over its peer", lambda row: _number(row.get("over_peer"))),
        ("tokens a pass", lambda row: _number(row["acceptance_length"])),
        ("rows a pass", lambda row: _number(row.get("rows_per_pass"), 1)),
        ("same text", lambda row: _share(row.get("num_same_text"), row.get("num_texts"))),
    ]
    return _table(_filled(columns, result.get("rows", [])), result.get("rows", []))


def _acceptance(result: Values) -> list[str]:
    """Tokens a pass, overall and by category."""
    rows = [row for row in result.get("rows", []) if row["acceptance_length"] is not None]
    overall: Column = (
        "all",
        lambda row: _number(row["acceptance_length"], ends=row.get("acceptance_length_interval")),
    )
    return _by_category(rows, "acceptance_by_category", overall)


def _categories(result: Values) -> list[str]:
    """Speed of decoding alone over plain decoding, overall and by category."""
    rows = [row for row in result.get("rows", []) if row["speedup_decode"] is not None]
    overall: Column = (
        "all",
        lambda row: _number(row["speedup_decode"], ends=row.get("speedup_decode_interval")),
    )
    return _by_category(rows, "speedup_by_category", overall)


def _by_category(rows: Sequence[Values], key: str, overall: Column) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row.get(key) or {}))

    def column(name: str) -> Column:
        return name.replace("_", " "), lambda row: _number((row.get(key) or {}).get(name))

    return _table([("method", _label), overall, *map(column, names)], rows)


def _passes(result: Values) -> list[str]:
    """Milliseconds of a pass by its rows, one table a composition."""
    lines: list[str] = []
    for each in result.get("passes", []):
        lines += ["", *_pass_table(each)] if lines else _pass_table(each)
    return lines


def _pass_table(each: Values) -> list[str]:
    first, copied = each["rows"][0], each["copy_bytes_per_s"]
    columns: list[Column] = [
        ("rows", lambda row: str(row["rows"])),
        ("ms", lambda row: f"{row['ms']:.3g}"),
        ("of one row", lambda row: _number(row["ms"] / first["ms"])),
        *(_peer_column(name) for name in first["peers"]),
    ]
    if copied and first["bytes"] is not None:
        columns += [
            ("GB/s", lambda row: _number(row["bytes"] / row["ms"] / 1e6, 1)),
            ("of a copy's", lambda row: f"{1e5 * row['bytes'] / row['ms'] / copied:.0f} %"),
        ]
    note = (
        f"A pass behind {each['context']} tokens with runtime={each['runtime']}; a whole step of "
        f"plain decoding takes {each['step_ms']:.3g} ms."
    )
    return [*_table(columns, each["rows"]), "", note]


def _peer_column(name: str) -> Column:
    return f"{name}, ms", lambda row: f"{row['peers'][name]:.3g}"


def _memory(result: Values) -> list[str]:
    memory = result.get("memory")
    if not memory or memory.get("ratio") is None:
        return []
    sizes = [("peak", "peak_bytes"), ("weights", "weights_bytes"), ("cache", "cache_bytes")]
    columns = [
        *(_size_column(name, key) for name, key in sizes),
        ("peak over weights and cache", lambda row: _number(row["ratio"])),
        _size_column("Python and libraries beside it", "before_bytes"),
    ]
    return _table(columns, [memory])


def _size_column(name: str, key: str) -> Column:
    return f"{name}, MB", lambda row: f"{row[key] / 1e6:.0f}"


def _lanes(result: Values) -> list[str]:
    """Throughput against the time of one lane, by method and number of lanes."""
    columns: list[Column] = [
        ("method", _label),
        ("lanes", lambda row: str(row["batch_size"])),
        ("tokens/s of all", lambda row: _number(row["throughput"], 1)),
        ("while all are full", lambda row: _number(row["full_throughput"], 1)),
        ("ms a token of one", lambda row: _number(row["ms_per_token"], 1)),
        ("over plain at as many", lambda row: _number(row["throughput_ratio"])),
        ("over plain at its best", lambda row: _number(row["over_best_plain"])),
        ("same text", lambda row: _share(row["num_same_text"], row["num_texts"])),
    ]
    return _table(columns, sorted(result.get("lanes", []), key=lambda row: str(row["label"])))


def _output(result: Values) -> list[str]:
    """The last lines that a recorded command printed, long ones cut."""
    lines = [line for line in result.get("output", []) if line.strip()]
    shown = [_cut(line) for line in lines[-result.get("num_lines", _NUM_LINES) :]]
    return ["```text", *shown, "```"] if shown else []


def _listed(result: Values) -> list[str]:
    """Columns and rows as the file has them, for results that are no benchmark."""
    names = result.get("columns", [])
    lines = [names, ["---", *["--:"] * (len(names) - 1)], *result.get("rows", [])]
    return [f"| {' | '.join(map(str, line))} |" for line in lines] if names else []


# Name in a marker -> the lines of that table; [] where the result has nothing to show.
TABLES: dict[str, Callable[[Values], list[str]]] = {
    "speed": _speed,
    "acceptance": _acceptance,
    "categories": _categories,
    "passes": _passes,
    "memory": _memory,
    "lanes": _lanes,
    "output": _output,
    "table": _listed,
}


def _table(columns: Sequence[Column], rows: Sequence[Values]) -> list[str]:
    """A Markdown table; the first column is text, the others are numbers."""
    if not rows or not columns:
        return []
    lines = [[heading for heading, _ in columns]]
    lines.append(["---", *["--:"] * (len(columns) - 1)])
    lines += [[cell(row) for _, cell in columns] for row in rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _filled(columns: Sequence[Column], rows: Sequence[Values]) -> list[Column]:
    """The columns in which at least one row has something."""
    return [(heading, cell) for heading, cell in columns if any(cell(row) for row in rows)]


def _label(row: Values) -> str:
    return f"`{row['label']}`" + (" (synthetic)" if row.get("synthetic") else "")


def _number(number: float | None, digits: int = 2, ends: Sequence[float] | None = None) -> str:
    text = "" if number is None else f"{number:.{digits}f}"
    return f"{text} [{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]" if text and ends else text


def _share(count: int | None, total: int | None) -> str:
    return "" if count is None or not total else f"{count}/{total}"


def _cut(line: str) -> str:
    line = line.rstrip()
    return line if len(line) <= _OUTPUT_WIDTH else f"{line[: _OUTPUT_WIDTH - 1].rstrip()}…"
