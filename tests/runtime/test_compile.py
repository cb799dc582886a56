"""Compiled passes: what they compute, that nothing is compiled later, and what is said."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch._inductor.runtime.cache_dir_utils import cache_dir

from specframe.accept.match import Match
from specframe.cache.base import CacheManager
from specframe.loop import Components
from specframe.runtime.base import Runtime, Tensors
from specframe.runtime.compile import Compile, CompileLaunch, _folder, _sizes
from specframe.session.engine import Engine
from specframe.session.manifest import describe
from specframe.session.settings import Settings
from specframe.session.warmup import prepared
from specframe.target.hf import HF
from specframe.tree.chain import ChainTree
from tests import small_models as models
from tests.small_models import CACHE_MAKERS, RUNTIME, drafter_of

MAX_NODES, COUNT = 4, 40
PROMPTS = ((5, 17, 42, 17, 42, 8), tuple(range(60)), (3, 1) * 45)


def runtime(**changes: Any) -> Compile:
    return Compile(**{"freeze": "auto", "autotune": "auto", "buckets": [1, MAX_NODES], **changes})


def launch(**changes: Any) -> CompileLaunch:
    made = runtime(**changes).launch
    assert isinstance(made, CompileLaunch)
    return made


@dataclass(frozen=True)
class Placed:
    """A model on a runtime."""

    target: HF
    runtime: Runtime

    @classmethod
    def of(cls, model: Any, runtime: Runtime) -> Placed:
        return cls(HF.of(copy.deepcopy(model), runtime=runtime), runtime)

    @property
    def launch(self) -> CompileLaunch:
        assert isinstance(self.runtime.launch, CompileLaunch)
        return self.runtime.launch


def engine(placed: Placed, drafter: str, cache: str = "dynamic") -> Engine:
    made: CacheManager = CACHE_MAKERS[cache](launch=placed.runtime.launch)
    parts = Components(
        target=placed.target,
        drafter=drafter_of(drafter, "llama"),
        tree=ChainTree(depth=MAX_NODES - 1, max_nodes=MAX_NODES, proposal="place"),
        accept=Match(),
        cache=made,
        runtime=placed.runtime,
        how="place",
    )
    settings = Settings(
        seed=0,
        max_new_tokens=COUNT,
        sampling=models.sampling_config(),
        stop=models.stop_config(),
        raw=True,
    )
    return Engine(parts, settings)


def compilations() -> int:
    """Graphs that were handed to a compiler in this process."""
    return int(counters["stats"]["unique_graphs"])


@pytest.fixture(scope="module")
def model() -> Any:
    return models.model("llama", num_hidden_layers=2, max_position_embeddings=512).float()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where compiled passes are kept, for these tests alone."""
    made = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(made))
        yield made


def prepared_target(model: Any) -> Placed:
    made = Placed.of(model, runtime())
    before = compilations()
    prepared(engine(made, "ngram"))
    assert compilations() == before + 2
    return made


@pytest.fixture(scope="module")
def compiled(model: Any, folder: Path) -> Placed:
    """A target whose passes of 1 and 4 rows are compiled to C++, which takes half a minute."""
    return prepared_target(model)


