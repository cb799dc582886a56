"""JSON that is nested 100,000 deep is one line that names the file, wherever a user gives JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from specframe.costs.stored_costs import read_costs
from specframe.errors import ConfigError
from specframe.heads.embeddings import read_ids
from specframe.heads.head_files import read_files
from specframe.prompts.answers import read_answers
from specframe.prompts.corpus import Corpus
from specframe.prompts.reader import read_prompts
from specframe.report.run_answers import lines_of
from specframe.storage.lines import read_settings
from specframe.task.replay.recorded import read_record
from specframe.tree.static import StaticTree
from tests.small_models import toy

DEEP = "[" * 100_000 + "\n"


def _head(path: Path) -> None:
    save_file({"weight": torch.zeros(1)}, str(path.with_name("model.safetensors")))
    read_files(str(path.parent))


def _record(path: Path) -> None:
    path.with_suffix(".settings.json").write_text("{}", encoding="utf-8")
    read_record(path.parent)


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "prompts": ("a.jsonl", read_prompts),
    "array of prompts": ("a.json", read_prompts),
    "a head's config": ("config.json", _head),
    "costs": ("costs.json", read_costs),
    "answers": ("a.jsonl", lambda path: list(read_answers(path))),
    "corpus": ("a.jsonl", lambda path: Corpus.of(str(path), toy()).read()),
    "settings": ("a.settings.json", lambda path: read_settings(path, named_by="x", contents="y")),
    "paths of a tree": (
        "paths.json",
        lambda path: StaticTree(paths=str(path), depth=3, max_nodes=8, proposal="place"),
    ),
    "ids": ("a.json", lambda path: read_ids(str(path), vocab_size=9, where="x")),
    "lines of a run": ("a.jsonl", lambda path: list(lines_of(path))),
    "a record": ("answers.jsonl", _record),
}


@pytest.mark.parametrize("kind", READERS)
def test_json_that_is_nested_too_deeply_is_one_line(tmp_path: Path, kind: str) -> None:
    name, read = READERS[kind]
    (tmp_path / name).write_text(DEEP, encoding="utf-8")
    with pytest.raises(ValueError, match=r".") as caught:
        read(tmp_path / name)
    assert isinstance(caught.value, ConfigError) or "tree.paths=" in str(caught.value)
    assert str(tmp_path) in str(caught.value) or name in str(caught.value)
    assert "\n" not in str(caught.value)
