"""A module imports only what the table allows, and the style's limits hold. Read from source."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from specframe.axes import AXES

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "specframe"
MAX_LINES, MAX_FUNCTION, MAX_PARAMETERS = 260, 40, 6

# Module (without the package's name; the first pattern that fits) -> what it may import of ours.
ALLOWED: dict[str, str] = {
    "": "build",  # on demand: specframe.load
    "__main__": "cli",
    "errors": "",
    "types": "",
    "records": "types",
    "streams": "",
    "trie": "",
    "automaton": "",
    "growth": "",
    "prospect": "trie types",
    "phrases": "types",
    "ext": "",
    "console": "",
    "registry": "errors",
    "shipped": "errors",
    "binding": "errors registry",
    "sampling": "binding errors",
    "laws": "sampling streams types",
    "stopping": "errors records sampling types",
    "clock": "",
    "trace.base": "generation records registry",
    "trace.*": "accept.base binding clock data.lines errors generation laws records streams "
    "trace.* types",
    "tree.drawing": "sampling streams types",
    "tree.builder": "sampling streams types tree.drawing",
    "tree.base": "binding prospect records registry types tree.builder tree.costs",
    "tree.costs": "",
    "tree.*": "binding errors prospect records shipped trie types tree.base tree.builder "
    "tree.chances tree.costs tree.learning tree.placing tree.planning tree.ranks tree.reasons "
    "tree.speed",
    "accept.base": "laws registry streams types",
    "accept.*": "binding errors laws streams types accept.base",
    "cache.base": "errors registry",
    "cache.*": "binding errors cache.base",
    "storage": "",
    "runtime.base": "registry types cache.base",
    "runtime.kernel.*": "storage types cache.base runtime.base runtime.kernel.*",
    "runtime.*": "binding errors storage runtime.base runtime.capture runtime.kernel.*",
    "target.base": "registry types cache.base runtime.base",
    "target.*": "binding errors storage types cache.base runtime.base target.*",
    "drafter.base": "growth prospect records registry trie types",
    "drafter.net.*": "errors phrases records trie types cache.base runtime.base target.base "
    "drafter.base drafter.net.*",
    "checkpoint.*": "errors shipped checkpoint.* drafter.net.*",
    "drafter.*": "automaton binding data.datastore errors growth phrases prospect records sampling "
    "streams trie types cache.base runtime.base target.base drafter.base checkpoint.* "
    "drafter.net.*",
    "metrics": "clock",
    "intervals": "",
    "meter": "clock metrics records",
    "data.corpus": "errors target.base target.package target.tokenizer",
    "data.datastore": "data.corpus storage target.base",
    "data.base": "registry",
    "data.*": "errors data.*",
    "manifest": "errors generation target.base target.package target.tokenizer",
    "parts": "errors types *.base",
    "forms": "",
    "judging": "forms laws streams types accept.base runtime.base",
    "growing": "forms judging parts prospect sampling streams types tree.builder *.base",
    "engine": "clock errors growing judging laws parts records sampling stopping streams types "
    "tree.builder",
    "generation": "engine errors parts records sampling stopping streams types",
    "rehearsal": "errors generation stopping streams tree.builder",
    "task.base": "generation registry trace.base",
    "report.*": "accept.base errors intervals report.*",
    "task.report": "binding errors intervals report.* task.base",
    "task.train": "binding checkpoint.* data.* drafter.net.* errors generation manifest "
    "target.base task.base task.batched task.questions train.* types",
    "train.*": "binding cache.* checkpoint.* data.* drafter.eagle3 drafter.net.* errors "
    "generation manifest records registry shipped target.base task.batched task.questions train.* "
    "types",
    "task.*": "accept.* binding cache.* clock data.* drafter.* engine errors generation intervals "
    "laws manifest meter metrics parts prospect records registry rehearsal runtime.* sampling "
    "shipped stopping storage streams target.* task.* trace.* tree.* types",
    "plugins": "errors ext registry",
    "catalogue": "plugins",
    "composite": "binding catalogue errors registry",
    "keys": "binding catalogue composite errors plugins registry",
    "diagnose": "binding catalogue composite keys plugins registry",
    "compose": "catalogue composite diagnose errors keys",
    "compatibility": "errors types *.base",
    "axes": "binding errors records registry tree.costs *.base",
    "top": "binding data.prompts errors sampling stopping",
    "inner": "axes catalogue compose composite errors records",
    "words": "axes catalogue compatibility errors inner",
    "keeping": "axes records *.base",
    "build": "axes binding compatibility compose data.* errors generation inner keeping manifest "
    "parts records rehearsal sampling stopping task.supply top tree.costs types words *.base",
    "point": "",
    "gather": "point",
    "multirun": "errors gather point registry",
    "sweepers": "errors point",
    "tracker.*": "errors gather point sweepers tracker.*",
    "cli": "build catalogue composite diagnose errors gather keys multirun plugins point sweepers",
}
OUTSIDE: dict[str, str] = {
    "hydra": "build catalogue composite keys diagnose compose plugins cli multirun point tracker.*",
    "omegaconf": "build catalogue inner keys diagnose compose plugins cli multirun point "
    "sweepers tracker.*",
    "transformers": "target.* sampling stopping drafter.* task.peers",
    "lightning": "train.*",
    "rich": "console cli target.package task.*",
}
WITHOUT_TORCH = (
    "__main__ cli errors registry binding plugins ext catalogue composite keys diagnose compose "
    "multirun console point gather sweepers tracker.*"
)


@cache
def modules() -> dict[str, ast.Module]:
    """Dotted name below the package -> its syntax tree."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = list(file.relative_to(PACKAGE).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(file.read_text(encoding="utf-8"))
    return found


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported, at the top or within functions."""
    known = set(modules())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner.removeprefix("specframe.") in known else node.module


def fits(name: str, patterns: str) -> bool:
    """Whether a dotted name is among these."""
    return any(fnmatchcase(name, pattern) for pattern in patterns.split())


def allowed(name: str) -> str:
    """What a module may import of ours."""
    return next(edges for pattern, edges in ALLOWED.items() if fnmatchcase(name, pattern))


@pytest.mark.parametrize("name", modules())
def test_edges(name: str) -> None:
    if name not in ("", "ext") and (PACKAGE / name / "__init__.py").is_file():
        assert not list(imports(modules()[name])), "a package's __init__ holds a docstring only"
        return
    for imported in imports(modules()[name]):
        top, _, rest = imported.partition(".")
        if top == "specframe":
            version_only = rest == ""
            assert version_only or fits(rest, allowed(name)), f"{name} may not import {rest}"
        elif top in OUTSIDE:
            assert fits(name, OUTSIDE[top]), f"{name} may not import {top}"


def test_the_table_lists_no_module_that_is_gone() -> None:
    for pattern in ALLOWED:
        assert any(fnmatchcase(name, pattern) for name in modules()), pattern


class _AtRunTime(ast.NodeTransformer):
    """Leaves out what is imported for types only."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if "TYPE_CHECKING" in ast.dump(node.test) else self.generic_visit(node)


