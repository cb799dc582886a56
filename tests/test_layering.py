"""A module imports only what the table allows, and the limits of the style hold.

Everything is read from the source. The unit of the table is a *package*: a room such as `law`, the
contract of an axis such as `drafter.base`, or the words of an axis such as `drafter`. Inside the
large packages the order of the modules is fixed as well.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from specframe.compose.axes import AXES

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "specframe"
MAX_LINES, MAX_FUNCTION, MAX_PARAMETERS = 250, 40, 6
GROUPS = (*AXES, "tracker", "train")  # folders whose modules are words of the command line

# Package -> the packages of ours that its modules may import. `*.base`: the contract of any axis.
ALLOWED: dict[str, str] = {
    "": "api compose",  # on demand: specframe.load
    "__main__": "cli",
    # What everything stands on.
    "errors": "",
    "types": "",
    "ext": "",
    "registry": "errors",
    "plugins": "errors ext registry",
    "storage": "errors",
    "records": "cache.base types",
    "law": "errors registry types",
    "measure": "records",
    # The contracts of the axes.
    "accept.base": "law registry types",
    "cache.base": "registry types",
    "data.base": "registry",
    "drafter.base": "lookup records registry types",
    "runtime.base": "cache.base registry types",
    "target.base": "cache.base registry types",
    "task.base": "prompts registry session trace.base",
    "trace.base": "records registry session",
    "tracker.base": "errors sweep",
    "train.base": "errors heads registry runtime.base target.base training",
    "tree.base": "drafting records registry types",
    # The rooms.
    "buffers": "cache.base runtime.base types",
    "lookup": "prompts storage target.base types",
    "models": "errors storage target.base",
    "prompts": "errors models session storage target.base",
    "planning": "lookup records types",
    "heads": "errors runtime.base storage target.base",
    "kernel": "cache.base runtime.base storage types",
    "drafting": "*.base buffers capture errors heads law lookup records types",
    "components": "*.base errors records registry types",
    "capture": "*.base components drafting law records types",
    "loop": "*.base components measure records session types",
    "session": "*.base buffers capture components drafting errors kernel law loop measure models "
    "records registry storage types",
    "costs": "*.base buffers capture drafting errors heads kernel law lookup loop measure planning "
    "prompts session storage types",
    "tracing": "errors session storage tree.base types",
    "terminal": "measure planning session storage",
    "report": "accept.base errors measure session storage",
    "training": "cache.base errors heads prompts registry session storage target.base terminal "
    "train.base types",
    "compose": "*.base capture components costs errors law measure planning plugins prompts "
    "records registry session storage terminal types",
    "sweep": "errors storage",
    "cli": "compose errors plugins storage sweep",
    "testing": "*",  # suites of real components; nothing imports it
    # The words of the axes.
    "accept": "*.base capture law registry types",
    "cache": "*.base buffers errors registry",
    "data": "*.base errors prompts storage",
    "drafter": "*.base capture drafting errors heads law lookup records registry types",
    "runtime": "*.base capture kernel registry storage",
    "target": "*.base errors models registry types",
    "task": "*.base buffers compose costs drafting errors kernel law lookup loop measure planning "
    "prompts records registry report session storage terminal tracing training types",
    "trace": "*.base errors law measure records registry session storage tracing types",
    "tracker": "*.base sweep",
    "train": "*.base errors heads registry training",
    "tree": "*.base capture drafting heads lookup planning records registry types",
    "api": "compose errors measure report session sweep",
}
# Inside a large package: a module may import only those to the left of it.
ORDER: dict[str, str] = {
    "compose": "foreign_notices hydra_errors binding catalogue top_level_keys nested_options "
    "key_check explain data_sheets literal_words overrides axes compatibility derived_configs "
    "loaded_models build run_task",
    "costs": "rank_counts calibration ceilings fingerprint stored_costs warmup_runs step_timing "
    "rank_accuracy provider",
    "buffers": "launches tensor_passes contiguous_pass contiguous side_by_side",
    "capture": "capturable tensor_records graphs purity wrappers",
    "drafting": "assembly cache_view draws feeding vocabulary builder "
    "feature_drafter placing rank_tree",
    "heads": "config_values embeddings layers medusa_net shipped model_card eagle_net head_files "
    "mtp_net choice layer_layout strict_loading fitting head_drafter medusa_file eagle_export "
    "eagle_file mtp_file",
    "kernel": "library mapped_files reordered_linear onednn packed_linear fastest_kernel trunk",
    "lookup": "trie foresight continuation_tree suffix_automaton datastore ngram_pool "
    "lookahead_window",
    "planning": "cost_table rank_paths rank_learner tree_speed lookup_chances source_explanation",
    "report": "canvas run_answers numbers traces runs run_sides conditions groups comparable "
    "lossiness cells labels marks cost_bars lane_curves charts reasons paired tables summary page "
    "result_file readme_tables results",
    "session": "chat_settings prompt_encoding arguments batched row_table generation text_stream "
    "events stopping settings declared_reads shared_pass lane lanes forking engine warmup "
    "model_facts manifest run_state",
    "sweep": "extras point point_numbers order resume run_point multirun table outcome",
    "task.benchmark": "humaneval_check machine paper peers quality passes sides plain_pace "
    "peer_side lineup batch_curve rows contest scoreboard verdict comparison conclusion "
    "column_meanings pass_table printout",
    "training": "origin samples schedule head_shape warm_start feature_cache batches loader "
    "teacher_laws unroll losses chains head_module training_progress fit course",
    "api": "run_result task_tables tasks",
    "storage": "cache_folder closing whole_files secret_keys digests arrays differences "
    "system_errors folder_lock run_folder lines",
}
# Package from elsewhere -> the modules of ours that may import it.
OUTSIDE: dict[str, str] = {
    "hydra": "compose.* plugins cli sweep.* tracker.*",
    "omegaconf": "compose.* plugins cli sweep.* tracker.*",
    "transformers": "target.hf target.hf.* target.random models.* law.sampling session.stopping "
    "task.benchmark.peers testing.tiny_models",
    "lightning": "train.* training.*",
    "rich": "cli terminal.* models.package task.*",
}
WITHOUT_TORCH = (
    "__main__ cli errors registry plugins ext compose.binding compose.catalogue "
    "compose.hydra_errors compose.nested_options compose.key_check compose.explain "
    "compose.overrides sweep.* terminal.log tracker.*"
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
    """Whether a dotted name is among these patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns.split())


