"""A corpus as token ids: answers of task=distill, text, or ids, in the vocabulary of a target.

`.jsonl`: one document a line, its ids under `tokens` (as task=distill writes them) or its text
under `text`. `.npz`: ids under `tokens`, where documents end under `ends` (as task.compact writes
them). Anything else is text. A file `*.settings.json` beside ids, as task=distill leaves it, says
which tokenizer they are of.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specframe.errors import ConfigError
from specframe.models.package import local_folder
from specframe.models.tokenizer import identity_of
from specframe.storage.arrays import check_integers, read_arrays
from specframe.target.base import Target

BUILTIN = "builtin"  # the answers of SmolLM2 that come along
SEPARATOR = -1  # between documents
_ENCODED = 200_000  # characters of a text file that are encoded at a time
_JSONL = (".jsonl", ".ndjson")
_LARGEST = 2**31 - 1  # token id


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A file that is read as token ids of a target."""

    place: str  # key and value as the user wrote them, for messages
    path: Path
    target: Target

    @classmethod
    def of(cls, word: str, target: Target) -> Corpus:
        """The file of drafter.corpus. Raises ConfigError if there is none, or of a tokenizer that
        is not the target's."""
        path = Path(word).expanduser()
        if word == BUILTIN:
            path = Path(__file__).parent / "smollm2_answers.npz"
        corpus = cls(place=f"drafter.corpus={word}", path=path, target=target)
        if not path.is_file():
            raise ConfigError(
                f"{corpus.place}: no such file; give answers of task=distill (.jsonl or .npz), a "
                "text file, or builtin"
            )
        corpus._check_tokenizer()
        return corpus

    @property
    def digest(self) -> str:
        """sha256 of all that the ids depend on: the file's bytes and, for text, the tokenizer."""
        with self.path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        kind = self.path.suffix.lower()
        parts = [content, kind, None if kind == ".npz" else self._identity()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def read(self) -> np.ndarray:
        """[n] int32 ids of all documents with a separator between them. Raises ConfigError."""
        if self.path.suffix.lower() == ".npz":
            ids = self._from_arrays()
        elif self.path.suffix.lower() in _JSONL:
            ids = _joined(self._from_lines())
        else:
            ids = _joined([self._from_text()])
        if not (ids >= 0).any():
            raise ConfigError(f"{self.place}: there are no tokens in it; give another file")
        self.check_ids(int(ids.max()))
        return ids

    def check_ids(self, highest: int) -> None:
        """Raises ConfigError if an id is not in the target's vocabulary."""
        if highest >= self.target.vocab_size:
            raise ConfigError(
                f"{self.place}: it holds the token id {highest}, {self.target.name} has 0 .. "
                f"{self.target.vocab_size - 1}; give answers of this target (task=distill) or text"
            )

    def _check_tokenizer(self) -> None:
        beside = self.path.with_suffix(".settings.json")
        if not beside.is_file():
            return
        try:
            made_with = json.loads(beside.read_text(encoding="utf-8")).get("tokenizer")
            known, digest = (made_with["of"], made_with["sha256"]) if made_with else (None, None)
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise ConfigError(
                f"{self.place}: {beside.name}, which says whose tokens they are, cannot be read; "
                "mend or remove it"
            ) from None
        own = self._identity(of_file=known != "vocabulary")
        # Fingerprints of two kinds cannot be compared; the ids are checked all the same.
        other_kind = known is not None and own is not None and own["of"] != known
        if not other_kind and (own or {}).get("sha256") != digest:
            raise ConfigError(
                f"{self.place}: its tokens are of another tokenizer than that of "
                f"{self.target.name}; give answers of this target (task=distill) or text"
            )

    def _identity(self, *, of_file: bool = True) -> dict[str, str] | None:
        folder: Path | None = None
        if of_file:
            try:
                folder = Path(local_folder(self.target.name))
            except (ValueError, RuntimeError):  # the target is loaded already: this is no error
                folder = None
        return identity_of(self.target.tokenizer, folder)

    def _from_arrays(self) -> np.ndarray:
        what = {"place": self.place, "contents": "arrays of token ids under `tokens`"}
        arrays = read_arrays(self.path, (), **what)
        arrays = {name: array for name, array in arrays.items() if name in ("tokens", "ends")}
        if "tokens" not in arrays:
            raise ConfigError(f"{self.place}: not {what['contents']} (there is no such array)")
        check_integers(arrays, **what)
        tokens = arrays["tokens"]
        ends = arrays.get("ends", np.array([len(tokens)])).astype(np.int64)
        if (tokens > _LARGEST).any() or (ends > len(tokens)).any() or (np.diff(ends) < 0).any():
            raise ConfigError(f"{self.place}: a token id or an end is out of range; make it anew")
        return np.insert(tokens.astype(np.int32), ends[ends < len(tokens)], SEPARATOR)

    def _from_lines(self) -> Iterator[list[int]]:
        with self.path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if not raw.endswith(b"\n") and number > 1 and not _is_json(raw):
                    return  # torn by a kill
                if raw.strip():
                    yield self._document(self._decoded(raw, f":{number}"), number)

    def _document(self, line: str, number: int) -> list[int]:
        try:
            entry: Any = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        tokens = entry.get("tokens") if isinstance(entry, dict) else None
        if isinstance(tokens, list) and all(type(each) is int and each >= 0 for each in tokens):
            return tokens
        text = entry.get("text") if isinstance(entry, dict) else None
        if not isinstance(text, str):
            raise ConfigError(
                f"{self.place}:{number}: no object with `tokens` (ids) or `text`; give answers of "
                "task=distill or a text file"
            )
        return self._encode(text)

    def _from_text(self) -> list[int]:
        text = self._decoded(self.path.read_bytes())
        ids: list[int] = []
        piece: list[str] = []
        size = 0
        for line in [*text.splitlines(keepends=True), None]:
            if line is None or size > _ENCODED:
                ids += self._encode("".join(piece))
                piece, size = [], 0
            if line is not None:
                piece.append(line)
                size += len(line)
        return ids

    def _decoded(self, content: bytes, where: str = "") -> str:
        """Bytes as text. Raises ConfigError for bytes that are none."""
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            problem = f"byte {error.start} ({content[error.start]:#04x}) is no UTF-8"
        else:
            if "\0" not in text:
                return text
            problem = "it holds zero bytes, so it is no text"
        raise ConfigError(
            f"{self.place}{where}: {problem}; give a text file in UTF-8, or answers of "
            "task=distill (.jsonl or .npz)"
        )

    def _encode(self, text: str) -> list[int]:
        tokenizer = self.target.tokenizer
        if tokenizer is None:
            raise ConfigError(
                f"{self.place}: target={self.target.name} has no tokenizer to read text with; give "
                "a file of token ids"
            )
        return tokenizer.encode_plain(text)


def _joined(documents: Sequence[list[int]] | Iterator[list[int]]) -> np.ndarray:
    pieces: list[np.ndarray] = []
    for document in documents:
        pieces += [np.array([*document, SEPARATOR], dtype=np.int64)]
    ids = np.concatenate(pieces)[:-1] if pieces else np.zeros(0, dtype=np.int64)
    return ids.astype(np.int32)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
