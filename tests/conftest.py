"""Session set-up: plugins are found before tests are collected, torch keeps to one thread."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from specframe.plugins import bootstrap
from specframe.session import manifest
from tests import composing
from tests.commands import Command, in_process

bootstrap()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder of the checkout."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command line within this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return in_process(monkeypatch, capsys)


@pytest.fixture(scope="session", autouse=True)
def _cheap_composition() -> Iterator[None]:
    with composing.cheap():
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_look_at_git() -> Iterator[None]:
    """Manifests of this process start no git each; the checkout stays as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "git_state", cache(manifest.git_state))
        yield


# Files that take longest, the longest first: what is started last should be short.
LONGEST = (
    "tests/test_smollm2.py",
    "tests/task/test_replay.py",
    "tests/test_lossless.py",
    "tests/test_cli.py",
    "tests/test_loop.py",
    "tests/drafter/test_layer_skip.py",
    "tests/sweep/test_sweeps.py",
    "tests/task/test_passes.py",
    "tests/test_pairs.py",
    "tests/drafter/test_early_exit.py",
    "tests/drafter/test_ouroboros.py",
    "tests/drafter/test_mtp.py",
)


# Matrices of which the fast suite takes one case in so many, and the slow one the others.
THINNED = {
    "tests/test_pairs.py::test_pairs_run_and_keep_the_text": 2,
    "tests/test_loop.py::test_greedy_text_is_that_of_a_loop_without_cache": 2,
    "tests/test_loop.py::test_rows_of_a_tree_have_the_logits_of_their_paths": 3,
    "tests/test_loop.py::test_caches_after_each_commit_equal_fresh_prefills": 3,
    "tests/test_loops.py::test_truncate": 3,
    "tests/test_composing.py::test_cheap_composition_is_hydras": 2,
    "tests/session/test_log_probs.py::test_log_probs_are_those_of_the_oracle": 3,
    "tests/session/test_exhausted.py::test_nothing_banned_is_emitted_in_a_tree": 2,
    "tests/session/test_engine.py::test_pieces_join_to_the_text": 2,
    "tests/drafter/test_contract.py::TestDrafters::test_text_is_that_of_no_draft": 2,
    "tests/drafter/test_contract.py::TestDrafters::test_truncate": 2,
    "tests/drafter/test_cascade.py::test_the_text_is_the_targets": 3,
    "tests/drafter/test_router.py::test_with_one_source_it_is_that_source": 2,
    "tests/drafter/test_ouroboros.py::test_each_step_is_that_of_the_slow_account": 3,
    "tests/drafter/test_ouroboros.py::test_reads_as_often_as_the_draft_model_runs": 2,
    "tests/drafter/test_lookahead.py::test_each_step_is_that_of_the_slow_account": 3,
    "tests/drafter/test_recycling.py::test_each_step_is_that_of_the_slow_account": 2,
    "tests/drafter/test_layer_skip.py::TestLayerSkip::test_drafts_and_text_are_those_of_a_slow_"
    "reference": 3,
    "tests/drafter/test_layer_skip.py::TestLayerSkip::test_all_layers_are_a_perfect_drafter": 3,
    "tests/drafter/test_early_exit.py::TestEarlyExit::test_drafts_and_text_are_those_of_a_slow_"
    "reference": 3,
    "tests/drafter/test_early_exit.py::TestEarlyExit::test_all_layers_are_a_perfect_drafter": 3,
    "tests/drafter/test_early_exit.py::test_one_read_a_step": 2,
    "tests/drafter/test_mtp.py::TestMTP::test_random_heads_change_no_greedy_text": 2,
    "tests/drafter/test_mtp.py::TestMTP::test_one_seed_gives_the_autoregressive_text": 2,
    "tests/drafter/test_mtp.py::TestMTP::test_rejection_follows_the_exact_law": 2,
    "tests/tree/test_contract.py::TestTrees::test_every_draft_is_well_formed_and_within_its_"
    "budget": 2,
    "tests/accept/test_contract.py::TestRules::test_a_rule_that_calls_itself_lossless_is": 2,
    "tests/task/test_generate.py::test_a_run_goes_on_behind_its_last_whole_line": 2,
    "tests/task/test_profile.py::test_a_run_leaves_a_table_that_can_be_given": 2,
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Thin the matrices; the longest files first, and the order within a file stays."""
    met: set[str] = set()
    for item in items:
        matrix = item.nodeid.partition("[")[0]
        share = THINNED.get(matrix, 1)
        met |= {matrix} & THINNED.keys()
        # By a checksum of its name, so that what is left is no single row or column.
        if zlib.crc32(item.name.encode()) % share:
            item.add_marker(pytest.mark.slow)
    files = {item.nodeid.partition("::")[0] for item in items}
    gone = {name for name in THINNED.keys() - met if name.partition("::")[0] in files}
    assert not gone or len(items) < 1000, f"no such tests: {sorted(gone)}"
    places = {file: place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file goes to one worker as a whole, so that its models and texts are made once."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)
