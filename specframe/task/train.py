"""Trains a draft head on the target's own answers and exports it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import yaml

from specframe.compose.binding import bind
from specframe.errors import ConfigError, MissingResource
from specframe.prompts.answers import Answer, Key, read_answers, read_compact
from specframe.prompts.questions import NamedPrompt, encode_turns, read_named_prompts
from specframe.prompts.reader import read_prompts
from specframe.registry import Range
from specframe.session.batched import packed
from specframe.session.engine import Engine
from specframe.session.manifest import identity
from specframe.session.model_facts import model_facts
from specframe.task.base import TASKS, Job, Task

if TYPE_CHECKING:
    from specframe.train.base import Recipe
    from specframe.training.course import Course
    from specframe.training.schedule import Schedule

# Keys on which the outcome depends; `strategy`, `features` and `cache_gb` say how it is reached.
_LIMITS = ("heldout", "max_length", "cache_dtype", "check_every", "patience", "depth", "devices")
_COMPACT = ".npz"  # how a file of compact answers ends


@TASKS.register("train")
class Train(Task):
    """Trains a draft head by a recipe (`train=eagle`, ...) on the `answers` of task=distill.

    The target is frozen and in eval mode. Its hidden states are computed once, into the folder
    `features` (null: the run's own), which recipes of the same taps can share and which can be
    extended by longer answers. `prompts=` is optional text that counts for the draft vocabulary. A
    held-out share of the prompts says which acceptance length a chain of `depth` tokens would reach
    at temperature 0.

    The run leaves the head in the folder `head/`, which `drafter.path=` loads. The same command
    with the same `hydra.run.dir=` goes on after a kill and ends with the same bits; another recipe,
    other answers or prompts, another target or seed are refused by the key that differs.
    """

    uses_drafter: ClassVar[bool] = False
    unpacked_weights: ClassVar[bool] = True
    outputs: ClassVar[tuple[str, ...]] = ("features",)

    def __init__(
        self,
        *,
        answers: Path,
        heldout: Annotated[float, Range(0.0, 1.0, low_open=True, high_open=True)],
        max_length: Annotated[int, Range(3, None)],
        features: Path | None,
        cache_gb: Annotated[float, Range(0.0, None)],
        cache_dtype: Literal["float16", "bfloat16", "float32", "float64"],
        check_every: Annotated[int, Range(1, None)],
        patience: Annotated[int, Range(1, None)] | None,
        depth: Annotated[int, Range(1, 16)],
        devices: int | str | list[int],
        strategy: str,
    ) -> None:
        self.answers = answers
        self.heldout, self.max_length = heldout, max_length
        self.features, self.cache_gb, self.cache_dtype = features, cache_gb, cache_dtype
        self.check_every, self.patience, self.depth = check_every, patience, depth
        self.devices, self.strategy = devices, strategy

    def check(self, config: dict[str, Any]) -> None:
        if importlib.util.find_spec("lightning") is None:
            raise MissingResource(
                "task=train needs the extra `train`: pip install 'specframe[train]'"
            )
        recipe_of(config)
        _check_answers(self.answers, config["prompts"])

    def run(self, job: Job) -> int:
        self._refuse_sweep(job.output_dir)
        recipe, schedule = recipe_of(job.config)
        answers = read_any(self.answers, job.engine, job.prompts)
        self._course(job, recipe, schedule, answers).run()
        _say(f"drafter={recipe.drafter} drafter.path={job.output_dir / 'head'}")
        return 0

    def _course(
        self, job: Job, recipe: Recipe, schedule: Schedule, answers: list[Answer]
    ) -> Course:
        import torch

        from specframe.training.course import Course
        from specframe.training.feature_cache import PACK_ROWS
        from specframe.training.fit import TrainerSettings
        from specframe.training.origin import sources
        from specframe.training.samples import split

        target = job.engine.components.target
        named = identity(target, target.name)
        return Course(
            recipe=recipe,
            schedule=schedule,
            chosen=job.config["train"],
            target=target,
            identity=named,
            facts=model_facts(named, job.config["target"]),
            samples=split(answers, heldout=self.heldout, max_length=self.max_length),
            wide=_wider_text(job.engine, job.prompts),
            sources=sources(answers, read_prompts(job.prompts) if job.prompts else ()),
            trainer=TrainerSettings(
                accelerator="gpu" if target.device.type == "cuda" else "cpu",
                devices=self.devices,
                strategy=self.strategy,
                check_every=self.check_every,
                patience=self.patience,
            ),
            cache_bytes=int(self.cache_gb * 1e9),
            cache_dtype=getattr(torch, self.cache_dtype),
            depth=self.depth,
            seed=job.engine.settings.seed,
            settings=self._settings(job.prompts),
            folder=job.output_dir,
            features=self.features or job.output_dir / "features",
            faster=lambda: packed(target.model, rows=PACK_ROWS),  # type: ignore[attr-defined]
        )

    def _settings(self, prompts: Path | None) -> dict[str, Any]:
        """What a run that goes on shares, beside recipe, target and answers."""
        text = None if prompts is None else [record.turns for record in read_prompts(prompts)]
        digest = None if text is None else hashlib.sha256(json.dumps(text).encode()).hexdigest()
        keys = {key: getattr(self, key) for key in _LIMITS}
        return {"task": keys, "prompts": {"sha256": digest}}

    def _refuse_sweep(self, folder: Path) -> None:
        """Refuse a sweep where child processes of ddp would each run the whole command again."""
        fresh = self.strategy.startswith(("ddp", "fsdp", "deepspeed")) and "fork" not in (
            self.strategy
        )
        several = self.devices not in (1, "1") and self.strategy == "auto"
        if (fresh or several) and _is_multirun(folder):
            raise ConfigError(
                f"task.strategy={self.strategy} with task.devices={self.devices} starts processes "
                "that would each run the sweep again; leave -m out, or use task.strategy=ddp_fork "
                "or task.devices=1"
            )


def recipe_of(config: dict[str, Any]) -> tuple[Recipe, Schedule]:
    """The recipe that `train=` names, and its schedule. Raises ConfigError."""
    from specframe.train.base import RECIPES
    from specframe.training.schedule import Schedule

    chosen = config.get("train")
    if not isinstance(chosen, dict):
        raise ConfigError("train: no recipe given; choose one, as in task=train train=eagle")
    names = {field.name for field in fields(Schedule)}
    cls = RECIPES.get(chosen["name"])
    own = {key: value for key, value in chosen.items() if key not in names}
    shared = {key: value for key, value in chosen.items() if key in names}
    recipe = cls(**bind(cls, own, where="train"))
    return recipe, Schedule(**bind(Schedule, shared, where="train"))


def read_any(path: Path, engine: Engine, prompts: Path | None) -> list[Answer]:
    """Read answers from a JSONL file, or from a compact one whose prompts are in `prompts`."""
    _check_answers(path, prompts)
    compact = path.suffix == _COMPACT
    if compact:
        answers = _expanded(path, engine, read_named_prompts(prompts))
    else:
        answers = read_answers(path)
    # A file of two runs may hold an answer twice, which must not count twice.
    return list({answer.key: answer for answer in answers}.values())


def _check_answers(path: Path, prompts: Path | str | None) -> None:
    """Raise ConfigError unless there are answers to read."""
    if not path.is_file():
        raise ConfigError(f"task.answers={path}: no such file; task=distill writes one")
    if path.suffix == _COMPACT and prompts is None:
        raise ConfigError(f"task.answers={path}: compact answers need their prompts=")
    if path.suffix == _COMPACT:
        next(read_compact(path), None)
    elif next(read_answers(path), None) is None:
        raise ConfigError(f"task.answers={path}: it holds no answer; task=distill writes them")


def _expanded(path: Path, engine: Engine, prompts: Sequence[NamedPrompt]) -> Iterator[Answer]:
    subjects = {subject.id: subject for subject in prompts}
    before: dict[Key, list[int]] = {}
    for compact in read_compact(path):
        subject = subjects.get(compact.id)
        if subject is None:
            raise ConfigError(f"prompts: the file has no prompt {compact.id!r}, which {path} has")
        before[compact.id, compact.turn] = compact.tokens
        turns = subject.record.turns[: compact.turn + 1]
        yield Answer(
            id=compact.id,
            turn=compact.turn,
            category=subject.record.category,
            source=subject.record.source,
            turns=turns,
            prompt_tokens=encode_turns(
                engine, subject.record, [before[compact.id, turn] for turn in range(compact.turn)]
            ),
            tokens=compact.tokens,
            finish_reason=compact.finish_reason,
        )


def _wider_text(engine: Engine, prompts: Path | None) -> list[list[int]]:
    """Token ids of all turns of a prompt file; [] without a file."""
    tokenizer = engine.components.target.tokenizer
    if prompts is None or tokenizer is None:
        return []
    records = read_prompts(prompts)
    return [tokenizer.encode_plain(turn) for record in records for turn in record.turns]


def _is_multirun(folder: Path) -> bool:
    """Whether the job is one of a sweep, by the record that Hydra leaves in its folder."""
    file = folder / ".hydra" / "hydra.yaml"
    if not file.is_file():
        return False
    mode = yaml.safe_load(file.read_text(encoding="utf-8"))["hydra"].get("mode")
    return str(mode).endswith("MULTIRUN")


def _say(text: str) -> None:
    sys.stderr.write(f"train: {text}\n")
