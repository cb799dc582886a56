"""One witness of each promise, in seconds: `pytest -m smoke`.

Every property here has a suite of its own; these few say at once whether a change broke the whole.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from specframe import load
from specframe.accept.rejection import Rejection
from specframe.compose.catalogue import configuration, default_choices
from specframe.testing.compositions import Composition, decode
from specframe.testing.tiny_models import greedy_text
from tests.commands import Command
from tests.small_models import LONG_PROMPT, PROMPT, drafter_of, sampling_config, target, tree_of
from tests.test_lossless import engine, error_of
from tests.test_syncs import check

pytestmark = pytest.mark.smoke
AXES = ("tree", "accept", "cache", "runtime", "trace", "task")
# A table, and a random Llama of two small layers.
TARGETS = {
    "toy": ["target=toy"],
    "random": ["target=random", "target.layers=2", "target.hidden=64", "target.intermediate=96"],
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("drafter", ["ngram", "suffix", "hello"])
def test_the_default_of_every_axis_runs(name: str, drafter: str) -> None:
    """With drafters that need no weights, a plug-in among them, and all else as it comes."""
    with configuration() as loader:
        defaults = default_choices(loader)
    assert all(defaults[axis] for axis in AXES)
    words = [*TARGETS[name], "device=cpu", "max_new_tokens=12"]
    drafted = load([*words, f"drafter={drafter}"]).generate([1, 2, 3, 1, 2, 3, 1])
    assert drafted.tokens == load([*words, "drafter=none"]).generate([1, 2, 3, 1, 2, 3, 1]).tokens
    assert len(drafted.tokens) == 12


def test_greedy_text_is_that_of_a_loop_without_cache() -> None:
    for tree in ("chain", "dynamic"):
        composition = Composition(
            target=target("llama"), drafter=drafter_of("noisy", "llama"), tree=tree_of(tree)
        )
        outcome = decode(composition, LONG_PROMPT, 16)
        assert outcome.tokens == greedy_text("llama", LONG_PROMPT, 16)
        assert outcome.num_accepted > 0


def test_one_seed_gives_one_text() -> None:
    hot = sampling_config(1.0)
    plain = decode(Composition(target=target("llama"), sampling=hot)).tokens
    drafted = Composition(
        target=target("llama"),
        drafter=drafter_of("noisy", "llama"),
        tree=tree_of("static"),
        sampling=hot,
    )
    assert decode(drafted).tokens == plain != greedy_text("llama", PROMPT, 16)


def test_the_law_of_a_whole_text_is_exact() -> None:
    assert error_of(engine(Rejection(), "chain", "wor"), 3) < 1e-12


def test_a_step_reads_once(monkeypatch: pytest.MonkeyPatch) -> None:
    composition = Composition(
        target=target("llama"), drafter=drafter_of("noisy", "llama"), tree=tree_of("dynamic")
    )
    check(composition, PROMPT, monkeypatch)


def test_a_mistake_on_the_command_line_is_one_line(command: Command) -> None:
    ended = command("target=toy", "tree.dpeth=6")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("specframe: error: tree.dpeth: ")
    assert ended.err.count("\n") == 1
    assert "Did you mean 'depth'?" in ended.err


def test_a_command_answers_and_leaves_its_folder(command: Command, tmp_path: Path) -> None:
    ended = command("target=toy", "drafter=lm", "prompt=abcab", "max_new_tokens=8")
    assert ended.code == 0, ended.err
    assert "acceptance_length" in ended.out
    (folder,) = tmp_path.glob("outputs/*/*")
    assert (folder / "manifest.json").is_file()