def package_of(name: str) -> str:
    """The row of `ALLOWED` that a module belongs to."""
    axis, _, rest = name.partition(".")
    return name if axis in GROUPS and rest == "base" else axis


def word_of(name: str) -> str | None:
    """`axis.word` of a module that is a word or a part of one, None for any other module."""
    axis, _, rest = name.partition(".")
    return (
        f"{axis}.{rest.partition('.')[0]}" if axis in GROUPS and rest not in ("", "base") else None
    )


@cache
def edges() -> list[tuple[str, str]]:
    """(importing module, imported module) of ours, both dotted below the package."""
    found = []
    for name, tree in modules().items():
        for imported in imports(tree):
            top, _, rest = imported.partition(".")
            if top == "specframe" and rest and rest != name:
                found.append((name, rest))
    return found


def test_a_module_imports_only_what_its_package_may() -> None:
    for name, imported in edges():
        package, other = package_of(name), package_of(imported)
        assert package == other or fits(other, ALLOWED[package]), (
            f"{name} may not import {imported}"
        )


def test_words_are_imported_by_their_own_axis_alone() -> None:
    for name, imported in edges():
        word = word_of(imported)
        if word is not None and word != word_of(name) and package_of(name) != "testing":
            assert name.partition(".")[0] == imported.partition(".")[0], f"{name}: {imported}"


