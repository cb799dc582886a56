"""A tiny target, its own greedy answers, every recipe at its smallest, a training of seconds."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from specframe.prompts.answers import Answer
from specframe.target.base import Target
from specframe.target.hf import HF
from specframe.train.base import Recipe
from specframe.train.eagle import EagleRecipe
from specframe.train.eagle3 import Eagle3Recipe
from specframe.train.hass import HassRecipe
from specframe.train.medusa1 import Medusa1Recipe
from specframe.train.medusa2 import Medusa2Recipe
from specframe.train.mtp import MTPRecipe
from specframe.training.batches import Batch, collate
from specframe.training.course import Course
from specframe.training.feature_cache import FeatureCache, FeatureReader
from specframe.training.fit import TrainerSettings
from specframe.training.samples import DataSplit, TrainingSample, split
from specframe.training.schedule import Schedule
from specframe.tree.chain import ChainTree
from tests.small_models import RUNTIME, Composition, decode, model

PROMPTS, LENGTH = 24, 20


@lru_cache
def small_target(layers: int = 3) -> HF:
    """A random Llama whose text follows from the last tokens: attention is damped."""
    made = model("llama", num_hidden_layers=layers)
    with torch.no_grad():
        for block in made.model.layers:
            block.self_attn.o_proj.weight.mul_(0.02)
            block.mlp.down_proj.weight.mul_(0.02)
    return HF.of(made, runtime=RUNTIME)


@lru_cache
def answers(layers: int = 3) -> tuple[Answer, ...]:
    """Greedy answers to random prompts of several lengths."""
    made = small_target(layers).model
    generator = torch.Generator().manual_seed(0)
    found = []
    for index in range(PROMPTS):
        prompt = torch.randint(0, 97, (3 + index % 5,), generator=generator)
        tokens = prompt[None]
        with torch.no_grad():
            for _ in range(LENGTH - index % 3):
                following = made(tokens, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
                tokens = torch.cat([tokens, following], dim=1)
        found.append(
            Answer(
                id=f"prompt-{index}",
                turn=0,
                category="odd" if index % 2 else "even",
                source=None,
                turns=("",),
                prompt_tokens=prompt.tolist(),
                tokens=tokens[0, len(prompt) :].tolist(),
                finish_reason="length",
            )
        )
    return tuple(found)


def write(path: Path, layers: int = 3) -> Path:
    """The answers as a file."""
    lines = [json.dumps(asdict(one)) for one in answers(layers)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def samples(layers: int = 3) -> DataSplit:
    """The answers in two sides."""
    return split(answers(layers), heldout=0.25, max_length=64)


_EAGLE: dict[str, Any] = {
    "unroll": 2,
    "decay": 1.0,
    "regression": 1.0,
    "soft": 0.1,
    "top": 0,
    "top_weight": 0.0,
    "noise": 0.1,
    "prompt_weight": 0.0,
    "vocabulary": None,
    "min_coverage": 0.0,
    "negatives": None,
    "intermediate": None,
}


def eagle(**changes: Any) -> EagleRecipe:
    """The recipe of the paper, two steps unrolled."""
    return EagleRecipe(**{**_EAGLE, **changes})


def hass(**changes: Any) -> HassRecipe:
    """The numbers of the paper: three steps, the ten likeliest tokens weighed once more."""
    return HassRecipe(**{**_EAGLE, "unroll": 3, "top": 10, "top_weight": 1.0, **changes})


def eagle3(**changes: Any) -> Eagle3Recipe:
    """The recipe of the paper on a target of three blocks."""
    values: dict[str, Any] = {
        "unroll": 3,
        "decay": 0.8,
        "layers": [1, 2, 3],
        "own_rows": True,
        "prompt_weight": 0.0,
        "vocabulary": 90,
        "min_coverage": 0.0,
        "negatives": None,
        "intermediate": None,
    }
    return Eagle3Recipe(**{**values, **changes})


def medusa1(**changes: Any) -> Medusa1Recipe:
    """The recipe of Medusa-1."""
    values: dict[str, Any] = {
        "heads": 3,
        "layers": 1,
        "own_head": False,
        "decay": 0.8,
        "hard": 1.0,
        "soft": 0.0,
        "prompt_weight": 0.0,
        "vocabulary": None,
        "min_coverage": 0.0,
        "negatives": None,
    }
    return Medusa1Recipe(**{**values, **changes})


def medusa2(**changes: Any) -> Medusa2Recipe:
    """The recipe of Medusa-2 on the target's own answers."""
    values: dict[str, Any] = {
        "heads": 3,
        "layers": 1,
        "decay": 0.8,
        "trunk": "kl",
        "lambda_0": 0.2,
        "ramp": "sine",
        "rank": 4,
        "alpha": 8,
        "dropout": 0.05,
        "head_lr": 4.0,
    }
    return Medusa2Recipe(**{**values, **changes})


