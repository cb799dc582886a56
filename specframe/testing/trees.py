"""The suite of tests for tree policies."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Sequence
from typing import Any

import pytest

from specframe.testing.defaults import ComponentContract
from specframe.testing.draft_checks import TableDrafter, builder, check_draft, paths
from specframe.tree.base import TREES, TreePolicy
from specframe.types import Budget, Frontier, How, Proposal


class TreeContract(ComponentContract):
    """What every tree policy does."""

    def policy(self, word: str, **changes: Any) -> TreePolicy:
        """The policy with the numbers of its YAML file, for placed nodes if nothing is said."""
        policy: TreePolicy = self.component("tree", word, **{"proposal": "place", **changes})
        return policy

    @pytest.mark.parametrize("seed", [0, 1])
    @pytest.mark.parametrize("how", ["place", "iid", "wor", "coupled"])
    def test_every_draft_is_well_formed_and_within_its_budget(
        self, name: str, how: How, seed: int
    ) -> None:
        for rows, depth, max_nodes in itertools.product((1, 2, 5, 40), (0, 1, 3, 9), (2, 7, 30)):
            policy = self.policy(name, depth=5, max_nodes=max_nodes, proposal=how)
            made = builder(how=how)
            budget = Budget(rows=min(rows, max_nodes), depth=depth)
            policy.grow(made, TableDrafter(seed), budget)
            assert made.num_rows == made.build().num_rows
            check_draft(made.build(), Budget(rows=budget.rows, depth=min(depth, 5)))

    def test_no_room_gives_the_bare_root(self, name: str) -> None:
        for rows, depth in ((1, 4), (8, 0)):
            made = builder()
            self.policy(name).grow(made, TableDrafter(0), Budget(rows=rows, depth=depth))
            draft = made.build()
            assert (draft.num_rows, draft.depth) == (1, 0)

    def test_room_is_used(self, name: str) -> None:
        made = builder()
        self.policy(name).grow(made, TableDrafter(0), Budget(rows=16, depth=4))
        assert made.build().depth >= 1

    @pytest.mark.parametrize("how", ["place", "iid", "wor"])
    def test_sizes_are_fixed_before_any_value(self, name: str, how: How) -> None:
        # Whole branches are host data, known before; all other values are the device's.
        host_data = TREES.get(name).needs_native
        sizes = set()
        for seed in range(6):
            made = builder(how=how, root=seed)
            table = TableDrafter(0 if host_data else seed)
            self.policy(name, proposal=how).grow(made, table, Budget(rows=12, depth=4))
            draft = made.build()
            sizes.add((draft.num_rows, draft.depth, len(draft.row_of)))
        assert len(sizes) == 1

    def test_padding_adds_dead_rows_only(self, name: str) -> None:
        made = builder()
        self.policy(name).grow(made, TableDrafter(0), Budget(rows=9, depth=4))
        bare, padded = made.build(), made.build(pad_to=32)
        assert padded.num_rows == 32
        assert not padded.alive[bare.num_rows :].any()
        assert paths(padded) == paths(bare)
        check_draft(padded, Budget(rows=9, depth=4), padded=True)

    def test_declared_expansions_bound_the_frontiers(self, name: str) -> None:
        table, fed = TableDrafter(0), []
        inner = table.expand

        def counted(frontier: Frontier) -> Sequence[Proposal]:
            fed.append(len(frontier))
            return inner(frontier)

        table.expand = counted  # type: ignore[method-assign]
        policy = self.policy(name)
        policy.grow(builder(), table, Budget(rows=policy.max_nodes, depth=policy.depth))
        assert sum(fed) <= policy.max_expanded

    def test_datasheet(self, name: str) -> None:
        text = inspect.getdoc(TREES.get(name)) or ""
        assert re.search(r"[Dd]ecides|[Cc]hooses", text), "does it decide before the draw?"
