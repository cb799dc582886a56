"""Every pair of options of any two axes, through the composed engine: it runs, or says why not.

The tiny models come in where weights would be loaded; all else is what a user gets.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from allpairspy import AllPairs

from specframe import load
from specframe.accept.base import RULES
from specframe.cache.base import CACHES
from specframe.compose.build import plan
from specframe.compose.compatibility import Classes, check, resolve_proposal
from specframe.compose.loaded_models import LoadedModels
from specframe.compose.overrides import compose
from specframe.drafter.base import DRAFTERS
from specframe.errors import IncompatibleComponents
from specframe.session.engine import Engine
from specframe.target import hf
from specframe.target.base import TARGETS
from specframe.testing.defaults import costs_words
from specframe.tree.base import TREES
from tests import small_models as models
from tests.heads.small_heads import words_for
from tests.turns import rest_slow
from tests.user_modules import written

SILENT = '''
import torch

class Silent:
    """Bans every token from a length of the text on."""
    length = 0

    def __call__(self, ids, scores):
        full = ids.shape[1] >= self.length
        return torch.full_like(scores, float("-inf")) if full else scores
'''
COUNT = 10
SEED = 3
AXES: dict[str, list[str]] = {
    "drafter": DRAFTERS.names(),
    "tree": TREES.names(),
    "accept": RULES.names(),
    "tree.proposal": ["auto", "place", "iid", "wor", "coupled"],
    "sampling.temperature": ["0.0", "0.8"],
    "target": ["toy", *models.TINY],
    "cache": CACHES.names(),
    "sampling.repetition_penalty": ["null", "1.2"],
    "sampling.top_p": ["null", "0.9"],
    "runtime.buckets": ["null", "[1,4,16]"],
}


CHOOSING = ("drafter", "tree", "accept", "tree.proposal", "sampling.temperature")


def refusal(row: Mapping[str, str]) -> str | None:
    """What the table of refusals says, None if they go together (or the row is not full)."""
    if any(axis not in row for axis in CHOOSING):
        return None
    target = "toy" if row.get("target") == "toy" else "hf"
    chosen = [row[axis] for axis in CHOOSING]
    return _refusal(*chosen, cache=row.get("cache", "dynamic"), target=target)


@cache
def _refusal(
    drafter: str, tree: str, accept: str, proposal: str, temperature: str, **more: str
) -> str | None:
    words = {"drafter": drafter, "tree": tree, "accept": accept}
    words |= {"cache": more["cache"], "target": more["target"]}
    registries = (DRAFTERS, TREES, RULES, CACHES, TARGETS)
    picked: dict[str, Any] = {one.axis: one.get(words[one.axis]) for one in registries}
    classes = Classes(**picked, words=words)
    greedy = temperature == "0.0"
    how = resolve_proposal(proposal, classes, greedy=greedy)  # type: ignore[arg-type]
    try:
        check(classes, how=how, require_lossless=False)
    except IncompatibleComponents as error:
        return str(error)
    return None


Row = dict[str, str]


def pairs_of(row: Row) -> set[frozenset[tuple[str, str]]]:
    """The pairs of (axis, option) in a row."""
    return {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}


def completed(pair: Row) -> Row | None:
    """A row that holds a pair and goes together, None if there is none."""
    for values in itertools.product(*(AXES[axis] for axis in CHOOSING)):
        row = {axis: options[-1] for axis, options in AXES.items()}
        row |= dict(zip(CHOOSING, values, strict=True)) | pair
        if refusal(row) is None:
            return row
    return None


def rows() -> list[Row]:
    """Rows that cover every pair of options that can go together."""

    def fits(values: Sequence[str]) -> bool:
        return refusal(dict(zip(AXES, values, strict=False))) is None

    found = AllPairs(list(AXES.values()), filter_func=fits)
    made = [dict(zip(AXES, values, strict=True)) for values in found]
    seen = set().union(*map(pairs_of, made))
    # The search gives up on pairs whose first try is refused; they get rows of their own.
    for one, two in itertools.combinations(AXES, 2):
        for pair in itertools.product(AXES[one], AXES[two]):
            wanted = dict(zip((one, two), pair, strict=True))
            row = None if pairs_of(wanted) <= seen else completed(wanted)
            if row is not None:
                made.append(row)
                seen |= pairs_of(row)
    return made


ROWS = rows()


@pytest.fixture(scope="module", autouse=True)
def _tiny_weights() -> Iterator[None]:
    """`tiny://llama` is a model of tests/models.py; `tiny://llama?noisy` drafts for it."""

    def given(path: str, options: Any, model_options: Any) -> tuple[Any, None]:
        name, _, kind = path.removeprefix("tiny://").partition("?")
        found = models.draft(name, kind).model if kind else models.raw(name)
        return copy.deepcopy(found), None

    patch = pytest.MonkeyPatch()
    patch.setattr(hf, "load", given)
    LoadedModels.shared().clear()
    yield
    patch.undo()
    LoadedModels.shared().clear()


def engine(row: dict[str, str]) -> Engine:
    """The engine of a row."""
    words = [f"{key}={value}" for key, value in row.items() if key != "target"]
    family = row["target"]
    words += [*head(row["drafter"], family), *costs_words(row["tree"])]
    if family == "toy":
        return load(["target=toy", f"seed={SEED}", *words])
    words += ["target=hf", f"target.path=tiny://{family}", "target.dtype=float64"]
    model = dict.fromkeys(("lm", "cascade", "ouroboros"), "drafter.model")
    model["router"] = "drafter.lm.model"
    if row["drafter"] in model:
        # Copied unwrapped: the shared draft's blocks are dressed already.
        words.append(f"{model[row['drafter']]}=tiny://{family}")
    return load([f"seed={SEED}", *words])


@cache
def head(drafter: str, family: str) -> tuple[str, ...]:
    """The words that give a drafter its random head."""
    return words_for(drafter, family, Path(tempfile.mkdtemp(prefix="specframe-heads-")))


def prompt(family: str) -> tuple[int, ...]:
    """Longer than a sliding window, for those that have one."""
    return (1, 2, 3, 1, 2) if family == "toy" else models.LONG_PROMPT


@cache
def baseline(family: str, *sampling: str) -> list[int]:
    """Text without a draft, from plain parts."""
    keys = [key for key in AXES if key.startswith("sampling")]
    row = {key: options[0] for key, options in AXES.items()}
    row |= {"target": family, "drafter": "none", "tree": "chain", "accept": "match"}
    row |= dict(zip(keys, sampling, strict=True))
    return engine(row).generate(prompt(family), max_new_tokens=COUNT).tokens


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row.values()))
def test_pairs_run_and_keep_the_text(row: dict[str, str]) -> None:
    answer = engine(row).generate(prompt(row["target"]), max_new_tokens=COUNT)
    assert len(answer.tokens) == COUNT
    greedy = row["sampling.temperature"] == "0.0"
    lossless = RULES.get(row["accept"]).lossless
    if row["accept"] == "match" or (greedy and lossless):
        sampling = [value for key, value in row.items() if key.startswith("sampling")]
        assert answer.tokens == baseline(row["target"], *sampling)


@pytest.mark.parametrize("row", rest_slow(ROWS, fast=14), ids=lambda row: "-".join(row.values()))
def test_three_lanes_write_what_each_writes_alone(row: dict[str, str]) -> None:
    """Ragged prompts of ragged lengths, and more of them than lanes; the drafts are equal, too."""
    made, whole = engine(row), prompt(row["target"])
    prompts = [list(whole), list(whole[:3]), list(whole[1:]), list(whole), list(whole[2:4])]
    alone = [made.generate(one, max_new_tokens=COUNT, sequence=4) for one in prompts]
    together = made.generate(prompts, max_new_tokens=COUNT, sequence=4, batch_size=3)
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    assert [one.steps for one in together] == [one.steps for one in alone]


def test_only_refused_pairs_are_missing() -> None:
    """What no row holds is known: a change of the table that loses more shows here."""
    seen = set().union(*map(pairs_of, ROWS))
    missing = {
        (first, second)
        for one, two in itertools.combinations(CHOOSING, 2)
        for first, second in itertools.product(AXES[one], AXES[two])
        if frozenset({(one, first), (two, second)}) not in seen
    }
    own = {(d, t) for d, t in missing if d in ("none", "lm", "ngram")}
    assert own == {
        ("lm", "native"),
        ("ngram", "rejection"),
        ("ngram", "iid"),
        ("ngram", "wor"),
        ("ngram", "coupled"),
    }
    assert ("rejection", "coupled") in missing


def refused() -> list[dict[str, str]]:
    """One row for each distinct way to be refused."""
    found: dict[str, dict[str, str]] = {}
    keys = ("drafter", "tree", "accept", "tree.proposal")
    for values in itertools.product(*(AXES[key] for key in keys)):
        row = {key: options[-1] for key, options in AXES.items()}
        row |= {"target": "toy", **dict(zip(keys, values, strict=True))}
        reason = refusal(row)
        if reason is not None:
            found.setdefault(reason, row)
    return list(found.values())


def test_the_others_say_what_to_use_instead() -> None:
    bad = refused()
    assert len(bad) >= 5
    for row in bad:
        words = [f"{key}={value}" for key, value in row.items()]
        words += head(row["drafter"], "toy")
        with pytest.raises(IncompatibleComponents, match=r"use ") as caught:
            plan(compose(words))
        assert str(caught.value) == refusal(row)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS.names())
def test_every_drafter_ends_where_all_is_banned(
    drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the prefill and inside a draft; the next answer is as if nothing had been."""
    name = written(SILENT, stem="silent_pairs", folder=tmp_path, patch=monkeypatch)
    silent = importlib.import_module(name).Silent
    row = {"target": "llama", "drafter": drafter, "tree": "dynamic", "accept": "match"}
    made = engine({**row, "sampling.processors": f"['{name}:Silent']"})
    silent.length = 99
    text = made.generate(models.PROMPT, max_new_tokens=12).tokens
    for count in (0, 1, 4, 7):
        silent.length = len(models.PROMPT) + count
        answer = made.generate(models.PROMPT, max_new_tokens=12)
        assert (answer.tokens, answer.finish_reason) == (text[:count], "exhausted")
    silent.length = 99
    assert made.generate(models.PROMPT, max_new_tokens=12).tokens == text