def mtp(**changes: Any) -> MTPRecipe:
    """One module that is used twice."""
    values: dict[str, Any] = {
        "unroll": 2,
        "decay": 0.6,
        "hard": 1.0,
        "soft": 0.0,
        "feature": "post_norm",
        "recycle": "post_norm",
        "prompt_weight": 0.0,
        "vocabulary": None,
        "min_coverage": 0.0,
        "negatives": None,
        "intermediate": None,
    }
    return MTPRecipe(**{**values, **changes})


def batch_of(
    part: list[TrainingSample],
    taps: tuple[str, ...],
    weight: float = 0.0,
    *,
    target: HF | None = None,
) -> Batch:
    """One batch of samples with the target's states. weight: of the prompts' tokens."""
    tapped = FeatureReader(target=target or small_target(), taps=taps, dtype=torch.float64)
    width = 32 * len(taps)
    features = FeatureCache(
        tapped, part, width=width, folder=Path("unused"), max_bytes=0, identity=None
    )
    return collate(part, features, taps, prompt_weight=weight)


def schedule(**changes: Any) -> Schedule:
    """Twenty steps."""
    values: dict[str, Any] = {
        "start": None,
        "max_steps": 20,
        "batch_tokens": 128,
        "lr": 3e-3,
        "betas": (0.9, 0.95),
        "weight_decay": 0.0,
        "warmup_steps": 2,
        "decay_lr": "cosine",
        "clip": 0.5,
        "precision": "32-true",
        "dtype": "float64",
    }
    return Schedule(**{**values, **changes})


def course(folder: Path, recipe: Recipe, *, target: Target | None = None, **changes: Any) -> Course:
    """A training of the tiny target in `folder`."""
    trainer = TrainerSettings(
        accelerator="cpu",
        devices=1,
        strategy="auto",
        check_every=changes.pop("check_every", 10),
        patience=None,
    )
    values: dict[str, Any] = {
        "recipe": recipe,
        "schedule": schedule(),
        "chosen": {"name": type(recipe).__name__},
        "target": target or small_target(),
        "identity": {"name": "tiny", "weights": "tiny"},
        "facts": {"weights": "tiny"},
        "settings": {},
        "samples": samples(),
        "wide": [],
        "trainer": trainer,
        "cache_bytes": 10**8,
        "cache_dtype": torch.float64,
        "depth": 3,
        "seed": 0,
        "folder": folder,
        "features": folder / "features",
    }
    return Course(**{**values, **changes})


def manifest(folder: Path) -> dict[str, Any]:
    """The manifest of the head that a training left in `folder`."""
    read: dict[str, Any] = json.loads((folder / "head" / "manifest.json").read_text("utf-8"))
    return read


def losses(folder: Path) -> list[float]:
    """The training loss at every validation."""
    return [point["loss"] for point in manifest(folder)["curve"]]


def accepted(drafter: Any) -> int:
    """Drafted tokens accepted over the held-out prompts, whose answers come out as they were."""
    count = 0
    for sample in samples().heldout:
        composed = Composition(
            target=small_target(),
            drafter=drafter,
            tree=ChainTree(depth=3, max_nodes=4, proposal="place"),
        )
        outcome = decode(composed, sample.tokens[: sample.start].tolist(), len(sample.answer))
        assert outcome.tokens == sample.answer.tolist()
        count += outcome.num_accepted
    return count