def test_the_modules_of_a_large_package_have_an_order() -> None:
    for package, listed in ORDER.items():
        inside = {name for name in modules() if name.startswith(f"{package}.")}
        floors = [f"{package}.{stem}" for stem in listed.split()]
        assert inside == set(floors), f"{package}: {inside ^ set(floors)}"
        for name, imported in edges():
            if name in inside and imported in inside:
                assert floors.index(imported) < floors.index(name), f"{name} imports {imported}"


def test_packages_from_elsewhere_are_imported_where_the_table_says() -> None:
    for name, tree in modules().items():
        for imported in imports(tree):
            top = imported.partition(".")[0]
            assert top not in OUTSIDE or fits(name, OUTSIDE[top]), f"{name} may not import {top}"


def test_the_init_of_a_package_holds_a_docstring_only() -> None:
    for name, tree in modules().items():
        file = PACKAGE / name.replace(".", "/") / "__init__.py"
        is_package = name not in ("", "ext", "testing") and file.is_file()
        if is_package and word_of(name) is None:
            assert not list(imports(tree)), name


def test_the_table_lists_no_package_that_is_gone() -> None:
    assert set(ALLOWED) == {package_of(name) for name in modules()}


class _AtRunTime(ast.NodeTransformer):
    """Leaves out what is imported for types only."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if "TYPE_CHECKING" in ast.dump(node.test) else self.generic_visit(node)


def test_there_is_no_cycle() -> None:
    graph = {}
    for name, tree in modules().items():
        used = imports(_AtRunTime().visit(copy.deepcopy(tree)))
        ours = {each.removeprefix("specframe.") for each in used if each.startswith("specframe.")}
        graph[name] = ours - {name}
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


def test_heavy_imports_are_made_where_they_are_used() -> None:
    for name, tree in modules().items():
        tops = {imported.partition(".")[0] for imported in module_level(tree)}
        # The train task imports these inside the job; Lightning's classes are their base classes.
        own = {"lightning"} if fits(name, "train.* training.*") else set()
        assert not tops & ({"transformers", "lightning", "scipy"} - own), name
        if fits(name, WITHOUT_TORCH) or name == "":
            assert "torch" not in tops, name


def test_what_answers_a_typo_never_reaches_torch() -> None:
    """`--help` imports the command line; nothing it imports at the top may import torch."""
    seen, pending = set(), ["__main__", "cli", "plugins", "compose.explain", "compose.key_check"]
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
    for node in ast.walk(modules()["loop"]):
        if isinstance(node, ast.Name):
            assert node.id not in {"isinstance", "issubclass", "hasattr", "type"} | classes, node.id
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert node.value not in names, node.value
        if isinstance(node, ast.alias):
            assert node.name not in classes


def test_style() -> None:
    for name, tree in modules().items():
        assert ast.get_docstring(tree), f"{name} has no docstring"
        assert name.split(".")[-1] not in {"utils", "helpers", "common", "misc"}, name
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert all(alias.name != "*" for alias in node.names), name
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, f"{name} has a bare except"
            assert not isinstance(node, ast.Global), f"{name} has a global statement"


def test_files_are_short() -> None:
    """The docstring of a module does not count: `types` holds the glossary."""
    for name, tree in modules().items():
        first = tree.body[0].end_lineno or 0
        last = max((getattr(node, "end_lineno", None) or 0 for node in ast.walk(tree)), default=0)
        assert last - first <= MAX_LINES, f"{name} has {last - first} lines"


def test_functions_are_short_and_take_few_parameters() -> None:
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= MAX_FUNCTION, f"{name}.{node.name} has {lines} lines"
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            given = [each for each in arguments if each.arg not in ("self", "cls")]
            # A constructor's parameters are the fields of a component.
            if node.name not in ("__init__", "_adopt"):
                assert len(given) <= MAX_PARAMETERS, f"{name}.{node.name}: {len(given)} parameters"
