"""The turns of a prompt file, each as the model will see it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specframe.errors import ConfigError
from specframe.prompts.answers import Answer, Key
from specframe.prompts.reader import PromptRecord, read_prompts
from specframe.session.engine import Engine, Prompt


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A prompt record with the id its answers go by."""

    id: str | int
    record: PromptRecord


@dataclass(frozen=True, kw_only=True)
class Question:
    """One turn, as the model sees it."""

    subject: Subject
    turn: int
    tokens: list[int]

    @property
    def key(self) -> Key:
        return self.subject.id, self.turn

    def answered(self, tokens: list[int], *, eos: Sequence[int]) -> Answer:
        """The answer to it."""
        record = self.subject.record
        return Answer(
            id=self.subject.id,
            turn=self.turn,
            category=record.category,
            source=record.source,
            turns=record.turns[: self.turn + 1],
            prompt_tokens=self.tokens,
            tokens=tokens,
            finish_reason="eos" if tokens[-1] in eos else "length",
        )


def read_subjects(path: Path | None) -> list[Subject]:
    """The prompts; one without an id goes by a digest of its turns. Equal ones are asked once."""
    if path is None:
        raise ConfigError("task=distill needs prompts= (a file, or builtin)")
    found: dict[str | int, Subject] = {}
    for record in read_prompts(path):
        digest = hashlib.sha256(json.dumps(record.turns).encode()).hexdigest()[:16]
        name = digest if record.id is None else record.id
        subject = Subject(id=name, record=record)
        if found.setdefault(name, subject).record.turns != record.turns:
            raise ConfigError(f"prompts={path}: the id {name} stands for two prompts; make it one")
    return list(found.values())


def encode_turns(
    engine: Engine, turns: Sequence[str], before: Sequence[Sequence[int]]
) -> list[int]:
    """Ids of the user's turn after `before`, the model's answers so far, up to where it speaks."""
    return engine.encode(conversation(engine, turns, [engine.decode(tokens) for tokens in before]))


def conversation(engine: Engine, turns: Sequence[str], answers: Sequence[str]) -> Prompt:
    """The user's turn after `answers`, as the engine is asked: one text, or messages in turns."""
    texts = [text for pair in zip(turns, answers, strict=False) for text in pair]
    texts.append(turns[len(answers)])
    tokenizer = engine.parts.target.tokenizer
    plain = engine.settings.raw or tokenizer is None or tokenizer.chat_template is None
    if plain or len(texts) == 1:
        return "\n\n".join(texts)
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def batches_of(
    questions: Sequence[Question], *, room: int, max_rows: int, max_tokens: int
) -> Iterator[list[Question]]:
    """Batches of similar length, short ones first. max_tokens: rows times (longest + room)."""
    batch: list[Question] = []
    for question in sorted(questions, key=lambda one: len(one.tokens)):
        full = (len(batch) + 1) * (len(question.tokens) + room) > max_tokens
        if batch and (full or len(batch) == max_rows):
            yield batch
            batch = []
        batch.append(question)
    if batch:
        yield batch


def batch_seed(seed: int, batch: Sequence[Question]) -> int:
    """Seed of a batch's noise: the same for the same questions, whatever came before."""
    text = json.dumps([seed, [one.key for one in batch]])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