def test_there_is_no_cycle() -> None:
    graph = {}
    for name, tree in modules().items():
        used = imports(_AtRunTime().visit(copy.deepcopy(tree)))
        edges = {one.removeprefix("specframe.") for one in used if one.startswith("specframe.")}
        graph[name] = edges - {name}
    del graph[""]  # it reaches build, on demand
    while graph:
        free = [name for name, edges in graph.items() if not edges & graph.keys()]
        assert free, f"a cycle among {sorted(graph)}"
        for name in free:
            del graph[name]


def module_level(tree: ast.Module) -> Iterator[str]:
    """What importing the module imports: not functions' own imports, not those for types only."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from imports(ast.Module(body=[node], type_ignores=[]))
        elif isinstance(node, (ast.If, ast.Try, ast.ClassDef)):
            pending += ast.iter_child_nodes(node)


@pytest.mark.parametrize("name", modules())
def test_heavy_imports_are_made_where_they_are_used(name: str) -> None:
    tops = {imported.partition(".")[0] for imported in module_level(modules()[name])}
    # train/ is imported by its task, inside the job, and Lightning's classes are its base classes.
    own = {"lightning"} if fits(name, "train.*") else set()
    assert not tops & ({"transformers", "lightning", "scipy"} - own)
    if fits(name, WITHOUT_TORCH) or name == "":
        assert "torch" not in tops


def test_what_answers_a_typo_never_reaches_torch() -> None:
    """`--help` imports the command line; nothing it imports at the top may import torch."""
    seen, pending = set(), ["__main__", "cli", "plugins", "diagnose", "catalogue", "keys"]
    while pending:
        name = pending.pop()
        if name in seen or name not in modules():
            continue
        seen.add(name)
        for imported in module_level(modules()[name]):
            assert imported.partition(".")[0] != "torch", f"{name} imports torch"
            if imported.startswith("specframe."):
                pending.append(imported.removeprefix("specframe."))


def test_the_engine_knows_no_component() -> None:
    names = {name for registry in AXES.values() for name in registry.names()}
    classes = {AXES[axis].get(name).__name__ for axis in AXES for name in AXES[axis].names()}
    for node in ast.walk(modules()["engine"]):
        if isinstance(node, ast.Name):
            assert node.id not in {"isinstance", "issubclass", "hasattr", "type"} | classes, node.id
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert node.value not in names, node.value
        if isinstance(node, ast.alias):
            assert node.name not in classes


@pytest.mark.parametrize("name", modules())
def test_style(name: str) -> None:
    tree = modules()[name]
    assert ast.get_docstring(tree), "a module has a docstring"
    assert name.split(".")[-1] not in {"utils", "helpers", "common", "misc"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert all(alias.name != "*" for alias in node.names)
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, "no bare except"
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            assert isinstance(node, ast.Nonlocal), "nothing is global"


@pytest.mark.parametrize("name", modules())
def test_limits(name: str) -> None:
    tree = modules()[name]
    last = max(
        (node.end_lineno or 0 for node in ast.walk(tree) if hasattr(node, "end_lineno")), default=0
    )
    assert last <= MAX_LINES, f"{name} has {last} lines"
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        lines = (node.end_lineno or 0) - node.lineno + 1
        assert lines <= MAX_FUNCTION, f"{name}.{node.name} has {lines} lines"
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        given = [one for one in arguments if one.arg not in ("self", "cls")]
        # A constructor's parameters are a component's fields, and `_top` is a schema.
        if node.name not in ("__init__", "_top", "_adopt"):
            assert len(given) <= MAX_PARAMETERS, f"{name}.{node.name} has {len(given)} parameters"
