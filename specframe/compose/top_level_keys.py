"""The keys that belong to no component (`prompt`, `seed`, `device`, ...): types, ranges, checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import torch

from specframe.compose.binding import MISSING, bind
from specframe.errors import ConfigError
from specframe.law.sampling import PROCESSOR, SamplingConfig
from specframe.law.user_classes import user_class
from specframe.prompts.reader import read_prompts
from specframe.registry import Range
from specframe.session.arguments import BatchSize, MaxNewTokens, Seed
from specframe.session.chat_settings import ChatSettings
from specframe.session.settings import Settings
from specframe.session.stopping import CRITERION, StopConfig

# Keys that take lists, and a bare value of this type as a list of one.
_LISTS: dict[str, dict[str, type]] = {
    "sampling": {"bad_words": str, "processors": str},
    "stop": {"eos": int, "strings": str, "criteria": str},
}


@dataclass(frozen=True, kw_only=True)
class TopLevelKeys:
    """Name, type and range of each key; conf/config.yaml says what it means."""

    prompt: str | int | float | None
    prompts: str | None
    raw: bool
    max_new_tokens: MaxNewTokens
    batch_size: BatchSize
    seed: Seed
    device: str
    threads: Annotated[int, Range(1, 1024)] | None
    objective: str
    require_lossless: bool
    expects: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class ExpectedNumbers:
    """What `expects` must say; its other keys are entries of a manifest."""

    acceptance_length: Annotated[float, Range(0, None)]
    tolerance: Annotated[float, Range(0, None)]


def bind_top_level(plain: dict[str, Any]) -> tuple[dict[str, Any], Settings]:
    """The checked keys that belong to no component, and the settings of an engine among them.

    plain: a whole configuration; what it says about `sampling`, `stop` and `chat` is bound as well.
    Raises ConfigError.
    """
    own = {field.name for field in fields(TopLevelKeys)}
    groups = {key for key, value in plain.items() if isinstance(value, dict)} - own
    keys = {key: value for key, value in plain.items() if key not in {*groups, "hydra"}}
    is_marks = keys.get("prompt") == MISSING  # a prompt of three question marks is no missing value
    top = bind(TopLevelKeys, keys | ({"prompt": None} if is_marks else {}), where="")
    top |= {"prompt": MISSING} if is_marks else {}
    listed = {group: _with_lists(plain[group], keys) for group, keys in _LISTS.items()}
    sampling = SamplingConfig(**bind(SamplingConfig, listed["sampling"], where="sampling"))
    stop = StopConfig(**bind(StopConfig, listed["stop"], where="stop"))
    chat = ChatSettings(**bind(ChatSettings, plain["chat"], where="chat"))
    _check(top, sampling, stop, data=plain.get("data") is not None)
    settings = Settings(
        seed=top["seed"],
        max_new_tokens=top["max_new_tokens"],
        sampling=sampling,
        stop=stop,
        raw=top["raw"],
        chat=chat,
    )
    return top, settings


def _with_lists(values: dict[str, Any], keys: Mapping[str, type]) -> dict[str, Any]:
    """The values with a bare one as a list of one, under keys that take lists."""
    bare = {key: [values[key]] for key, kind in keys.items() if type(values.get(key)) is kind}
    return values | bare


def _check(top: dict[str, Any], sampling: SamplingConfig, stop: StopConfig, *, data: bool) -> None:
    """Check what the types cannot say: files and classes exist, keys do not contradict each other.

    data: whether the run has a `data=` word. Raises ConfigError.
    """
    if top["prompt"] is not None and top["prompts"] is not None:
        raise ConfigError("prompt and prompts are both given; keep one")
    if data and (top["prompt"] is not None or top["prompts"] is not None):
        raise ConfigError("data and prompt= or prompts= are both given; keep one")
    if top["prompt"] is not None and not str(top["prompt"]).strip():
        raise ConfigError("prompt is empty; give a text, or leave the key out")
    if top["prompts"] is not None:
        read_prompts(Path(top["prompts"]))
    if top["expects"] is not None:
        names = ("acceptance_length", "tolerance")
        numbers = {key: value for key, value in top["expects"].items() if key in names}
        bind(ExpectedNumbers, numbers, where="expects")
    if (sampling.min_new_tokens or 0) > top["max_new_tokens"]:
        raise ConfigError(
            f"sampling.min_new_tokens={sampling.min_new_tokens} is above "
            f"max_new_tokens={top['max_new_tokens']}; raise max_new_tokens"
        )
    for path in sampling.processors or []:
        user_class(path, where="sampling.processors", base=PROCESSOR)
    for path in stop.criteria or []:
        user_class(path, where="stop.criteria", base=CRITERION)


def device_of(name: str) -> torch.device:
    """The device that `device=name` means. Raises ConfigError if this machine does not have it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device={name}: no such device; use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={name}: this machine has no CUDA device; use device=cpu")
    return device
