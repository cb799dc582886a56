"""The suite of tests for words of `data=`, which name prompts."""

from __future__ import annotations

from specframe.prompts.reader import read_prompts
from specframe.testing.defaults import ComponentContract


class SuiteContract(ComponentContract):
    """Prompts that can be read, the same ones each time."""

    def test_its_file_holds_prompts(self, name: str) -> None:
        records = read_prompts(self.component("data", name).file())
        assert records
        assert all(turn.strip() for record in records for turn in record.turns)

    def test_it_is_fetched_once(self, name: str) -> None:
        first = self.component("data", name).file()
        assert self.component("data", name).file() == first
        assert read_prompts(first) == read_prompts(first)
