"""What the READMEs tell a reader to write is written, composed and run.

A fenced block whose first line is a comment that names a file under `plugins/` is that file:

    ```python
    # plugins/mine/mine.py
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specframe.compose import catalogue
from specframe.compose.axes import AXES
from specframe.compose.build import plan
from specframe.compose.overrides import compose
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.report.results import MARKER, readmes

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
MAX_LINES, MAX_WIDTH = 150, 160  # of the README at the top
PAGES = [*readmes(), *sorted((ROOT / ".github").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
COMMAND = re.compile(r"^(?:    |\$ )?(?:    )?python -m specframe(?: +(.*))?$", re.MULTILINE)
PLACEHOLDER = re.compile(r"(?<![A-Za-z_.])[A-Z]{2,}[A-Z_]*(?![A-Za-z_.])")  # FILE, FOLDER
FENCED = re.compile(
    r"^(?P<marker><!-- ci: (?P<name>\w+) -->\n)?```(?P<kind>\w+)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
BLOCK = re.compile(r"^```\w+\n# plugins/(\S+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)

SAMPLE = '''
```python
# plugins/mine/mine.py
"""Says the last token again."""

from collections.abc import Sequence

from specframe.drafter.base import DRAFTERS, Continuation, Retrieval


@DRAFTERS.register("mine")
class Mine(Retrieval):
    """Proposes the last token `times` times. Lossless. Needs nothing. Source: none."""

    def __init__(self, *, times: int) -> None:
        self.times = times

    def continuations(self) -> Sequence[Continuation]:
        return [Continuation([self.context.tokens[-1]] * self.times)]
```

and its numbers:

```yaml
# plugins/mine/conf/drafter/mine.yaml
name: mine
times: 3 # tokens
```

```python
# plugins/mine/test_mine.py
"""The contract."""

from specframe.testing.drafters import DrafterContract


class TestMine(DrafterContract):
    word = "mine"
```

```bash
python -m specframe drafter=mine target=toy
```
'''

RUN = """
import sys
from specframe import load
plain = load(["target=toy", "drafter=none"]).generate([1, 2, 1, 2, 1], max_new_tokens=16).tokens
for word in sys.argv[1:]:
    engine = load(["target=toy", *([] if "drafter" in word else ["drafter=ngram"]), word])
    assert engine.generate([1, 2, 1, 2, 1], max_new_tokens=16).tokens == plain, word
    print(word, "ran")
