"""Where is ...? A newcomer's questions, answered by the names of files; and one term a thing."""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from specframe.accept.base import AcceptRule
from specframe.cache.base import CacheManager
from specframe.compose.axes import AXES
from specframe.drafter.base import Drafter, Traits
from specframe.runtime.base import Launch, Weights
from specframe.target.base import Target
from specframe.tree.base import TreePolicy

PACKAGE = Path(__file__).resolve().parents[1] / "specframe"
FORBIDDEN = {"held", "made", "told", "found", "one", "asked", "kept"}

# A question -> the file, and a name that is defined or used there.
WHERE = {
    "is the loop": ("loop.py", "def run"),
    "does a draft grow, and is it padded": ("loop.py", "def propose"),
    "do stop conditions cut a verdict": ("session/lane.py", "def read"),
    "does a text end": ("session/stopping.py", "class Stopping"),
    "is the engine of the Python API": ("session/engine.py", "class Engine"),
    "is an argument of the Python API checked": ("session/arguments.py", "def bound"),
    "is an answer's own table": ("session/generation.py", "def table"),
    "is a task called from Python": ("api/tasks.py", "def benchmark"),
    "is text streamed token by token": ("session/text_stream.py", "class TextStream"),
    "is top-p applied": ("law/sampling.py", "top_p"),
    "is the target's law made at a node": ("law/target_laws.py", "class Laws"),
    "is the noise keyed": ("law/streams.py", "class Streams"),
    "are nodes made, and their draws recorded": ("drafting/builder.py", "class TreeBuilder"),
    "is a growing tree fed through a network": ("drafting/feeding.py", "class Feeding"),
    "is what a row may see decided": ("cache/base.py", "def visible"),
    "are accepted keys moved": ("buffers/contiguous.py", "def commit"),
    "are residuals of rejection sampling": ("accept/rejection.py", "class Rejection"),
    "is prompt lookup": ("drafter/ngram.py", "class Ngram"),
    "is EAGLE-2's re-ranking": ("tree/dynamic.py", "class DynamicTree"),
    "is the tree of most expected speed chosen": ("tree/auto.py", "class AutoTree"),
    "is the cost of a step measured": ("costs/step_timing.py", "class StepTimer"),
    "is EAGLE's network": ("heads/eagle_net.py", "class EagleNet"),
    "is Medusa's head loaded": ("heads/medusa_file.py", "def load_medusa"),
    "is the head that ships for a target found": ("heads/shipped.py", "def head_for"),
    "is a suffix automaton": ("lookup/suffix_automaton.py", "class SuffixAutomaton"),
    "is a transformers model run over our cache": ("target/hf/__init__.py", "class HF"),
    "is a GGUF file converted": ("models/gguf.py", "def convert"),
    "is the C++ kernel compiled": ("kernel/library.py", "def library"),
    "are weights laid out in panels": ("kernel/packed_linear.py", "class PackedMatrix"),
    "is a pass captured as a CUDA graph": ("runtime/cudagraph.py", "class GraphLaunch"),
    "is a policy made into a captured function": ("capture/wrappers.py", "class CapturedTree"),
    "do words become components": ("compose/build.py", "def plan"),
    "is a pair of words refused": ("compose/compatibility.py", "def check"),
    "is an unknown key explained": ("compose/explain.py", "def explain"),
    "is a value held against its type": ("compose/binding.py", "def bind"),
    "do models stay loaded in a sweep": ("compose/loaded_models.py", "class LoadedModels"),
    "is a sweep resumed": ("sweep/resume.py", "finished"),
    "is the table of a sweep written": ("sweep/table.py", "csv"),
    "is the manifest written": ("session/manifest.py", "manifest.json"),
    "are bootstrap intervals": ("measure/bootstrap.py", "class Bootstrap"),
    "is acceptance length computed": ("measure/metrics.py", "acceptance_length"),
    "is the tree viewer's page made": ("report/page.py", "def render"),
    "is a prompt file read": ("prompts/reader.py", "def read_prompts"),
    "is a draft head trained step by step": ("training/course.py", "class Course"),
    "is a broken rule that certify must catch": ("task/certify/broken.py", "class NoResidual"),
    "are other engines timed beside ours": ("task/benchmark/peers.py", "class Transformers"),
    "is a plug-in found": ("plugins.py", "class PluginSet"),
}


