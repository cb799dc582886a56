"""Configurations that follow from a run's own: of its draft model, inner loop and plain decoding.

Composition makes them, since a drafter may not know how the run that uses it was composed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf, open_dict

from specframe.compose import catalogue
from specframe.compose.axes import BoundOption
from specframe.compose.overrides import compose
from specframe.errors import ConfigError
from specframe.records import InnerLoop

_NO_STOP: dict[str, Any] = {"eos": [], "strings": None, "criteria": None}


def draft_config(word: str | None, target: BoundOption) -> dict[str, Any]:
    """The values of the target option that a drafter's `model` names; a path means target=hf.

    The draft model has the dtype of the target. Raises ConfigError if neither `word` nor the
    target names a draft.
    """
    word = word or target.values.get("draft")
    if word is None:
        raise ConfigError(
            f"drafter.model: no draft is known for target={target.word}; give "
            "drafter.model= a target option, hub name or folder of a smaller model"
        )
    with catalogue.configuration() as loader:
        option = word if word in catalogue.options(loader, "target") else "hf"
        catalogue.check_named(loader, "target", option)
        config = catalogue.schema(loader, "target", option)
    own = target.values
    if option != word:
        same = _is_one_folder(word, own.get("path"))
        config["path"] = own["path"] if same else word
    return config | {key: own[key] for key in ("dtype",) if key in own and key in config}


def _is_one_folder(word: str, path: str | None) -> bool:
    """Whether two spellings name the same existing folder, which is then loaded only once."""
    places = [Path(place) for place in (word, path) if place]
    return len(places) == 2 and all(map(Path.exists, places)) and places[0].samefile(places[1])


def inner_config(
    drafter: BoundOption, target: BoundOption, config: dict[str, Any], device: torch.device
) -> DictConfig:
    """The configuration of a drafter's inner loop, on the same device as the run.

    config: the run's own. The words are the options that the drafter lists, with its `model` as the
    target; or a mapping `{axis: word, key: value}` under the name of the constructor's parameter.
    The inner loop samples as the run does, but from a seed of its own, and nothing stops it.
    """
    (name,) = (name for name, hint in drafter.hints.items() if hint is InnerLoop)
    cache = config["cache"]
    parts: dict[str, Any] = {"runtime": config["runtime"], "stop": _NO_STOP}
    parts["sampling"] = config["sampling"]
    # The run's capacity is meant for the keys of its target.
    parts["cache"] = cache | {"capacity": None} if "capacity" in cache else cache
    words: dict[str, Any] = {"seed": config["seed"] + 1, "device": device}
    words["max_new_tokens"] = config["max_new_tokens"]
    if drafter.nested:
        parts |= {option.axis: option.given for option in drafter.nested}
        parts["target"] = draft_config(drafter.given.get("model"), target)
    else:
        words |= drafter.given.get(name) or {}
    composed = compose([f"{key}={value}" for key, value in words.items()])
    chosen = {key.partition(".")[0] for key in words}
    with open_dict(composed):
        for axis, values in parts.items():
            if axis not in chosen:
                composed[axis] = values
    return composed


def undrafted_config(config: dict[str, Any]) -> DictConfig:
    """The configuration of plain decoding, which gives the text that the run must give."""
    plain = {"drafter": "none", "tree": "chain", "accept": "match"}
    with catalogue.configuration() as loader:
        options = {axis: catalogue.schema(loader, axis, word) for axis, word in plain.items()}
    return OmegaConf.create({**config, **options})
