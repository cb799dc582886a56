"""Composition made cheap for tests: a choice of options is composed by Hydra once a session.

Hydra takes 0.1 s to compose some words, nearly all of it to put together the files of the options
that they choose, and the suite composes about two thousand times from a hundred options. So the
config of each option is kept, and the values (`tree.depth=3`) are set on a copy by Hydra's own
function. Whatever is unusual goes the whole way: sweeps, deletions, errors, folders of options that
a test writes. `test_composing.py` compares both ways.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hydra
import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from specframe.compose.catalogue import PACKAGE

_OURS = tuple(str(PACKAGE.parent / name) for name in ("conf", "plugins"))
_whole = hydra.compose


# Axes whose options stand apart: what is chosen on one changes nothing under the key of another.
APART = ("target", "drafter", "tree", "accept", "cache", "runtime", "task", "trace")


class Choices:
    """The configs of choices of options, by the places that options come from and the words."""

    def __init__(self) -> None:
        self._configs: dict[tuple[tuple[str, ...], str | None, tuple[str, ...]], DictConfig] = {}

    def compose(self, config_name: str | None, words: Sequence[str]) -> DictConfig | None:
        """What Hydra composes of these words; None where it must be asked itself."""
        loader: Any = GlobalHydra.instance().config_loader()
        places = tuple(source.path for source in loader.get_sources() if source.scheme() == "file")
        parsed = OverridesParser.create().parse_overrides(list(words))
        if not all(place.startswith(_OURS) for place in places) or not all(map(_is_plain, parsed)):
            return None
        choosing = [one for one in parsed if loader.repository.group_exists(one.key_or_group)]
        if any(one.is_force_add() or one.is_add() for one in choosing):
            return None
        config = self._chosen(places, config_name, choosing)
        values = [one for one in parsed if one not in choosing]
        ConfigLoaderImpl._apply_overrides_to_config(values, config)
        return config

    def _chosen(
        self, places: tuple[str, ...], name: str | None, choosing: Sequence[Override]
    ) -> DictConfig:
        """A copy of the config of a choice, put together from those of its words where it can be:
        an experiment chooses on other axes too."""
        lines = [str(one.input_line) for one in choosing]
        is_apart = [one.key_or_group in APART for one in choosing]
        if "experiment" in [one.key_or_group for one in choosing]:
            is_apart = [False] * len(lines)
        rest = tuple(line for line, apart in zip(lines, is_apart, strict=True) if not apart)
        config = copy.deepcopy(self._kept(places, name, rest))
        for one, line, apart in zip(choosing, lines, is_apart, strict=True):
            if apart:
                alone, axis = self._kept(places, name, (line,)), one.key_or_group
                config[axis] = copy.deepcopy(alone[axis])
                config.hydra.runtime.choices[axis] = alone.hydra.runtime.choices[axis]
        return config

    def _kept(
        self, places: tuple[str, ...], name: str | None, words: tuple[str, ...]
    ) -> DictConfig:
        key = places, name, words
        if key not in self._configs:
            self._configs[key] = _without_hydra(_whole(name, [*words], True))
        return self._configs[key]


CHOICES = Choices()  # of this process


def _is_plain(word: Override) -> bool:
    """Whether it chooses an option or sets a value, outside of Hydra's own keys."""
    special = word.is_sweep_override() or word.is_delete() or word.is_hydra_override()
    return not special and word.package is None


def _without_hydra(config: DictConfig) -> DictConfig:
    """The config with no more of Hydra's own keys than which option was chosen in each group."""
    chosen = dict(config.hydra.runtime.choices)
    with open_dict(config):
        del config["hydra"]
        config.hydra = {"runtime": {"choices": chosen}}
    return config


@contextmanager
def cheap() -> Iterator[None]:
    """`hydra.compose` with what it composed before."""

    def compose(
        config_name: str | None, overrides: Sequence[str], return_hydra_config: bool
    ) -> DictConfig:
        assert return_hydra_config
        try:
            config = CHOICES.compose(config_name, overrides)
        except (HydraException, OmegaConfBaseException):
            config = None  # the error is the one of the whole way
        return _whole(config_name, [*overrides], True) if config is None else config

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hydra, "compose", compose)
        yield