@pytest.mark.parametrize("question", WHERE)
def test_where_is(question: str) -> None:
    path, text = WHERE[question]
    assert text in (PACKAGE / path).read_text(encoding="utf-8")


@cache
def modules() -> dict[Path, ast.Module]:
    """Every module of the package, by its path below the package."""
    return {
        file.relative_to(PACKAGE): ast.parse(file.read_text(encoding="utf-8"))
        for file in sorted(PACKAGE.rglob("*.py"))
    }


def public_names(tree: ast.Module) -> set[str]:
    """Classes, functions, methods, parameters, fields and attributes without an underscore."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
            names |= {field.id for field in fields if isinstance(field, ast.Name)}
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            names |= {argument.arg for argument in arguments}
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return {name for name in names if not name.startswith("_")}


def test_names_are_nouns_and_verbs_of_the_field() -> None:
    for path, tree in modules().items():
        assert path.stem not in FORBIDDEN, path
        assert not public_names(tree) & FORBIDDEN, (path, public_names(tree) & FORBIDDEN)


def test_no_two_public_classes_share_a_name() -> None:
    homes = defaultdict(list)
    for path, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path)
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


def test_no_two_modules_share_a_stem_but_words() -> None:
    words = {word for axis in AXES for word in AXES[axis].names()}
    words |= {file.stem for file in (PACKAGE / "train").glob("*.py")} | {"base", "__init__"}
    homes = defaultdict(list)
    for path in modules():
        homes[path.stem].append(path)
    shared = {stem: paths for stem, paths in homes.items() if len(paths) > 1}
    assert shared.keys() <= words, {stem: shared[stem] for stem in shared.keys() - words}


def members(cls: type, *more: str) -> set[str]:
    """Public members of a contract: methods, properties, declared and set attributes."""
    names = {name for name in vars(cls) if not name.startswith("_")}
    names |= {name for name in inspect.get_annotations(cls) if not name.startswith("_")}
    tree = ast.parse(inspect.getsource(cls).lstrip())
    for node in ast.walk(tree):
        stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if stored and isinstance(node, ast.Attribute) and not node.attr.startswith("_"):
            names.add(node.attr)
    return names | set(more)


@pytest.mark.parametrize(
    ("contracts", "most"),
    [
        ((Drafter,), 12),
        ((TreePolicy,), 12),
        ((AcceptRule,), 9),
        ((CacheManager,), 14),
        ((Launch, Weights), 10),
        ((Target,), 13),
    ],
)
def test_contracts_are_small(contracts: tuple[type, ...], most: int) -> None:
    count = sum(len(members(contract)) for contract in contracts)
    assert count <= most, [sorted(members(contract)) for contract in contracts]


def test_traits_have_at_most_ten_fields() -> None:
    assert len(inspect.get_annotations(Traits)) <= 10


def test_the_loop_is_short_and_alone() -> None:
    loop = (PACKAGE / "loop.py").read_text(encoding="utf-8")
    assert len(loop.splitlines()) <= 180
    assert "while self.finish_reason is None" in loop


def test_the_loop_is_written_once() -> None:
    """Whoever wants a whole answer drains `Decoding.run`."""
    for path, tree in modules().items():
        if path == Path("loop.py"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.While):
                assert "finish_reason" not in ast.dump(node.test), path


def test_the_glossary_is_in_types() -> None:
    text = ast.get_docstring(ast.parse((PACKAGE / "types.py").read_text(encoding="utf-8")))
    assert text is not None
    for term in ("target", "drafter", "root", "column", "slot", "lane", "verdict", "capture"):
        assert f"    {term} " in f"    {text}", term
