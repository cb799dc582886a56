"""data=hub and its presets: columns renamed, categories merged, fetched once, refused clearly."""

from __future__ import annotations

import gzip
import io
import json
import logging
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from specframe.compose import catalogue
from specframe.data.hub import Hub
from specframe.errors import ConfigError, MissingResource
from specframe.prompts.reader import PromptRecord, read_prompts
from specframe.storage.cache_folder import cache_root

OPEN = "https://example.org/suite"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path / "cache"))


def preset(name: str, **given: Any) -> Hub:
    with catalogue.configuration() as loader:
        values = catalogue.schema(loader, "data", name)
    assert values.pop("name") == "hub"
    return Hub(**{**values, **given})


def lines(path: Path, *entries: dict[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(one)}\n" for one in entries), encoding="utf-8")
    return path


def test_spec_bench_has_six_kinds(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "q.jsonl",
        {"question_id": 1, "category": "writing", "turns": ["a", "b"]},
        {"question_id": 2, "category": "math", "turns": ["c"]},
        {"question_id": 3, "category": "math_reasoning", "turns": ["d"], "reference": ["#### 4"]},
    )
    found = read_prompts(preset("spec_bench", path=str(path)).file())
    kinds = [one.category for one in found]
    assert kinds == ["multi_turn_conversation", "multi_turn_conversation", "math_reasoning"]
    assert found[2] == PromptRecord(
        turns=("d",), id=3, category="math_reasoning", reference="#### 4"
    )


def test_mt_bench_and_gsm8k(tmp_path: Path) -> None:
    path = lines(tmp_path / "m.jsonl", {"prompt": ["a", "b"], "category": "stem"})
    [record] = read_prompts(preset("mt_bench", path=str(path)).file())
    assert record.turns == ("a", "b") and record.category == "stem"
    path = lines(tmp_path / "g.jsonl", {"question": "how many?", "answer": "x\n#### 3"})
    [record] = read_prompts(preset("gsm8k", path=str(path)).file())
    assert record == PromptRecord(turns=("how many?",), reference="x\n#### 3")


def test_humaneval_is_gzipped_and_brings_its_tests(tmp_path: Path) -> None:
    entry = {
        "task_id": "HumanEval/0",
        "prompt": "def f():\n",
        "entry_point": "f",
        "test": "def check(g):\n    assert g() == 1",
    }
    path = tmp_path / "h.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(entry).encode()))
    [record] = read_prompts(preset("humaneval", path=str(path)).file())
    assert record.turns == ("def f():\n",) and record.id == "HumanEval/0"
    assert record.checks is not None and record.checks.endswith("check(f)\n")


def test_parquet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "g.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"question": ["a"], "answer": ["b"]}), path)
    [record] = read_prompts(preset("gsm8k", path=str(path)).file())
    assert record == PromptRecord(turns=("a",), reference="b")


def test_it_is_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(address: str, timeout: float) -> io.BytesIO:
        asked.append(address)
        return io.BytesIO(b'{"prompt": "abc"}\n')

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    for _ in range(2):
        [record] = read_prompts(preset("hub", repository=OPEN, file="x/q.jsonl").file())
        assert record.turns == ("abc",)
    assert asked == [f"{OPEN}/x/q.jsonl"]
    for file in (cache_root() / "data").glob("*q*.jsonl"):
        file.write_bytes(file.read_bytes().replace(b"abc", b"xyz"))
    [record] = read_prompts(preset("hub", repository=OPEN, file="x/q.jsonl").file())
    assert record.turns == ("abc",), "the copy and the entries were changed in place"
    assert len(asked) == 2


@pytest.mark.parametrize("name", ["q.jsonl.gz", "q.parquet"])
def test_a_cut_file_is_one_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    whole = gzip.compress(json.dumps({"prompt": "abc " * 99}).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=rf"data\.path=.*{name}: cannot read it") as caught:
        preset("hub", path=str(path)).file()
    assert "\n" not in str(caught.value)


def test_a_dataset_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    path = lines(tmp_path / "q.jsonl", {"prompt": "abc"})

    fetched: list[str] = []

    def download(
        repository: str, name: str, *, repo_type: str, local_files_only: bool = False
    ) -> str:
        assert (repository, name, repo_type) == ("a/b", "q.jsonl", "dataset")
        if local_files_only and not fetched:
            raise LocalEntryNotFoundError("not there")
        if not local_files_only:
            # As huggingface_hub tells of every try that failed; our own message is enough.
            logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s")
            fetched.append(name)
        return str(path)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    for _ in range(2):
        [record] = read_prompts(preset("hub", repository="a/b", file="q.jsonl").file())
        assert record.turns == ("abc",)
    assert fetched == ["q.jsonl"], "what is here is not asked for again"
    assert not caplog.records


def test_what_cannot_be_had_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(address: str, timeout: float) -> None:
        raise OSError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refused)
    with pytest.raises(MissingResource, match=r"no network.*give data.path= the file"):
        preset("spec_bench").file()
    with pytest.raises(ConfigError, match="no such file"):
        preset("spec_bench", path=str(tmp_path / "nowhere")).file()
    for text, reason in (("{", "not JSON"), ("[1]", "expected an object")):
        path = tmp_path / "bad.jsonl"
        path.write_text(f'{{"prompt": "a"}}\n{text}\n', encoding="utf-8")
        with pytest.raises(ConfigError, match=rf"bad.jsonl:2: {reason}"):
            preset("spec_bench", path=str(path)).file()
