"""A damaged .npz of a user, of whatever damage, is one line that names the file."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specframe.errors import ConfigError
from specframe.prompts.answers import CompactAnswer, read_compact, write_compact
from specframe.prompts.corpus import Corpus
from specframe.storage.arrays import read_arrays
from specframe.tracing.traced_positions import TracedAnswer, read_positions
from tests.small_models import toy

ANSWERS = [CompactAnswer(id=i, turn=0, tokens=[i, 1, 2], finish_reason="eos") for i in range(4)]
READERS: dict[str, Callable[[Path], Any]] = {
    "answers": lambda path: list(read_compact(path)),
    "corpus": lambda path: Corpus.of(str(path), toy()).read(),
    "positions": read_positions,
}


def written(path: Path, kind: str) -> bytes:
    """A good file of this kind."""
    if kind == "positions":
        TracedAnswer([]).write(path)
    else:
        write_compact(path, ANSWERS)  # type: ignore[arg-type]
    READERS[kind](path)
    return path.read_bytes()


def damaged(good: bytes) -> Iterator[bytes]:
    """The file cut, and with bytes changed, by a fixed sequence of chances."""
    chance = random.Random(0)
    yield from (good[: len(good) * share // 12] for share in range(12))
    for _ in range(60):
        changed = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(good))] = chance.randrange(256)
        yield bytes(changed)


def refusal(kind: str, path: Path) -> str | None:
    """What the reader says; None where the damage is in a place that nobody looks at."""
    try:
        READERS[kind](path)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("kind", READERS)
def test_any_damage_is_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.npz"
    refused = 0
    for content in damaged(written(path, kind)):
        path.write_bytes(content)
        text = refusal(kind, path)
        assert text is None or ("a.npz" in text and "\n" not in text)
        refused += text is not None
    assert refused > 40


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ends": [3, 6, 9]}, "its arrays contradict each other"),
        ({"ends": [3, 9, 6, 12]}, "its arrays contradict each other"),
        ({"ends": [3, 6, 9, 11]}, "its arrays contradict each other"),
        ({"reasons": [0, 0, 0, 2]}, "its arrays contradict each other"),
        ({"turns": [0, 0]}, "its arrays contradict each other"),
        ({"tokens": [0.5] * 12}, "`tokens` is no list of whole numbers from 0"),
        ({"tokens": [-1] * 12}, "`tokens` is no list of whole numbers from 0"),
        ({"turns": [[0, 0, 0, 0]]}, "`turns` is no list of whole numbers from 0"),
        ({"ids": list(b"[" * 50_000)}, "`ids` is no JSON"),
        ({"ids": list(b"[1, 2, 3, [4]]")}, "`ids` is no list of texts and numbers"),
        ({"ids": None}, "KeyError"),
    ],
)
def test_arrays_that_do_not_fit_are_named(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    path = tmp_path / "a.npz"
    written(path, "answers")
    arrays = {**np.load(path), **changes}
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    with pytest.raises(ConfigError, match=rf"a\.npz: not a file of compact answers \({reason}"):
        list(read_compact(path))


def test_one_array_alone_is_no_archive(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(3))
    (tmp_path / "a.npz").write_bytes(buffer.getvalue())
    with pytest.raises(ConfigError, match=r"^here: not things \(\w+: .*\); give another file$"):
        read_arrays(tmp_path / "a.npz", (), place="here", contents="things")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokens": [1.0, 2.0]}, "`tokens` is no list of whole numbers from 0"),
        ({"tokens": [2**31]}, "a token id or an end is out of range"),
        ({"ends": [13]}, "a token id or an end is out of range"),
        ({"ends": [4, 2]}, "a token id or an end is out of range"),
        ({"tokens": None}, r"there is no such array"),
    ],
)
def test_a_corpus_that_is_none_is_named(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    path = tmp_path / "a.npz"
    written(path, "answers")
    arrays = {**np.load(path), **changes}
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    with pytest.raises(ConfigError, match=f"drafter.corpus=.*{reason}"):
        READERS["corpus"](path)
