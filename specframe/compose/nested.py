"""Compositions inside a composition: drafters over others, and the loops that some are handed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf, open_dict

from specframe.compose import catalogue
from specframe.compose.axes import Bound, bind_axis, with_members
from specframe.compose.nested_options import Option, nested_options
from specframe.compose.overrides import compose
from specframe.errors import ConfigError
from specframe.records import InnerLoop

_NO_STOP: dict[str, Any] = {"eos": [], "strings": None, "criteria": None}


def bind_drafter(values: dict[str, Any], word: str | None = None, where: str = "drafter") -> Bound:
    """A drafter with the options that it lists, and theirs. Raises ConfigError."""
    option = Option(where=where, axis="drafter", word=word or values["name"], values=values)
    with catalogue.configuration() as loader:
        listed = nested_options(option, loader)
    words = {one.word for one in listed}
    own = {key: value for key, value in values.items() if key not in words}
    bound = [
        bind_drafter(one.values, one.word, one.where)
        if one.axis == "drafter"
        else bind_axis(one.axis, one.values, one.word, where=one.where)
        for one in listed
    ]
    made = replace(bind_axis("drafter", own, word, where=where), given=values)
    return with_members(made, bound)


def draft_config(word: str | None, target: Bound) -> dict[str, Any]:
    """The values of a drafter's model: a target option, else a path for target=hf.

    In the dtype of the target. Raises ConfigError where neither `word` nor the target names one.
    """
    word = word or target.values.get("draft")
    if word is None:
        raise ConfigError(
            f"drafter.model: no draft is known for target={target.word}; give "
            "drafter.model= a target option, hub name or folder of a smaller model"
        )
    with catalogue.configuration() as loader:
        option = word if word in catalogue.options(loader, "target") else "hf"
        config = catalogue.schema(loader, "target", option)
    own = target.values
    if option != word:
        same = _is_one_folder(word, own.get("path"))
        config["path"] = own["path"] if same else word
    return config | {key: own[key] for key in ("dtype",) if key in own and key in config}


def _is_one_folder(word: str, path: str | None) -> bool:
    """Whether two spellings name one folder or file here; else it would be loaded twice."""
    places = [Path(place) for place in (word, path) if place]
    return len(places) == 2 and all(map(Path.exists, places)) and places[0].samefile(places[1])


def inner_config(
    drafter: Bound, target: Bound, config: dict[str, Any], device: torch.device
) -> DictConfig:
    """The composition of a drafter's inner loop, on the same device, in the run's `config`.

    Its words are the drafter's members with its `model` as the target, or a mapping
    `{axis: word, key: value}` under the name of the constructor's parameter. It samples as the run
    does, with noise of its own, and never ends a text by itself.
    """
    (name,) = (name for name, hint in drafter.hints.items() if hint is InnerLoop)
    cache = config["cache"]
    parts: dict[str, Any] = {"runtime": config["runtime"], "stop": _NO_STOP}
    parts["sampling"] = config["sampling"]
    # The run's capacity is one for its target's keys.
    parts["cache"] = cache | {"capacity": None} if "capacity" in cache else cache
    words: dict[str, Any] = {"seed": config["seed"] + 1, "device": device}
    words["max_new_tokens"] = config["max_new_tokens"]
    if drafter.members:
        parts |= {one.axis: one.given for one in drafter.members}
        parts["target"] = draft_config(drafter.given.get("model"), target)
    else:
        words |= drafter.given.get(name) or {}
    told = {key.partition(".")[0] for key in words}
    made = compose([f"{key}={value}" for key, value in words.items()])
    with open_dict(made):
        for axis, values in parts.items():
            if axis not in told:
                made[axis] = values
    return made


def undrafted_config(config: dict[str, Any]) -> DictConfig:
    """The run's composition without a draft: what its text is if nobody drafts."""
    plain = {"drafter": "none", "tree": "chain", "accept": "match"}
    with catalogue.configuration() as loader:
        options = {axis: catalogue.schema(loader, axis, word) for axis, word in plain.items()}
    return OmegaConf.create({**config, **options})
