"""Words composed into a configuration from Python, with the sentences of the command line."""

from __future__ import annotations

from collections.abc import Sequence

import hydra
from omegaconf import DictConfig, open_dict

from specframe.compose.catalogue import CONFIG_NAME, configuration
from specframe.compose.explain import COMPOSITION_ERRORS, explain, repeated
from specframe.compose.key_check import check_keys, check_unambiguous
from specframe.compose.literal_words import check_encodable, for_hydra
from specframe.errors import ConfigError


def compose(words: Sequence[str] = ()) -> DictConfig:
    """The configuration of these words, as on the command line.

    Raises ConfigError for a word or a key that does not exist.
    """
    twice = repeated(words)
    if twice is not None:
        raise ConfigError(twice)
    check_encodable(words)
    added = for_hydra(words)
    try:
        with configuration() as loader:
            cfg = hydra.compose(CONFIG_NAME, overrides=added, return_hydra_config=True)
            choices = dict(cfg.hydra.runtime.choices)
            with open_dict(cfg):
                del cfg["hydra"]
            check_keys(cfg, choices=choices, loader=loader)
            check_unambiguous(words, loader)
            return cfg
    except ConfigError:
        raise
    except (*COMPOSITION_ERRORS, ValueError) as exc:
        raise ConfigError(explain(exc, added)) from exc


def checked_words(words: object) -> list[str]:
    """Words as a caller from Python gives them. Raises ConfigError for what is no list of texts."""
    if isinstance(words, str) or not isinstance(words, Sequence):
        example = words if isinstance(words, str) else "drafter=ngram"
        raise ConfigError(f"give a list of words, such as [{example!r}]")
    for word in words:
        if not isinstance(word, str):
            raise ConfigError(f"words are texts, such as ['drafter=ngram']; {word!r} is none")
    return list(words)


def replaced(overrides: Sequence[str], more: Sequence[str]) -> list[str]:
    """`overrides` changed by `more`; a new word of an axis removes the old word and its keys."""
    new = {override.partition("=")[0].lstrip("+") for override in more}
    rest = []
    for override in overrides:
        key = override.partition("=")[0].lstrip("+")
        if key not in new and key.partition(".")[0] not in new:
            rest.append(override)
    return [*rest, *more]
