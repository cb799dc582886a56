"""Writes the target's own answers to a prompt file, on which draft heads are trained."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, ClassVar

from specframe.errors import ConfigError, IncompatibleComponents
from specframe.law.sampling import GREEDY_BELOW
from specframe.prompts.answers import AnswerFile, read_answers, write_compact
from specframe.prompts.questions import (
    NamedPrompt,
    Question,
    batch_seed,
    batches_of,
    digest_of,
    encode_turns,
    read_named_prompts,
)
from specframe.registry import Range
from specframe.session.batched import Batched, packed
from specframe.session.engine import Engine
from specframe.session.manifest import identity
from specframe.session.model_facts import model_facts
from specframe.storage.lines import check_settings, settings_path
from specframe.task.base import TASKS, Job, Task
from specframe.terminal.progress import PromptProgress

_WARPERS = ("temperature", "top_k", "top_p", "min_p", "typical_p")  # a row at a time, no prefix


@TASKS.register("distill")
class Distill(Task):
    """Answers every prompt of `prompts=` with the target alone, in batches, by transformers.

    A conversation is answered turn by turn on top of the model's own answers. Prompts are sorted by
    length within windows of the file. The noise is keyed by the seed and the prompts of a batch, so
    that a run which was killed and went on gives the same text at any temperature.

    The run leaves a JSONL file with one object for each answer (`prompts.answers.Answer`): id,
    turn, category, source, turns, prompt_tokens, tokens and finish_reason. The same command goes on
    after a kill with the answers that are missing. A file that was made with other settings, by
    another model or for other prompts is refused; in greedy decoding prompts may be added.
    """

    uses_drafter: ClassVar[bool] = False
    unpacked_weights: ClassVar[bool] = True
    outputs: ClassVar[tuple[str, ...]] = ("output", "compact")

    def __init__(
        self,
        *,
        output: str,
        compact: str | None,
        batch_size: Annotated[int, Range(1, 4096)],
        batch_tokens: Annotated[int, Range(1, None)],
        window: Annotated[int, Range(1, None)],
        max_prompt_tokens: Annotated[int, Range(1, None)],
        packed: bool,
    ) -> None:
        self.output = output
        self.compact = compact
        self.batch_size = batch_size
        self.batch_tokens = batch_tokens
        self.window = window
        self.max_prompt_tokens = max_prompt_tokens
        self.packed = packed

    def check(self, config: dict[str, Any]) -> None:
        if config["prompts"] is None:
            raise ConfigError("task=distill needs prompts= (a file, or builtin)")
        _check_taken(config["sampling"], config["stop"])

    def run(self, job: Job) -> int:
        engine = job.engine
        model = _model_of(engine)
        options = _generate_options(engine)
        subjects = read_named_prompts(job.prompts)
        bare = Path(self.output).name == self.output
        path = job.output_dir / self.output if bare else Path(self.output)
        settings = self._settings(job, subjects, options)
        if self.compact is not None:
            check_settings(
                Path(self.compact), settings, named_by="task.compact", contents="answers"
            )
        batched = Batched(
            model,
            eos=engine.eos_ids,
            max_new_tokens=engine.settings.max_new_tokens,
            options=options,
        )
        fast = packed(model, rows=self.batch_size) if self.packed else nullcontext()
        keys = {(s.id, turn) for s in subjects for turn in range(len(s.record.turns))}
        with AnswerFile(path, settings=settings, named_by="task.output") as file, fast:
            file.check_prompts({subject.id: subject.record.turns for subject in subjects})
            num_done = len(keys & set(file.tokens_of))
            progress = PromptProgress("distill", total=len(keys), done=num_done)
            work = _Work(self, engine=engine, batched=batched, file=file, progress=progress)
            try:
                with progress:
                    work.answer_all(subjects)
            finally:
                _say(f"{len(file.tokens_of)} answers in {path}; now {progress.note()}")
                if work.num_left_out:
                    limit = f"task.max_prompt_tokens={self.max_prompt_tokens} or than the context"
                    _say(f"{work.num_left_out} left out: refused, or longer than {limit}")
        if self.compact is not None:
            _write_compact(Path(self.compact), path)
        return 0

    def _settings(
        self, job: Job, subjects: Sequence[NamedPrompt], options: dict[str, Any]
    ) -> dict[str, Any]:
        """Everything that the answers depend on."""
        engine = job.engine
        target = engine.components.target
        settings = {
            **model_facts(identity(target, target.name), job.config.get("target", {})),
            "raw": engine.settings.raw,
            "chat": asdict(engine.settings.chat),
            "eos": list(engine.eos_ids),
            "max_new_tokens": engine.settings.max_new_tokens,
            "seed": engine.settings.seed,
            "sampling": options,
        }
        if not options:
            return settings
        # The noise of an answer is keyed by all prompts of its batch.
        names = ("batch_size", "batch_tokens", "window")
        batches = {f"task.{name}": getattr(self, name) for name in names}
        return settings | batches | {"prompts_sha256": digest_of(subjects)}


class _Work:
    """The answering of all prompts of a run."""

    def __init__(
        self,
        task: Distill,
        *,
        engine: Engine,
        batched: Batched,
        file: AnswerFile,
        progress: PromptProgress,
    ) -> None:
        self.num_left_out = 0
        self._task = task
        self._engine = engine
        self._batched = batched
        self._file = file
        self._progress = progress
        context = engine.components.target.gives.max_positions or sys.maxsize
        self._longest = min(task.max_prompt_tokens, context - batched.max_new_tokens)
        self._greedy = engine.settings.sampling.temperature < GREEDY_BELOW

    def answer_all(self, subjects: Sequence[NamedPrompt]) -> None:
        """Answer window by window, within a window turn by turn, and a turn in sorted batches."""
        for start in range(0, len(subjects), self._task.window):
            window = subjects[start : start + self._task.window]
            for turn in range(max(len(subject.record.turns) for subject in window)):
                for batch in batches_of(
                    list(self._questions(window, turn)),
                    room=self._batched.max_new_tokens,
                    max_rows=self._task.batch_size,
                    max_tokens=self._task.batch_tokens,
                ):
                    self._answer(batch)

    def _questions(self, window: Sequence[NamedPrompt], turn: int) -> Iterator[Question]:
        """The questions of one turn that fit into the context.

        Answered ones are left out in greedy decoding alone: elsewhere they key the batch's noise.
        """
        tokens_of = self._file.tokens_of
        for subject in window:
            is_there = (subject.id, turn) in tokens_of
            if turn >= len(subject.record.turns) or (is_there and self._greedy):
                continue
            before = [tokens_of.get((subject.id, earlier), []) for earlier in range(turn)]
            tokens = self._encoded(subject, before) if all(before) else []
            if 0 < len(tokens) <= self._longest:
                yield Question(prompt=subject, turn=turn, tokens=tokens)
            else:
                self.num_left_out += 1
                self._progress.add_prompts(1)

    def _encoded(self, subject: NamedPrompt, before: Sequence[Sequence[int]]) -> list[int]:
        try:
            return encode_turns(self._engine, subject.record, before)
        except ConfigError as error:
            _say(f"prompt {subject.id}: {' '.join(str(error).split())}")
            return []

    def _answer(self, batch: Sequence[Question]) -> None:
        tokens_of = self._file.tokens_of
        missing = [question for question in batch if question.key not in tokens_of]
        if not missing:
            return
        answers = self._batched.answer(
            [question.tokens for question in batch],
            seed=batch_seed(self._engine.settings.seed, batch),
            tick=self._progress.add_tokens,
        )
        eos = self._engine.eos_ids
        pairs = zip(batch, answers, strict=True)
        self._file.add([q.answer(tokens, eos=eos) for q, tokens in pairs if q.key not in tokens_of])
        self._progress.add_prompts(len(missing))


def _model_of(engine: Engine) -> Any:
    """The target's model of transformers. Raises IncompatibleComponents without one."""
    target = engine.components.target
    if (model := getattr(target, "model", None)) is None:
        text = f"task=distill needs a model of transformers, target={target.name} is none"
        raise IncompatibleComponents(f"{text}; use target=hf")
    return model