@pytest.fixture(scope="module")
def traced(model: Any) -> Placed:
    """The same, traced as a whole but run operator by operator."""
    compile_ = torch.compile

    def without_kernels(fn: Any, *, options: Any, **more: Any) -> Any:
        return compile_(fn, backend="eager", **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", without_kernels)
        return prepared_target(model)


@pytest.fixture(params=["traced", pytest.param("compiled", marks=pytest.mark.slow)])
def placed(request: pytest.FixtureRequest) -> Placed:
    made: Placed = request.getfixturevalue(request.param)
    return made


@pytest.mark.slow
def test_nothing_is_compiled_after_warm_up_and_the_text_is_the_same(
    model: Any, placed: Placed
) -> None:
    plain = Placed.of(model, RUNTIME)
    before, seconds = compilations(), placed.launch.prepared_s
    assert seconds > 0
    for drafter, cache in (("ngram", "dynamic"), ("none", "dynamic"), ("ngram", "static")):
        ours, theirs = (engine(one, drafter, cache) for one in (placed, plain))
        prepared(ours)  # a second engine finds what the first one made
        for prompt in PROMPTS:
            assert ours.generate(prompt).tokens == theirs.generate(prompt).tokens
    assert compilations() == before
    assert placed.launch.prepared_s == seconds == describe(ours, {})["compile_s"]


@pytest.mark.slow
def test_the_compiled_pass_is_what_runs(compiled: Placed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of 1 and 4 rows never reach the model's own code; one of 3 rows does."""
    reached: list[int] = []
    target = compiled.target
    run = target._blocks.run

    def counted(inputs: Any, plan: Any, want: Any) -> Any:
        reached.append(inputs["position_ids"].shape[-1])
        return run(inputs, plan, want)

    monkeypatch.setattr(target._blocks, "run", counted)
    made = engine(compiled, "ngram").decoding(max_new_tokens=COUNT)
    rows = []
    made.begin(PROMPTS[0])
    while made.finish_reason is None:
        rows.append(made.step().draft.num_rows)
    assert {1, MAX_NODES} <= set(rows)
    assert set(reached[1:]) == set(rows) - {1, MAX_NODES}


@pytest.mark.slow
def test_what_was_compiled_is_found_on_the_disk(model: Any, compiled: Placed) -> None:
    torch._dynamo.reset()  # as in another process
    hits, misses = (counters["inductor"][f"fxgraph_cache_{one}"] for one in ("hit", "miss"))
    before = compilations()
    again = Placed.of(model, runtime())
    prepared(engine(again, "none"))
    assert compilations() == before + 1  # so the count would have shown one above
    assert counters["inductor"]["fxgraph_cache_hit"] == hits + 1
    assert counters["inductor"]["fxgraph_cache_miss"] == misses
    fresh = engine(again, "none").generate(PROMPTS[0]).tokens
    assert fresh == engine(compiled, "none").generate(PROMPTS[0]).tokens


def test_a_pass_that_cannot_be_compiled_runs_as_it_is_written(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    @torch.compiler.disable
    def opaque(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def fn(inputs: Tensors, buffers: Tensors) -> Tensors:
        return (opaque(inputs[0]),)

    made = launch()
    inputs = (torch.ones(MAX_NODES, 2),)
    got: list[Tensors] = []
    made.prepare(lambda rows: got.append(made.wrap(fn, "key")(inputs, ())), most=4, limit=4)
    assert all(torch.equal(one[0], inputs[0] + 1) for one in got)
    assert made.wrap(fn, "key") is fn
    said = capsys.readouterr().err
    assert said.count("a pass of 4 rows runs as it is written (") == 1


def test_kernels_are_chosen_by_measurement_where_that_is_asked_for() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    plain = launch()._options(cpu)
    assert plain == {"freezing": True, "cpp.weight_prepack": False}
    on_cuda = launch()._options(cuda)
    assert on_cuda["max_autotune"]
    assert not on_cuda["freezing"]
    tuned = launch(freeze=False, autotune=True)._options(cpu)
    assert tuned["max_autotune_gemm_backends"] == "CPP,ATEN"
    assert tuned["freezing"]
    for options in (plain, on_cuda, tuned):
        with inductor.patch(options):  # inductor knows all of them
            pass


def test_without_a_compiler_a_line_says_so(capsys: pytest.CaptureFixture[str], model: Any) -> None:
    placed = Placed.of(model, runtime())
    before = compilations()
    with inductor.patch({"cpp.cxx": ("no-such-compiler",)}):
        prepared(engine(placed, "ngram"))
    assert engine(placed, "ngram").generate(PROMPTS[0]).tokens
    assert compilations() == before
    said = capsys.readouterr().err
    assert said.count("specframe: runtime=compile: no C++ compiler") == 1
    assert said.endswith("install g++; running as eager\n")


def test_only_preparing_compiles() -> None:
    def fn(inputs: Tensors, buffers: Tensors) -> Tensors:
        return inputs

    made = launch()
    assert made.wrap(fn, "key") is fn
    assert made.columns(3, 128) == 128


def test_only_row_counts_that_occur_are_compiled() -> None:
    assert _sizes([1, 8, 16], most=1, limit=65) == [1]
    assert _sizes([1, 8, 16], most=6, limit=65) == [1, 8]
    assert _sizes([1, 8, 16], most=6, limit=6) == [1, 6]
    assert _sizes([1, 8, 16], most=16, limit=16) == [1, 8, 16]
    assert _sizes([1, 8, 16], most=60, limit=60) == [1, 8, 16, 60]
    assert _sizes([], most=6, limit=16) == [6]


def test_the_most_that_a_tree_has_is_padded_to_as_well() -> None:
    made = launch(buckets=[1, 8])
    made.prepare(lambda rows: None, most=12, limit=12)
    assert [made.bucket(rows, 12) for rows in (1, 5, 9, 12)] == [1, 8, 12, 12]
    assert made.bucket(5, 7) == 5  # near the end of a text
    bare = launch(buckets=None)
    bare.prepare(lambda rows: None, most=12, limit=12)
    assert [bare.bucket(rows, 12) for rows in (1, 5, 12)] == [1, 5, 12]


def test_where_passes_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    assert _folder() == str(tmp_path / "compile")
    cache_dir()  # what inductor does
    assert _folder() == str(tmp_path / "compile")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert _folder() == "/elsewhere"