"""


def blocks(text: str) -> dict[str, str]:
    """Path below plugins/ -> content."""
    return dict(BLOCK.findall(text))


def words(files: dict[str, str]) -> list[str]:
    """`axis=word` of every YAML file among them."""
    found = (re.fullmatch(r"[^/]+/conf/([^/]+)/([^/]+)\.yaml", path) for path in files)
    return [f"{match[1]}={match[2]}" for match in found if match]


def python(*arguments: str, plugins: Path) -> str:
    """Standard output of a fresh interpreter that finds these plugins."""
    environment = os.environ | {"SPECFRAME_PLUGINS": str(plugins), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(files: dict[str, str], folder: Path) -> None:
    """The files are all it takes: the words run, and are listed."""
    for path, content in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    chosen = words(files)
    ran = python("-c", RUN, *chosen, plugins=folder)
    listed = python("-m", "specframe", "--help", plugins=folder)
    for word in chosen:
        assert f"{word} ran" in ran
        axis, _, option = word.partition("=")
        assert re.search(rf"{axis}: .*\b{option}\b", listed), f"--help does not list {word}"


def plugin() -> dict[str, str]:
    """The files of the plug-in in the README."""
    return blocks(README.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_plugin_of_the_readme_runs(tmp_path: Path) -> None:
    files = plugin()
    assert words(files) == ["drafter=mine"]
    assert sum(len(text.splitlines()) for text in files.values()) <= 15, "a plug-in in 15 lines"
    check(files, tmp_path)


@pytest.mark.slow
def test_a_broken_plugin_is_noticed(tmp_path: Path) -> None:
    files = plugin()
    broken = {path: text.replace("self.times", "self.tiems", 1) for path, text in files.items()}
    assert broken != files
    with pytest.raises(AssertionError):
        check(broken, tmp_path)


def test_the_readme_is_short() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MAX_LINES
    for number, line in enumerate(lines, start=1):
        assert len(line) <= MAX_WIDTH, f"line {number} has {len(line)} characters"


def test_ci_finds_the_commands_of_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    named = {each["name"]: each for each in FENCED.finditer(text) if each["name"]}
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert set(named) == set(re.findall(r"^eval \"\$\(readme (\w+)\)\"$", script, re.MULTILINE))
    assert all(each["kind"] == "bash" for each in named.values())
    for name, each in named.items():
        function = script[script.index("readme() {") : script.index("# Each command")]
        done = subprocess.run(
            ["bash", "-c", f"{function}\nreadme {name}"],
            env=os.environ | {"root": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert done.stdout == each["body"] != ""


def test_the_table_of_axes_lists_every_word() -> None:
    listed: dict[str, set[str]] = {}
    axis = ""
    for line in README.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 3:
            axis = cells[0].strip("`") or axis
            listed.setdefault(axis, set()).update(re.findall(r"\w+", cells[2]))
    with catalogue.configuration() as loader:
        for axis in (*AXES, "tracker"):
            options = set(catalogue.options(loader, axis))
            shipped = {
                each for each in options if (ROOT / "conf" / axis / f"{each}.yaml").is_file()
            }
            names = set(AXES[axis].names()) & shipped if axis in AXES else shipped
            assert names <= listed[axis] - {"presets"} <= options, axis


def commands(text: str) -> Iterator[list[str]]:
    """The words of every specframe command that has no placeholder; the first point of a sweep."""
    for match in COMMAND.finditer(text):
        line = re.sub(r"\s+#\s.*$", "", match[1] or "")
        if PLACEHOLDER.search(line):
            continue
        given = shlex.split(line)
        sweep = bool({"-m", "--multirun"} & set(given))
        given = [each for each in given if "=" in each and not each.startswith("hydra")]
        yield [re.sub(r"=([^\[,\"']+),.*$", r"=\1", each) if sweep else each for each in given]


def test_commands_are_found() -> None:
    text = "    python -m specframe -m drafter=none,ngram tree.depth=3,5   # a sweep\n"
    assert list(commands(text)) == [["drafter=none", "tree.depth=3"]]
    assert list(commands("    $ python -m specframe prompts=FILE\n")) == []
    assert len(list(commands(README.read_text(encoding="utf-8")))) == 8


# The recipes of plugins/README.md bring words of their own; tests/test_recipes.py runs them.
COMPOSING = [page for page in PAGES if page.parent.name != "plugins"]


@pytest.mark.parametrize("page", COMPOSING, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_composes(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text('{"prompt": "Why?"}\n', encoding="utf-8")
    for given in commands(page.read_text(encoding="utf-8")):
        plan(compose(given))


def test_refusals_are_quoted_as_they_are() -> None:
    quoted = re.compile(
        r"^    \$ python -m specframe (.*)\n    specframe: error: (.*)$", re.MULTILINE
    )
    pairs = [pair for page in PAGES for pair in quoted.findall(page.read_text(encoding="utf-8"))]
    assert pairs
    for given, sentence in pairs:
        with pytest.raises((ConfigError, IncompatibleComponents)) as error:
            plan(compose(shlex.split(given)))
        assert sentence == f"{error.value}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_is_linked_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in LINK.findall(text):
        assert "://" in link or (page.parent / link).exists(), f"{page}: {link}"


def test_the_python_block_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = README.read_text(encoding="utf-8")
    (block,) = (
        each["body"]
        for each in FENCED.finditer(text)
        if each["kind"] == "python" and "import specframe\n" in each["body"]
    )
    small = block.replace("load([", 'load(["target=random", "max_new_tokens=8", ')
    assert small != block
    exec(compile(small, str(README), "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_a_readme_types_no_measured_figure() -> None:
    """Times and rates stand between markers alone, where result files are behind them."""
    typed = re.compile(r"\d\s?(?:tokens/s|ms|GB/s)\b")
    for page in itertools.filterfalse(lambda page: "plugins" in page.parts, readmes()):
        text = MARKER.sub("", page.read_text(encoding="utf-8"))
        assert not typed.search(text), f"{page}: {typed.findall(text)}"


def test_the_changelog_names_modules_that_are_there() -> None:
    text = (ROOT / ".github" / "CHANGELOG.md").read_text(encoding="utf-8")
    modules = text[text.index("| module |") : text.index("| name |")]
    rows = re.findall(r"^\| `(specframe[\w.]*)` \| `(specframe[\w.]*)` \|$", modules, re.MULTILINE)
    assert len(rows) > 100
    for before, now in rows:
        path = ROOT / now.replace(".", "/")
        there = path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
        assert there, f"{before}: {now} is gone; run .ci/moved.py"