def _write_compact(small: Path, path: Path) -> None:
    """Write the answers of `path` as token ids, with the same settings beside them."""
    size = write_compact(small, read_answers(path))
    shutil.copyfile(settings_path(path), settings_path(small))
    _say(f"{size} bytes of token ids in {small}")


def _generate_options(engine: Engine) -> dict[str, Any]:
    """Options of transformers' `generate` for the sampling; {} if greedy. Raises ConfigError."""
    sampling = asdict(engine.settings.sampling)
    _check_taken(sampling, asdict(engine.settings.stop))
    chosen = {key: sampling[key] for key in _WARPERS if sampling[key] is not None}
    return {} if chosen["temperature"] < GREEDY_BELOW else {"do_sample": True, "top_k": 0, **chosen}


def _check_taken(sampling: dict[str, Any], stop: dict[str, Any]) -> None:
    """Raise ConfigError for a setting that batched answers cannot follow."""
    for group, settings, supported in (("sampling", sampling, _WARPERS), ("stop", stop, ("eos",))):
        for key, value in settings.items():
            if key not in supported and value is not None:
                raise ConfigError(
                    f"{group}.{key}={value}: task=distill takes {group}.{' and '.join(supported)} "
                    f"alone; leave {group}.{key}=null"
                )


def _say(text: str) -> None:
    sys.stderr.write(f"distill: {text}\n")
