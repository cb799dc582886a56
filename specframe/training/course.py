"""A whole training: vocabulary, features, fit, the numbers of the best head, export, manifest."""

from __future__ import annotations

import hashlib
import json
import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specframe.errors import ConfigError
from specframe.session.manifest import hardware, surroundings, write_json
from specframe.target.base import Target
from specframe.train.base import FrozenTarget, Recipe, text_config
from specframe.training.chains import ChainTally
from specframe.training.feature_cache import FeatureCache, FeatureReader
from specframe.training.fit import TrainerSettings, fit, load_head
from specframe.training.head_module import HeadInTraining
from specframe.training.loader import AnswerLoader
from specframe.training.origin import earlier, publishable
from specframe.training.samples import (
    Coverage,
    DataSplit,
    coverage,
    frequent_tokens,
    samples_digest,
)
from specframe.training.schedule import Schedule
from specframe.training.warm_start import take_weights, vocabulary_of, weights_digest


@dataclass(frozen=True, kw_only=True)
class Course:
    """One training of a recipe on a target's answers."""

    recipe: Recipe
    schedule: Schedule
    chosen: dict[str, Any]  # keys and values of `train=`, for the manifest
    target: Target
    identity: dict[str, Any]  # the target's fingerprint
    facts: dict[str, Any]  # what of the target its text depends on (see `session.model_facts`)
    samples: DataSplit
    wide: Sequence[Sequence[int]]  # token ids of more text that counts for the vocabulary
    trainer: TrainerSettings
    cache_bytes: int  # of hidden states on disk
    cache_dtype: torch.dtype  # of these states
    depth: int  # drafted tokens of the simulated chain
    seed: int
    settings: dict[str, Any]  # more of the command that a run which goes on must share
    folder: Path  # of the run
    features: Path  # folder of the hidden states
    sources: Sequence[dict[str, Any]] = ()  # of the prompts, for the manifest (see `origin`)
    # A context that speeds up the target's passes while nothing else is computed.
    faster: Callable[[], AbstractContextManager[None]] = nullcontext

    def run(self) -> None:
        """Train, or go on with a run that was cut; leaves `head/` in the folder.

        Raises ConfigError.
        """
        try:
            self._run()
        finally:
            self.recipe.release()

    def _run(self) -> None:
        config = text_config(self.target)
        self.samples.check_tokens(self.target.vocab_size)
        start = self.schedule.start
        trained = None if start is None else self.recipe.load(start)
        ids, share = self._vocabulary(None if trained is None else vocabulary_of(trained))
        frozen = FrozenTarget.of(self.target, ids, half=self.schedule.precision == "bf16-mixed")
        torch.manual_seed(self.seed)
        head = self.recipe.make(self.target, ids)
        if start is not None and trained is not None:
            take_weights(self.recipe.head_in(head), trained, path=start)
            self.recipe.started(head)
        if self.target.dtype == torch.float64:
            head = head.double()
        module = HeadInTraining(
            head,
            recipe=self.recipe,
            frozen=frozen,
            schedule=self.schedule,
            depth=self.depth,
            seed=self.seed,
            identity=self._agreed(trained, ids),
            surroundings=_surroundings(self.target.device),
        )
        data = self._data(config.hidden_size)
        fitted = fit(module, data, settings=self.trainer, folder=self.folder)
        if not fitted.is_main:
            return
        load_head(module, fitted.best)
        tally = self._measured(module, data)
        folder = self.folder / "head"
        self.recipe.export(self._cast(module), folder, target=self.target)
        if ids is not None:
            text = json.dumps(ids.tolist())
            (folder / "vocabulary.json").write_text(text + "\n", encoding="utf-8")
        write_json(folder / "manifest.json", self._manifest(module, tally, share))

    def _vocabulary(self, ids: Tensor | None) -> tuple[Tensor | None, Coverage | None]:
        """The draft vocabulary, and the share of held-out answers that it covers.

        ids: the vocabulary of the head that training starts from, None without one.
        """
        if ids is not None:
            return ids, coverage(self.samples.heldout, ids)
        size = self.recipe.vocabulary
        if size is None or size >= self.target.vocab_size:
            if self.recipe.needs_vocabulary:
                ids = torch.arange(self.target.vocab_size)
                return ids, coverage(self.samples.heldout, ids)
            return None, None
        ids = frequent_tokens(
            self.samples.train,
            size=size,
            vocab_size=self.target.vocab_size,
            more=self.wide,
            always=self.target.eos_ids,
        )
        share = coverage(self.samples.heldout, ids)
        _say(f"a draft vocabulary of {size} covers {share} of the held-out answers' tokens")
        if share.overall < self.recipe.min_coverage:
            raise ConfigError(
                f"train.vocabulary={size} covers {share}, less than train.min_coverage="
                f"{self.recipe.min_coverage}; give a larger one, or more text by prompts="
            )
        return ids, share

    def _agreed(self, trained: torch.nn.Module | None, ids: Tensor | None) -> dict[str, Any]:
        """The values that a checkpoint shares with the run that goes on from it.

        trained: the head that training starts from. ids: the draft vocabulary.
        """
        agreed = {
            "train": self.chosen,
            **self.settings,
            "seed": self.seed,
            "target": self.facts,
            "answers": {
                "train_sha256": samples_digest(self.samples.train),
                "heldout_sha256": samples_digest(self.samples.heldout),
            },
            "vocabulary": {"sha256": None if ids is None else _digest_of(ids.tolist())},
            "start": {"sha256": None if trained is None else weights_digest(trained)},
        }
        plain: dict[str, Any] = json.loads(json.dumps(agreed, default=str))
        return plain

    def _data(self, hidden: int) -> AnswerLoader:
        taps = self.recipe.taps(self.target)
        features = FeatureCache(
            FeatureReader(
                target=self.target,
                taps=taps,
                dtype=self.cache_dtype,
                faster=self.faster,
                original=self.recipe.original,
            ),
            self.samples.all,
            width=hidden * len(taps),
            folder=self.features,
            max_bytes=self.cache_bytes,
            identity=self.facts | {"device": str(self.target.device)},
        )
        return AnswerLoader(
            self.samples,
            features,
            taps=taps,
            prompt_weight=self.recipe.prompt_weight,
            batch_tokens=self.schedule.batch_tokens,
            steps=self.schedule.max_steps,
            seed=self.seed,
        )

    def _measured(self, module: HeadInTraining, data: AnswerLoader) -> ChainTally:
        """The numbers of the best head on the held-out answers."""
        head = module.head.to(self.target.device).eval()
        dtype = next(head.parameters()).dtype
        tally = ChainTally.empty(self.depth)
        for batch in data.val_dataloader():
            moved = batch.to(self.target.device, dtype)
            guesses = self.recipe.guesses(head, module.frozen, moved, depth=self.depth, top=1)
            tally.add(guesses, batch.categories)
        return tally

    def _cast(self, module: HeadInTraining) -> torch.nn.Module:
        # In place: nothing is trained after this.
        return module.head.cpu().to(getattr(torch, self.schedule.dtype))

    def _manifest(
        self, module: HeadInTraining, tally: ChainTally, share: Coverage | None
    ) -> dict[str, Any]:
        cuda = self.target.device.type == "cuda"
        record = {
            "drafter": self.recipe.drafter,
            "target": self.identity,
            "recipe": self.chosen,
            **earlier(self.schedule.start),
            "seed": self.seed,
            "data": {"sha256": self.samples.digest(), **self.samples.counts()},
            "trained_answer_tokens": module.num_tokens,
            "seconds": round(module.seconds, 1),
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "peak_cuda_bytes": torch.cuda.max_memory_allocated() if cuda else None,
            "vocabulary_coverage": None if share is None else asdict(share),
            "heldout": tally.numbers(),
            "heldout_acceptance_length": tally.by_category(),
            "curve": module.curve,
            "sessions": [_portable(each) for each in module.sessions],
            "command": sys.argv,
        }
        return publishable(record, prompt_sources=self.sources)


def _surroundings(device: torch.device) -> dict[str, Any]:
    """What a session ran with: recorded, and free to differ from session to session."""
    around = surroundings({})
    names = ("specframe", "git", "python", "packages")
    return {name: around[name] for name in names} | {"hardware": hardware(device)}


def _portable(session: dict[str, Any]) -> dict[str, Any]:
    """A session without its machine, which stays in the checkpoint and in the run's manifest."""
    return {key: value for key, value in session.items() if key != "hardware"}


def _digest_of(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _say(text: str) -> None:
    sys.stderr.write(f"train: {text}\n")
