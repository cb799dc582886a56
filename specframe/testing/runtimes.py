"""The suite of tests for runtimes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specframe.compose.build import load
from specframe.runtime.base import RUNTIMES
from specframe.testing.defaults import (
    NEW_TOKENS,
    PROMPTS,
    ComponentContract,
    costs_words,
)
from specframe.tree.base import TREES


class RuntimeContract(ComponentContract):
    """A runtime computes what the function computes."""

    def test_wrapped_functions_compute_the_same(self, name: str) -> None:
        runtime = self.component("runtime", name)

        def fn(inputs: tuple[Tensor, ...], buffers: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            buffers[0].index_copy_(0, inputs[1], inputs[0])
            return (inputs[0] @ buffers[0].T).softmax(-1), buffers[0].sum(0)

        ours, theirs = torch.rand(8, 3), torch.zeros(8, 3)
        theirs.copy_(ours)
        for step, rows in enumerate((1, 4, 1, 4, 4, 1)):
            fed = torch.rand(rows, 3), torch.arange(step, step + rows) % 8
            got = runtime.launch.wrap(fn, ("test", rows))(fed, (ours,))
            torch.testing.assert_close(got, fn(fed, (theirs,)))
            torch.testing.assert_close(ours, theirs)

    def test_buckets_are_the_next_that_fits(self, name: str) -> None:
        runtime = self.component("runtime", name, buckets=[1, 4, 16])
        asked = [runtime.launch.bucket(rows, 10) for rows in (1, 2, 4, 5, 10)]
        assert asked == [1, 4, 4, 5, 10]
        assert self.component("runtime", name, buckets=None).launch.bucket(3, 10) == 3

    def test_bad_buckets_are_named(self, name: str) -> None:
        for bad in ([4, 1], [2, 2], [0, 3], []):
            with pytest.raises(ValueError, match=r"runtime\.buckets"):
                self.component("runtime", name, buckets=bad)

    def test_padded_passes_change_no_text(self, name: str) -> None:
        assert name in RUNTIMES.names()
        for tree in TREES.names():
            words = ["target=toy", "drafter=ngram", f"runtime={name}", f"tree={tree}"]
            words += self.keys("runtime")
            words += costs_words(tree)
            words.append("sampling.temperature=0.8")
            bare = load(words).generate(PROMPTS[0], max_new_tokens=NEW_TOKENS)
            padded = load([*words, "runtime.buckets=[3,8,32]"]).generate(
                PROMPTS[0], max_new_tokens=NEW_TOKENS
            )
            assert padded == bare
