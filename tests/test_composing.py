"""The cheap composition of the tests gives what Hydra composes."""

from __future__ import annotations

import hydra
import pytest
from omegaconf import DictConfig, OmegaConf

from specframe.compose.catalogue import CONFIG_NAME, configuration, options
from specframe.compose.overrides import compose
from specframe.errors import ConfigError
from tests.composing import APART, CHOICES, _whole
from tests.turns import rest_slow

WORDS = [
    [],
    ["target=toy", "drafter=ngram", "tree=static", "tree.paths=[[0],[1],[0,0]]"],
    ["drafter=router", "drafter.sources=[ngram,lm]", "++drafter.ngram.n_max=5"],
    ["experiment=speed", "seed=3", "sampling.temperature=0.7"],
    ["target=toy", "prompt='a, b'", "sampling={temperature: 1.0, top_k: 3}", "stop.eos=[3]"],
    ["tree=chain", "+tree.dpeth=3"],
    ["drafter=hello", "data=mt_bench", "device=cpu"],
]
# Each option of the axes that are put together, beside changing others.
with configuration() as LOADER:
    OPTIONS = {axis: options(LOADER, axis) for axis in APART}
for turn in range(max(map(len, OPTIONS.values()))):
    chosen = {axis: names[turn % len(names)] for axis, names in OPTIONS.items()}
    WORDS.append([f"{axis}={name}" for axis, name in chosen.items()])
UNUSUAL = [["~tree.depth"], ["seed=1,2"], ["hydra.job.chdir=true"], ["+tree=chain"], ["tree=nope"]]


def plain(config: DictConfig) -> object:
    """The values, the flags that forbid new keys, and the choices."""
    own = {key: value for key, value in config.items() if key != "hydra"}
    flags = [OmegaConf.is_struct(config), OmegaConf.is_readonly(config)]
    return OmegaConf.to_container(OmegaConf.create(own)), flags, config.hydra.runtime.choices


@pytest.mark.parametrize("words", rest_slow(WORDS, fast=16), ids=" ".join)
def test_cheap_composition_is_hydras(words: list[str]) -> None:
    with configuration():
        whole = _whole(CONFIG_NAME, [*words], True)
        for _ in range(2):
            made = CHOICES.compose(CONFIG_NAME, words)
            assert made is not None
            assert plain(made) == plain(whole)
            made.seed = 99  # a copy: the next one does not see it


@pytest.mark.parametrize("words", UNUSUAL, ids=" ".join)
def test_the_unusual_is_left_to_hydra(words: list[str]) -> None:
    with configuration():
        try:
            made = CHOICES.compose(CONFIG_NAME, words)
        except hydra.errors.HydraException:
            made = None
    assert made is None


def test_mistakes_are_those_of_hydra(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["tree.dpeth=3"], ["drafter=eagel"], ["tree.depth.x=1"], ["seed=1,2"]):
        with pytest.raises(ConfigError) as cheap:
            compose(words)
        with monkeypatch.context() as patch:
            patch.setattr(hydra, "compose", _whole)
            with pytest.raises(ConfigError) as whole:
                compose(words)
        assert str(cheap.value) == str(whole.value)
