"""A published suite: a file given by the user, or fetched once and kept in the user's cache."""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from specframe.data.base import SUITES, Suite
from specframe.errors import ConfigError, MissingResource
from specframe.storage.cache_folder import cache_root
from specframe.storage.digests import is_unchanged, seal
from specframe.storage.whole_files import write_whole

_FOLDER = "data"  # in the cache
_TIMEOUT_S = 60  # how long to wait for a silent server


@SUITES.register("hub")
class Hub(Suite):
    """One file of a dataset: JSONL, gzipped JSONL or Parquet.

    path: that file on this machine; null: `file` of `repository`, a dataset's name on the Hugging
    Face hub or an https address of a folder. prompt_key and reference_key: the columns of prompts
    and right answers, where a line does not name its `turns`. merge: categories that count as the
    first of them. The entries as they were changed are written into the cache as JSONL.
    """

    def __init__(
        self,
        *,
        path: str | None,
        repository: str,
        file: str,
        prompt_key: str,
        reference_key: str,
        merge: list[str] | None,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.repository = repository
        self.name = file
        self.prompt_key = prompt_key
        self.reference_key = reference_key
        self.merge = merge or []

    def file(self) -> Path:
        if self.path is not None and not self.path.is_file():
            raise ConfigError(f"data.path={self.path}: no such file; null fetches it")
        source = self.path or _fetched(self.repository, self.name)
        lines = [json.dumps(self._entry(each), ensure_ascii=False) for each in _entries(source)]
        content = "".join(f"{line}\n" for line in lines).encode("utf-8", errors="backslashreplace")
        digest = hashlib.sha256(content).hexdigest()[:16]
        return _cached(f"{source.name.partition('.')[0]}-{digest}.jsonl", content)

    def _entry(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row with the keys of a prompt file."""
        entry = dict(row)
        if "turns" not in entry and self.prompt_key in entry:
            prompt = entry.pop(self.prompt_key)
            entry["turns"] = prompt if isinstance(prompt, list) else [prompt]
            entry.pop("prompt", None)
        if self.reference_key in entry:
            entry["reference"] = entry[self.reference_key]
        if entry.get("category") in self.merge:
            entry["category"] = self.merge[0]
        return entry


def _entries(source: Path) -> Iterator[dict[str, Any]]:
    """The lines or rows of a file. Raises ConfigError naming the line that is not an object."""
    if source.suffix == ".parquet":
        yield from _rows(source)
        return
    opened = gzip.open if source.suffix == ".gz" else open
    try:
        with opened(source, "rt", encoding="utf-8-sig", newline="\n") as file:
            lines = [line for line in file if line.strip()]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(f"data.path={source}: cannot read it ({error})") from None
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{source}:{number}: not JSON ({error})") from None
        if not isinstance(entry, dict):
            raise ConfigError(f"{source}:{number}: expected an object")
        yield entry


def _rows(source: Path) -> Sequence[dict[str, Any]]:
    import pyarrow.parquet

    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(source).to_pylist()
    except (OSError, pyarrow.lib.ArrowException) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"data.path={source}: cannot read it ({reason})") from None
    return rows


def _fetched(repository: str, name: str) -> Path:
    """The file on this machine, fetched if it is not there. Raises MissingResource."""
    try:
        if "://" not in repository:
            return _downloaded(repository, name)
        address = f"{repository}/{name}"
        mark = hashlib.sha256(address.encode()).hexdigest()[:8]
        place = cache_root() / _FOLDER / f"{mark}-{Path(name).name}"
        if is_unchanged(place):
            return place
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:
            return _cached(place.name, answer.read())
    except (OSError, ValueError) as error:  # whatever the hub says is one of these
        reason = " ".join(str(error).split())[:200]
        raise MissingResource(
            f"data: cannot fetch {name} of {repository} ({reason}); give data.path= the file"
        ) from None


def _downloaded(repository: str, name: str) -> Path:
    """A file of a dataset: the copy that was fetched before, else from the hub."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    # The hub's library logs every try; our own message says what came of them.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    with suppress(LocalEntryNotFoundError):
        return Path(hf_hub_download(repository, name, repo_type="dataset", local_files_only=True))
    return Path(hf_hub_download(repository, name, repo_type="dataset"))


def _cached(name: str, content: bytes) -> Path:
    """A file of this content in the cache, written whole unless it is there, with its seal."""
    place = cache_root() / _FOLDER / name
    if place.is_file() and place.read_bytes() == content:
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, content)
        seal(place)
    except OSError as error:
        raise ConfigError(
            f"data: cannot write {place} ({error.strerror}); set SPECFRAME_CACHE to another folder"
        ) from None
    return place
