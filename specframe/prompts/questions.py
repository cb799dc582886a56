"""The turns of a prompt file as the questions that a model is asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specframe.errors import ConfigError
from specframe.prompts.answers import Answer, Key
from specframe.prompts.reader import PromptRecord, read_prompts
from specframe.session.engine import Engine
from specframe.session.prompt_encoding import Prompt


@dataclass(frozen=True, kw_only=True)
class NamedPrompt:
    """A prompt and the name under which its answers are filed."""

    id: str | int  # the prompt's own id, or a digest of its turns
    record: PromptRecord


@dataclass(frozen=True, kw_only=True)
class Question:
    """One turn of a prompt, as the model sees it."""

    prompt: NamedPrompt
    turn: int  # from 0
    tokens: list[int]  # the conversation up to where the model speaks

    @property
    def key(self) -> Key:
        """The key of its answer."""
        return self.prompt.id, self.turn

    def answer(self, tokens: list[int], *, eos: Sequence[int]) -> Answer:
        """The answer that consists of `tokens`. eos: ids that end a text."""
        record = self.prompt.record
        return Answer(
            id=self.prompt.id,
            turn=self.turn,
            category=record.category,
            source=record.source,
            turns=record.turns[: self.turn + 1],
            prompt_tokens=self.tokens,
            tokens=tokens,
            finish_reason="eos" if tokens[-1] in eos else "length",
        )


def read_named_prompts(path: Path | None) -> list[NamedPrompt]:
    """The prompts of a file, equal ones once. Raises ConfigError if two prompts share an id."""
    if path is None:
        raise ConfigError("task=distill needs prompts= (a file, or builtin)")
    by_id: dict[str | int, NamedPrompt] = {}
    for record in read_prompts(path):
        name = record.digest if record.id is None else record.id
        prompt = NamedPrompt(id=name, record=record)
        if by_id.setdefault(name, prompt).record.digest != record.digest:
            raise ConfigError(f"prompts={path}: the id {name} stands for two prompts; make it one")
    return list(by_id.values())


def digest_of(prompts: Sequence[NamedPrompt]) -> str:
    """sha256 of the ids and the turns of prompts, in order."""
    text = json.dumps([[prompt.id, *prompt.record.turns] for prompt in prompts])
    return hashlib.sha256(text.encode()).hexdigest()


def encode_turns(
    engine: Engine, record: PromptRecord, before: Sequence[Sequence[int]]
) -> list[int]:
    """Token ids of the user's next turn, up to where the model speaks.

    before: token ids of the model's answers to the turns before.
    """
    return engine.encode(conversation(engine, record, [engine.decode(tokens) for tokens in before]))


def conversation(engine: Engine, record: PromptRecord, answers: Sequence[str]) -> Prompt:
    """The prompt for the turn after `answers`: one text, or messages with their roles."""
    texts = [text for pair in zip(record.turns, answers, strict=False) for text in pair]
    texts.append(record.turns[len(answers)])
    roles = ("user", "assistant")
    messages = [*record.before, *((roles[i % 2], text) for i, text in enumerate(texts))]
    if engine.is_plain or len(messages) == 1:
        return "\n\n".join(content for _, content in messages)
    return [{"role": role, "content": content} for role, content in messages]


def batches_of(
    questions: Sequence[Question], *, room: int, max_rows: int, max_tokens: int
) -> Iterator[list[Question]]:
    """Batches of questions of similar length, short ones first.

    room: tokens of an answer. max_tokens: limit of a batch's rows times (longest question + room).
    """
    batch: list[Question] = []
    for question in sorted(questions, key=lambda question: len(question.tokens)):
        full = (len(batch) + 1) * (len(question.tokens) + room) > max_tokens
        if batch and (full or len(batch) == max_rows):
            yield batch
            batch = []
        batch.append(question)
    if batch:
        yield batch


def batch_seed(seed: int, batch: Sequence[Question]) -> int:
    """Seed of a batch's noise: the same for the same questions, whatever came before."""
    text = json.dumps([seed, [question.key for question in batch]])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
