"""The lines of a benchmark: one a prompt, and what they depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError
from specframe.law.sampling import GREEDY_BELOW
from specframe.prompts.reader import PromptRecord
from specframe.session.engine import Engine
from specframe.session.manifest import PACKAGES, describe, fingerprint
from specframe.storage.lines import LineFile, read_settings
from specframe.task.benchmark.quality import Agreement
from specframe.task.benchmark.sides import BASELINE, METHOD, Turn

ROWS = "rows.jsonl"
# Keys that say nothing of a row; the prompts themselves are compared, not where they came from.
_NOT_OF_A_ROW = (
    *("prompt", "prompts", "data", "train", "trace", "expects", "objective"),
    *("resamples", "confidence"),
)
_TEXT = "text."  # what the exact text depends on stands under this


@dataclass(frozen=True, kw_only=True)
class Row:
    """One prompt. sides: name -> its turns; error: why it could not be answered, if so.

    agreements: of the method with the exact text, a turn each. scores: name -> side -> right.
    """

    index: int
    id: str | int | None
    category: str
    digest: str
    sides: dict[str, list[Turn]]
    agreements: list[Agreement] = field(default_factory=list)
    scores: dict[str, dict[str, bool]] = field(default_factory=dict)
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values; `of` makes the same row of them."""
        return asdict(self)

    @classmethod
    def of(cls, held: dict[str, Any], where: str) -> Row:
        """The row of a line. Raises ConfigError if it is none."""
        try:
            sides = {name: [Turn.of(one) for one in turns] for name, turns in held["sides"].items()}
            agreements = [Agreement(**one) for one in held["agreements"]]
            return cls(**{**held, "sides": sides, "agreements": agreements})
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{where}: not a row of task=benchmark ({error})") from None


class RowFile(LineFile):
    """The rows of a run, in the order of the suite. rows: those that are there."""

    def __init__(self, path: Path, *, settings: dict[str, Any]) -> None:
        super().__init__(path, settings=settings, named_by="hydra.run.dir", contents="rows")
        try:
            self.rows = list(_rows(self.lines(), path))
        except BaseException:
            self.close()
            raise

    def add(self, row: Row) -> None:
        """Append a row and wait for the disk."""
        self.add_lines([row.as_dict()])
        self.rows.append(row)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Exact texts of an earlier run. turns: digest of a prompt -> its turns."""

    path: Path
    turns: dict[str, list[Turn]]

    def of(self, digest: str, sequences: Sequence[int]) -> list[Turn]:
        """The turns of one prompt. Raises ConfigError if the file lacks it."""
        held = self.turns.get(digest)
        if held is None or [one.sequence for one in held] != list(sequences):
            raise ConfigError(
                f"task.reference={self.path}: it has no answer to a prompt of this run; make it "
                "with the same prompts and drafter=none"
            )
        return held


def read_reference(path: Path, settings: dict[str, Any]) -> Reference:
    """The baseline of an earlier run with the same text. Raises ConfigError if it is another's."""
    path = path / ROWS if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(f"task.reference={path}: no such file; give the {ROWS} of an earlier run")
    held = read_settings(path, named_by="task.reference", contents="rows")
    for key, here in json.loads(json.dumps(settings)).items():
        if key.startswith(_TEXT) and held.get(key) != here:
            raise ConfigError(
                f"task.reference={path}: it was made with {key.removeprefix(_TEXT)}="
                f"{held.get(key)}, this run has {here}; give the rows of a run like this one"
            )
    name = METHOD if held.get("drafter.name") == "none" else BASELINE
    with path.open("rb") as file:
        lines = [(number, line) for number, line in enumerate(file, start=1) if line[-1:] == b"\n"]
    turns = {row.digest: row.sides.get(name) for row in _rows(iter(lines), path) if not row.error}
    exact = {digest: one for digest, one in turns.items() if one is not None}
    if not exact:
        raise ConfigError(
            f"task.reference={path}: it has no baseline; give rows of drafter=none, or of a run "
            "with task.baseline=true"
        )
    return Reference(path=path, turns=exact)


def _rows(lines: Iterator[tuple[int, bytes]], path: Path) -> Iterator[Row]:
    for number, line in lines:
        where = f"{path}:{number}"
        try:
            held = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{where}: not JSON ({error})") from None
        yield Row.of(held, where)


def digest_of(record: PromptRecord) -> str:
    """What tells a prompt from the others."""
    return hashlib.sha256(json.dumps(record.turns).encode()).hexdigest()[:16]


def settings_of(
    engine: Engine, config: dict[str, Any], records: Sequence[PromptRecord]
) -> dict[str, Any]:
    """Everything that a row depends on, by dotted key; the part that makes the exact text under
    `text.`: model, prompts, sampling, stop, length and, where there is noise, the seed."""
    facts = describe(engine, config)
    target, sampling = facts["target"], config["sampling"]
    text: dict[str, Any] = {
        "weights": target["weights"] or [target["path"], target["commit"]],
        "model": target["class"],
        "dtype": target["dtype"],
        "tokenizer": target["tokenizer"],
        "chat_template": _digest(target["chat_template"]),
        "raw": engine.settings.raw,
        "max_new_tokens": engine.settings.max_new_tokens,
        "eos": list(engine.eos_ids),
        **{f"sampling.{key}": value for key, value in sampling.items()},
        **{f"stop.{key}": value for key, value in config["stop"].items() if key != "eos"},
    }
    if sampling["temperature"] >= GREEDY_BELOW:
        text["seed"] = engine.settings.seed
    if target["weights"] is None:  # the toy is its numbers
        text |= {f"target.{key}": value for key, value in config["target"].items()}
    kept = {key: value for key, value in _flat(config).items() if not _is_apart(key)}
    machine = facts["hardware"]
    hardware = {"cpu": machine["cpu"], "threads": machine["torch_threads"], "cuda": machine["cuda"]}
    return {
        **kept,
        **{_TEXT + key: value for key, value in text.items()},
        "prompts": _digest([digest_of(record) for record in records]),
        "draft_model": facts["draft_model"] and facts["draft_model"]["weights"],
        "hardware": hardware,
        "versions": {name: facts["packages"].get(name) for name in PACKAGES[:2]},
        **{f"content of {key}": held for key, held in _contents(kept).items()},
        # A tree by measured costs is another one when they are.
        "tree.explanation": _digest(facts["tree_explanation"]),
    }


def hash_of(settings: dict[str, Any]) -> str:
    """Sixteen digits that stand for the settings of a run."""
    return _digest(settings)


def _is_apart(key: str) -> bool:
    return any(part in _NOT_OF_A_ROW for part in key.split("."))


def _contents(values: dict[str, Any]) -> dict[str, str]:
    """Digests of the files and folders that values name: their names alone say too little."""
    found = {}
    for key, value in values.items():
        if not isinstance(value, str) or key.endswith(".name"):
            continue
        path = Path(value).expanduser()
        with suppress(OSError, ValueError):  # no name of a file
            files = sorted(path.iterdir()) if path.is_dir() else [path]
            sums = [[one.name, fingerprint(one)] for one in files if one.is_file()]
            if sums:
                found[key] = _digest(sums)
    return found


def _flat(value: dict[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            found |= _flat(item, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = item
    return found


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
