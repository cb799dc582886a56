"""Fills the measured tables of the READMEs from committed result files.

    python -m specframe.report.results add RUN_FOLDER [RUN_FOLDER ...] NAME
    python -m specframe.report.results record NAME 'COMMAND' [--lines 10]
    python -m specframe.report.results fill
    python -m specframe.report.results check

`add` makes results/NAME.json of finished runs of task=benchmark; a sweep's folder gives one row a
point. `record` runs a shell command and keeps what it printed. `fill` writes every table between
`<!-- results:NAME TABLE -->` and `<!-- end -->`, each on a line of its own, in every README; TABLE
is speed (which may be left out), acceptance, categories, passes, memory, lanes, output or table.
`check` exits with 1 where a README differs from what `fill` would write.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from specframe.errors import ConfigError
from specframe.report.readme_tables import markdown
from specframe.report.result_file import read_result, result_of, surroundings_of, write_result

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("specframe/report/results")  # below the root of the repository
PENDING = "*Not measured yet.*\n"  # stands where a marker names a file that is not there
MARKER = re.compile(
    r"^<!-- results:(?P<name>[\w-]+)(?: (?P<table>[\w-]+))? -->\n(?P<body>.*?)^<!-- end -->$",
    re.MULTILINE | re.DOTALL,
)
OPENING = re.compile(r"^<!-- results:", re.MULTILINE)
_NAME = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")
_LEFT_OUT = {"outputs", "build", "dist", "node_modules"}  # folders without READMEs of ours


def add(folders: Sequence[Path], name: str, *, root: Path = ROOT) -> Path:
    """Make the result file `name` of benchmark runs; returns its path. Raises ConfigError."""
    path = _path(name, root)
    write_result(path, result_of(folders))
    return path


def record(name: str, command: str, *, num_lines: int, root: Path = ROOT) -> Path:
    """Run a shell command in this folder and keep what it printed; returns the file's path.

    Raises ConfigError, and keeps nothing, if the command fails.
    """
    import torch

    from specframe.session.manifest import hardware, surroundings

    path = _path(name, root)
    done = subprocess.run(
        ["bash", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    sys.stderr.write(done.stdout)
    if done.returncode:
        raise ConfigError(f"{command}: exit code {done.returncode}; nothing is recorded")
    printed = done.stdout.replace(str(Path.cwd()), ".")  # no reader has this folder
    manifest = {**surroundings({}), "hardware": hardware(torch.device("cpu"))}
    result = {
        "kind": "output",
        "date": datetime.now(UTC).date().isoformat(),
        "commands": [command],
        **surroundings_of(manifest),
        "num_lines": num_lines,
        "output": [line for line in printed.splitlines() if line.strip()],
    }
    write_result(path, result)
    return path


def filled(readme: Path, *, root: Path = ROOT) -> str:
    """The text of a README with every table as its result file has it. Raises ConfigError."""
    text = readme.read_text(encoding="utf-8")
    if len(OPENING.findall(text)) != len(MARKER.findall(text)):
        raise ConfigError(f"{readme}: a results marker has no `<!-- end -->` line below it")

    def fill_one(match: re.Match[str]) -> str:
        path = _path(match["name"], root)
        body = PENDING
        if path.is_file():
            link = os.path.relpath(path, readme.parent)
            try:
                body = markdown(read_result(path), match["table"], link)
            except ConfigError as error:
                raise ConfigError(f"{readme}, results:{match['name']}: {error}") from None
        opening = match[0].partition("\n")[0]
        return f"{opening}\n{body}<!-- end -->"

    return MARKER.sub(fill_one, text)


def fill(*, root: Path = ROOT) -> list[Path]:
    """Write the tables of every README; returns those that changed."""
    changed = differing(root=root)
    for readme in changed:
        readme.write_text(filled(readme, root=root), encoding="utf-8")
    return changed


def differing(*, root: Path = ROOT) -> list[Path]:
    """The READMEs whose tables are not those of the result files."""
    return [
        readme
        for readme in readmes(root)
        if filled(readme, root=root) != readme.read_text(encoding="utf-8")
    ]


def pending(*, root: Path = ROOT) -> list[str]:
    """`README: NAME` of every marker whose result file is not there yet."""
    return [
        f"{readme.relative_to(root)}: {match['name']}"
        for readme in readmes(root)
        for match in MARKER.finditer(readme.read_text(encoding="utf-8"))
        if not _path(match["name"], root).is_file()
    ]


def readmes(root: Path = ROOT) -> Iterator[Path]:
    """Every README of the repository, in order."""
    for folder, below, files in os.walk(root):
        below[:] = sorted(name for name in below if name[0] != "." and name not in _LEFT_OUT)
        if "README.md" in files:
            yield Path(folder) / "README.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 1 for a README that differs, 2 for a mistake."""
    choice = _parser().parse_args(arguments)
    try:
        if choice.command == "add":
            print(add([Path(folder) for folder in choice.folders], choice.name))
        elif choice.command == "record":
            print(record(choice.name, choice.shell, num_lines=choice.lines))
        elif choice.command == "fill":
            print(*(f"filled {path.relative_to(ROOT)}" for path in fill()), sep="\n")
        else:
            return _check()
    except ConfigError as error:
        sys.stderr.write(f"specframe: error: {error}\n")
        return 2
    return 0


def _check() -> int:
    changed = differing()
    for readme in changed:
        print(f"{readme.relative_to(ROOT)} differs from its result files; run `results fill`")
    for marker in pending():
        print(f"{marker} is not measured yet")
    return int(bool(changed))


def _path(name: str, root: Path) -> Path:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name} is no name of a result file; use small letters, digits and -")
    return root / FOLDER / f"{name}.json"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m specframe.report.results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    of_runs = commands.add_parser("add", help="make a result file of benchmark runs")
    of_runs.add_argument("folders", nargs="+", metavar="RUN_FOLDER")
    of_runs.add_argument("name", metavar="NAME")
    of_output = commands.add_parser("record", help="keep what a command prints")
    of_output.add_argument("name", metavar="NAME")
    of_output.add_argument("shell", metavar="COMMAND")
    of_output.add_argument("--lines", type=int, default=10, help="lines that READMEs show")
    commands.add_parser("fill", help="write the tables of every README")
    commands.add_parser("check", help="exit with 1 where a README differs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
