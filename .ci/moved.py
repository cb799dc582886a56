"""Writes the changelog's tables of moved imports: where each public name of an old commit is now.

    python .ci/moved.py e9137a4

Compares the package at that commit with the working tree. A name is a class, function or constant
of a module without a leading underscore. Names that moved with their module are one row; the
tables stand between `<!-- moved -->` and `<!-- end -->` of .github/CHANGELOG.md.
"""

from __future__ import annotations

import ast
import difflib
import io
import re
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHANGELOG = ROOT / ".github" / "CHANGELOG.md"
MARKED = re.compile(r"(<!-- moved -->\n).*?(<!-- end -->)", re.DOTALL)
_ALIKE = 0.55  # similarity of two sources that are taken to be one thing under two names


@dataclass(frozen=True)
class Definition:
    """A public name of a module."""

    module: str
    name: str
    source: str


def main() -> None:
    """Read the command line and write the tables."""
    before, now = definitions(archived(sys.argv[1])), definitions(working())
    homes = places(before, now)
    modules = moved_modules(homes)
    lines = ["| module | is now |", "|---|---|"]
    lines += [f"| `{old}` | `{new}` |" for old, new in sorted(modules.items())]
    lines += ["", "| name | is now |", "|---|---|"]
    for old, new in sorted(homes.items(), key=lambda pair: (pair[0].module, pair[0].name)):
        expected = modules.get(old.module, old.module)
        if (new.module, new.name) != (expected, old.name):
            lines.append(f"| `{old.module}.{old.name}` | `{new.module}.{new.name}` |")
    gone = [old for old in before if old not in homes and is_class(old)]
    lines += ["", "Gone without a successor of one name:", ""]
    listed = [f"`{old.module}.{old.name}`" for old in sorted(gone, key=lambda old: old.module)]
    lines.append(", ".join(listed) + "." if listed else "nothing.")
    text = CHANGELOG.read_text(encoding="utf-8")
    body = "\n".join(lines) + "\n"
    CHANGELOG.write_text(MARKED.sub(lambda m: m[1] + body + m[2], text), encoding="utf-8")
    print(f"{len(modules)} modules, {len(homes)} names, {len(gone)} classes gone")


def archived(commit: str) -> dict[str, str]:
    """Source of every module at a commit, by dotted name."""
    command = ["git", "-C", str(ROOT), "archive", commit, "specframe"]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            opened = archive.extractfile(member) if member.name.endswith(".py") else None
            if opened is not None:
                found[dotted(Path(member.name))] = opened.read().decode()
    return found


def working() -> dict[str, str]:
    """Source of every module of the working tree, by dotted name."""
    files = (ROOT / "specframe").rglob("*.py")
    return {dotted(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}


def dotted(file: Path) -> str:
    """specframe/tree/base.py -> specframe.tree.base"""
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def definitions(sources: dict[str, str]) -> list[Definition]:
    """Every public name."""
    found = []
    for module, source in sources.items():
        for node in ast.parse(source).body:
            for name in _names(node):
                if name[0] != "_":
                    found.append(
                        Definition(module, name, ast.get_source_segment(source, node) or "")
                    )
    return found


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def places(before: list[Definition], now: list[Definition]) -> dict[Definition, Definition]:
    """Where each old name is: the same name, or a class of another name, of most similar source."""
    counts = Counter(each.name for each in before), Counter(each.name for each in now)
    single = {each.name: each for each in now if counts[1][each.name] == 1}
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for old in before:  # names that occur once tell where most of their module went
        if counts[0][old.name] == 1 and old.name in single:
            votes[old.module][single[old.name].module] += 1
    homes = {}
    for old in before:
        main_home = votes[old.module].most_common(1)[0][0] if votes[old.module] else old.module
        scores = {new: score(old, new, main_home) for new in now if may_be(old, new)}
        best = max(scores, key=lambda new: scores[new], default=None)
        if best is not None and scores[best] > _ALIKE:
            homes[old] = best
    return homes


def may_be(old: Definition, new: Definition) -> bool:
    """Whether these could be one thing: of one name, or two classes."""
    return old.name == new.name or (is_class(old) and is_class(new))


def is_class(each: Definition) -> bool:
    """Whether a name is that of a class."""
    return bool(re.search(rf"^class {each.name}\b", each.source, re.MULTILINE))


def score(old: Definition, new: Definition, main_home: str) -> float:
    """How likely `new` is what became of `old`: its source, its name, and where it is."""
    named, at_home = old.name == new.name, new.module == main_home
    if not (named or at_home or old.module == new.module):
        return alike(old, new) - 0.2  # another name in another room must be nearly the same text
    return alike(old, new) + 0.3 * named + 0.3 * at_home


def alike(one: Definition, other: Definition) -> float:
    """Similarity of two sources from 0 to 1, by lines; the name itself does not count."""
    lines = [each.source.replace(each.name, "NAME").splitlines() for each in (one, other)]
    if not set(lines[0]) & set(lines[1]):
        return 0.0
    return difflib.SequenceMatcher(None, *lines, autojunk=False).ratio()


def moved_modules(homes: dict[Definition, Definition]) -> dict[str, str]:
    """Module -> where most of its names are, where that is another one."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for old, new in homes.items():
        votes[old.module][new.module] += 1
    most = {module: counter.most_common(1)[0][0] for module, counter in votes.items()}
    return {old: new for old, new in most.items() if old != new}


if __name__ == "__main__":
    main()
