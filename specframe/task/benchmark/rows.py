"""The rows of a benchmark, one for each prompt, and the settings that they depend on."""

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
# Keys that a row does not depend on; of prompts, the texts count and not where they came from.
_NOT_OF_A_ROW = (
    *("prompt", "prompts", "data", "train", "trace", "expects", "objective"),
    *("resamples", "confidence"),
)
_TEXT = "text."  # prefix of the settings that the exact text depends on


@dataclass(frozen=True, kw_only=True)
class Row:
    """One prompt with the answers of all sides."""

    index: int  # of the prompt in the suite
    id: str | int | None
    category: str
    digest: str  # `digest_of` the prompt
    sides: dict[str, list[Turn]]  # name of a side -> its turns
    # Of the method with the exact text, one a turn; empty where there is no exact text.
    agreements: list[Agreement] = field(default_factory=list)
    # Name of a score -> name of a side -> whether its answer is right.
    scores: dict[str, dict[str, bool]] = field(default_factory=dict)
    error: str | None = None  # why the prompt could not be answered, if so

    def as_dict(self) -> dict[str, Any]:
        """Plain values, from which `of` makes the same row."""
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any], where: str) -> Row:
        """The row of these plain values. where: file and line, for the message.

        Raises ConfigError for values of something else.
        """
        try:
            turns_of = values["sides"].items()
            sides = {name: [Turn.of(turn) for turn in turns] for name, turns in turns_of}
            agreements = [Agreement(**pair) for pair in values["agreements"]]
            return cls(**{**values, "sides": sides, "agreements": agreements})
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{where}: not a row of task=benchmark ({error})") from None


class RowFile(LineFile):
    """The rows of a run on the disk.

    `rows` are those that are there, in the order in which they were answered.
    """

    def __init__(self, path: Path, *, settings: dict[str, Any]) -> None:
        super().__init__(path, settings=settings, named_by="hydra.run.dir", contents="rows")
        try:
            self.rows = list(_rows(self.lines(), path))
        except BaseException:
            self.close()
            raise

    def add(self, row: Row) -> None:
        """Append a row, and return once it is on the disk."""
        self.add_lines([row.as_dict()])
        self.rows.append(row)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Exact texts of an earlier run."""

    path: Path
    turns: dict[str, list[Turn]]  # digest of a prompt -> its turns

    def of(self, digest: str, sequences: Sequence[int]) -> list[Turn]:
        """The turns of one prompt, whose noise was keyed by `sequences`.

        Raises ConfigError if the file lacks them.
        """
        turns = self.turns.get(digest)
        if turns is None or [turn.sequence for turn in turns] != list(sequences):
            raise ConfigError(
                f"task.reference={self.path}: it has no answer to a prompt of this run; make it "
                "with the same prompts and drafter=none"
            )
        return turns


def read_reference(path: Path, settings: dict[str, Any]) -> Reference:
    """Read the baseline of an earlier run whose text has to be that of this run.

    Raises ConfigError where the settings that the text depends on differ.
    """
    path = path / ROWS if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(f"task.reference={path}: no such file; give the {ROWS} of an earlier run")
    there = read_settings(path, named_by="task.reference", contents="rows")
    for key, here in json.loads(json.dumps(settings)).items():
        if key.startswith(_TEXT) and there.get(key) != here:
            raise ConfigError(
                f"task.reference={path}: it was made with {key.removeprefix(_TEXT)}="
                f"{there.get(key)}, this run has {here}; give the rows of a run like this one"
            )
    name = METHOD if there.get("drafter.name") == "none" else BASELINE
    with path.open("rb") as file:
        lines = [(number, line) for number, line in enumerate(file, start=1) if line[-1:] == b"\n"]
    turns = {row.digest: row.sides.get(name) for row in _rows(iter(lines), path) if not row.error}
    exact = {digest: answer for digest, answer in turns.items() if answer is not None}
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
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where}: not JSON ({error})") from None
        yield Row.of(values, where)


def digest_of(record: PromptRecord) -> str:
    """Sixteen hexadecimal digits that stand for the texts of a prompt."""
    return record.digest


def settings_of(
    engine: Engine, config: dict[str, Any], records: Sequence[PromptRecord]
) -> dict[str, Any]:
    """Everything that a row depends on, by dotted key.

    What the exact text depends on stands under `text.`: model, sampling, stop rules, length and,
    where there is noise, the seed.
    """
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
    chosen = {key: value for key, value in _flat(config).items() if not _is_apart(key)}
    machine = facts["hardware"]
    hardware = {"cpu": machine["cpu"], "threads": machine["torch_threads"], "cuda": machine["cuda"]}
    return {
        **chosen,
        **{_TEXT + key: value for key, value in text.items()},
        "prompts": _digest([digest_of(record) for record in records]),
        "draft_model": facts["draft_model"] and facts["draft_model"]["weights"],
        "hardware": hardware,
        "versions": {name: facts["packages"].get(name) for name in PACKAGES[:2]},
        **{f"content of {key}": digest for key, digest in _contents(chosen).items()},
        # A tree that is planned by measured costs changes with them.
        "tree.explanation": _digest(facts["tree_explanation"]),
    }


def hash_of(settings: dict[str, Any]) -> str:
    """Sixteen hexadecimal digits that stand for the settings of a run."""
    return _digest(settings)


def _is_apart(key: str) -> bool:
    return any(part in _NOT_OF_A_ROW for part in key.split("."))


def _contents(values: dict[str, Any]) -> dict[str, str]:
    """Digests of the files and folders that values name, since a name may get another content."""
    digests = {}
    for key, value in values.items():
        if not isinstance(value, str) or key.endswith(".name"):
            continue
        path = Path(value).expanduser()
        with suppress(OSError, ValueError):  # the value names no file
            files = sorted(path.iterdir()) if path.is_dir() else [path]
            sums = [[file.name, fingerprint(file)] for file in files if file.is_file()]
            if sums:
                digests[key] = _digest(sums)
    return digests


def _flat(value: dict[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat |= _flat(item, f"{above}{key}.")
        else:
            flat[f"{above}{key}"] = item
    return flat


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
