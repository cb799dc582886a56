"""REST: copy what followed the context's last tokens in a datastore."""

from __future__ import annotations

from typing import Annotated

from specframe.drafter.base import DRAFTERS, CountedRetrieval
from specframe.lookup.continuation_tree import ContinuationTree, likeliest_continuations
from specframe.lookup.datastore import open_datastore
from specframe.registry import Range
from specframe.target.base import Target


@DRAFTERS.register("rest")
class Rest(CountedRetrieval):
    """Finds the longest suffix of the context in a datastore and drafts the most frequent
    continuations of it: the `max_nodes` prefixes of up to `length` tokens that occur most often.

    corpus: answers of task=distill (.jsonl, .npz), a text file, or builtin. Its suffix array is
    built at the first use and kept on the disk; ids of another tokenizer are refused. Gives no law,
    so it is placed; lossless under every lossless rule. Needs the target's tokenizer for text, else
    nothing; no draft forward. Nothing of the prompt or the output is looked up: see drafter=suffix.
    Paper: REST, arXiv 2311.08252 (1.62x to 2.36x on 7B and 13B models; 1.48x on Spec-Bench).
    """

    def __init__(
        self,
        *,
        corpus: str,
        max_match: Annotated[int, Range(1, 64)],
        min_match: Annotated[int, Range(1, 64)],
        length: Annotated[int, Range(1, 64)],
        max_nodes: Annotated[int, Range(1, 512)],
        target: Target,
    ) -> None:
        if min_match > max_match:
            raise ValueError(
                f"drafter.min_match={min_match} is above drafter.max_match={max_match}"
            )
        self.max_match = max_match
        self.min_match = min_match
        self.length = length
        self.max_nodes = max_nodes
        self._datastore = open_datastore(corpus, target)

    def grown(self) -> ContinuationTree:
        match = self._datastore.query(self.context.tokens[-self.max_match :]).longest()
        if match is None or match.length < self.min_match:
            return ContinuationTree()
        return likeliest_continuations(
            self._datastore,
            match,
            total=self._datastore.count(match),
            max_nodes=self.max_nodes,
            max_depth=self.length,
            min_probability=0.0,
        )
