"""The files of a run of task=generate, which the same command goes on with after a kill."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from specframe.errors import ConfigError
from specframe.measure.metrics import Metrics, RunSummary
from specframe.prompts.reader import PromptRecord
from specframe.records import Observer
from specframe.session.generation import Generation
from specframe.session.manifest import identity, write_json
from specframe.storage.lines import LineFile
from specframe.target.base import Target
from specframe.task.base import Job
from specframe.trace.base import TracedPrompt, Tracer

ERROR = "error"  # finish reason of a prompt that could not be answered
GENERATIONS = "generations.jsonl"
_NAMED_BY = "hydra.run.dir"
# Parts of the configuration that an answer does not depend on; prompts are compared one by one.
_NOT_OF_AN_ANSWER = (
    *("prompt", "prompts", "data", "task", "train", "trace", "expects", "objective"),
    "batch_size",
)


@dataclass(frozen=True, kw_only=True)
class AnsweredTurn:
    """One turn of one record of the prompt file."""

    record: PromptRecord
    turn: int  # from 0
    number: int  # of the record, from 1

    @property
    def text(self) -> str:
        """What the user says in this turn."""
        return self.record.turns[self.turn]

    def as_dict(self) -> dict[str, Any]:
        """What a line says of the prompt beside its text."""
        names = {"id": self.record.id, "category": self.record.category}
        named = {key: value for key, value in names.items() if value is not None}
        return named | ({"turn": self.turn} if len(self.record.turns) > 1 else {})


class GeneratedAnswers:
    """The files of a run: generations.jsonl line by line, and metrics.json anew after each line.

    Every answer is handed to the trace's recorder as well. Lines that an earlier command left are
    the first answers of this run, up to the first that the trace has not.
    """

    def __init__(self, job: Job, recorder: Tracer) -> None:
        self._recorder = recorder
        self.summary = RunSummary(job.engine.components.target.device)
        self.reasons: list[str] = []  # finish reasons, one an answer
        self.last = Metrics()  # of the latest answer
        self.prompt: Sequence[int] = ()  # of the latest answer of this command
        self._folder = job.output_dir
        self._settings = _settings(job)

    def __enter__(self) -> Self:
        path = self._folder / GENERATIONS
        self._file = LineFile(path, settings=self._settings, named_by=_NAMED_BY, contents="answers")
        try:
            lines = list(_parsed(self._file))
            count = 0
            while count < len(lines) and (_failed(lines[count]) or self._recorder.has(count)):
                count += 1
            self._file.keep_lines(count)
            self._recorder.keep(count)
            self._earlier = iter(lines[:count])
            self.num_earlier = count
            if not count:
                self._write_metrics()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        if len(self.reasons) >= self.num_earlier:  # else not all earlier answers are counted yet
            self._write_metrics()

    def earlier(self, record: PromptRecord, number: int) -> tuple[list[str], bool]:
        """Texts of the answers to a record that are there, and whether nothing of it is left.

        number: of the record, from 1. Raises ConfigError where the answers are to another prompt.
        """
        texts: list[str] = []
        for turn in range(len(record.turns)):
            line = next(self._earlier, None)
            if line is None:
                return texts, False
            self._check(line, AnsweredTurn(record=record, turn=turn, number=number))
            self.reasons.append(line["finish_reason"])
            if _failed(line):
                self.summary.num_errors += 1
                return texts, True
            self.last = Metrics.of(line["metrics"])
            self.summary.add(self.last, warm=line.get("warm"))
            texts.append(line["text"])
        return texts, True

    def watch(self, entry: AnsweredTurn, tokens: Sequence[int]) -> Sequence[Observer]:
        """The observers of the steps of an answer to these tokens, for the trace."""
        question = TracedPrompt(
            number=len(self.reasons),
            id=entry.record.id,
            category=entry.record.category,
            prompt=entry.text,
            prompt_tokens=tokens,
        )
        return self._recorder.begin(question)

    def add(
        self, entry: AnsweredTurn, answer: Generation, metrics: Metrics, *, warm: bool | None
    ) -> None:
        """Write a finished answer. warm: whether its drafter began with what earlier ones left."""
        assert metrics.num_tokens == len(answer.tokens)
        self.summary.add(metrics, warm=warm)
        self.reasons.append(answer.finish_reason)
        self.last = metrics
        self.prompt = answer.prompt_tokens
        self._write_line(
            {
                "prompt": entry.text,
                "text": answer.text,
                "tokens": answer.tokens,
                "finish_reason": answer.finish_reason,
                "num_prompt_tokens": len(answer.prompt_tokens),
                **entry.as_dict(),
                **({} if warm is None else {"warm": warm}),
                "metrics": metrics.as_dict(),
            }
        )
        self._recorder.end(answer, metrics.as_dict())

    def add_error(self, entry: AnsweredTurn, reason: str) -> None:
        """Write that a prompt could not be answered, and why."""
        self.summary.num_errors += 1
        self.reasons.append(ERROR)
        line = {"prompt": entry.text, "text": "", "tokens": [], "finish_reason": ERROR}
        self._write_line(line | {"error": reason, **entry.as_dict()})

    def _check(self, line: dict[str, Any], entry: AnsweredTurn) -> None:
        expected = {"prompt": entry.text, **entry.as_dict()}
        if any(line.get(key) != value for key, value in expected.items()):
            raise ConfigError(
                f"{_NAMED_BY}={self._folder}: answer {len(self.reasons) + 1} there is of another "
                "prompt; give the old prompts, or another folder"
            )

    def _write_line(self, value: dict[str, Any]) -> None:
        self._file.add_lines([value])
        self._write_metrics()

    def _write_metrics(self) -> None:
        write_json(self._folder / "metrics.json", self.summary.as_dict())


def _parsed(file: LineFile) -> Iterator[dict[str, Any]]:
    for number, line in file.lines():
        try:
            value = json.loads(line)
            if {"prompt", "finish_reason"} <= set(value):
                yield value
                continue
        except (ValueError, TypeError):
            pass
        raise ConfigError(f"{file.path}:{number}: no answer of task=generate; give another folder")


def _failed(line: dict[str, Any]) -> bool:
    return bool(line["finish_reason"] == ERROR)


def _settings(job: Job) -> dict[str, Any]:
    """What the answers depend on, beside their prompts."""
    parts = job.engine.components
    draft = getattr(parts.drafter, "model", None)
    models = {"target": parts.target, "draft_model": draft}
    facts = {
        name: {
            key: value
            for key, value in identity(model, model.name).items()
            if key in ("class", "dtype", "commit", "weights", "tokenizer", "chat_template")
        }
        for name, model in models.items()
        if isinstance(model, Target)
    }
    chosen = {key: value for key, value in job.config.items() if key not in _NOT_OF_AN_ANSWER}
    plain: dict[str, Any] = json.loads(json.dumps({**chosen, "models": facts}, default=str))
    return plain
