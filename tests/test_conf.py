"""Every YAML file composes, binds to a signature with no key missing or left over, and explains."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import OmegaConf

from specframe.compose import catalogue
from specframe.compose.axes import AXES, bind_axis
from specframe.compose.binding import bind
from specframe.compose.build import plan
from specframe.compose.overrides import compose
from specframe.errors import IncompatibleComponents
from specframe.plugins import bootstrap

ROOT = Path(__file__).resolve().parents[1]
PLAIN = (dict, list, str, int, float, bool, type(None))
# What a user must fill in.
GIVEN = {
    "path": "a/folder",
    "answers": "answers.jsonl",
    "trace": "a/folder",
    "repository": "a/suite",
    "file": "q.jsonl",
    "runs": "outputs",
}


def folders() -> list[Path]:
    """The project's conf and those of the plugins in this checkout."""
    plugins = [plugin.conf for plugin in bootstrap().plugins if plugin.conf is not None]
    return [ROOT / "conf", *(conf for conf in plugins if ROOT in conf.parents)]


FILES = [file for folder in folders() for file in sorted(folder.rglob("*.yaml"))]
OPTIONS = [
    (file.parent.name, file.stem)
    for folder in folders()
    for file in sorted(folder.glob("*/*.yaml"))
    if file.parent.name in AXES
]
MEASURING = ("speed", "gpu_check")  # no paper's recipe: they ask what this machine does
EXPERIMENTS = [file for file in FILES if file.parent.name == "experiment"]


def values(axis: str, option: str) -> dict[str, Any]:
    """What an option's file holds."""
    with catalogue.configuration() as loader:
        return catalogue.schema(loader, axis, option)


def test_something_is_tested() -> None:
    assert len(OPTIONS) >= 20
    assert {axis for axis, _ in OPTIONS} == set(AXES)
    assert ("drafter", "hello") in OPTIONS


@pytest.mark.parametrize(("axis", "option"), OPTIONS)
def test_an_option_binds_with_no_key_missing_or_left_over(axis: str, option: str) -> None:
    held = {
        key: GIVEN.get(key, value) if value == "???" else value
        for key, value in values(axis, option).items()
    }
    bound = bind_axis(axis, held, option)
    supplied = {key for key in held if key not in bound.values} - {"name"}
    assert supplied <= set(bound.hints), "what build supplies may be named in the YAML"
    parameters = set(bound.hints) - {"return"}
    injected = {"device", "runtime", "target", "new_cache", "truth", "launch"}
    unset = parameters - set(bound.values) - injected - supplied
    assert not unset, f"no value anywhere for {unset}"


@pytest.mark.parametrize(("axis", "option"), OPTIONS)
def test_an_option_composes(axis: str, option: str) -> None:
    words = [f"{axis}={option}"]
    words += [
        f"{axis}.{key}={GIVEN[key]}"
        for key, value in values(axis, option).items()
        if value == "???"
    ]
    if axis != "target":
        words.append("target=toy")
    config = compose(words)
    try:
        made = plan(config)
    except IncompatibleComponents:
        return  # test_pairs has the combinations
    assert made.bound[axis].word in (option, values(axis, option)["name"])


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_says_what_it_is(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    if "hydra/help" in str(file):
        return  # its text is the help itself
    assert text.startswith("# "), "the first line says what it is, and whose paper"
    # Hydra's callbacks are named in its own way.
    assert "_target_" not in text or file.parent.name in ("callbacks", "tracker")
    assert not re.search(r"[ \t]+$", text, re.MULTILINE)
    for line in text.splitlines():
        key = re.match(r"^([a-z_]+): (?!\?\?\?)\S", line)
        if key and file.parent.name in AXES and key[1] not in ("name", "path", "paths", "texts"):
            assert "#" in line, f"{key[1]} has no unit and no reason"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_component_files_are_flat_and_short(file: Path) -> None:
    if file.parent.name not in AXES:
        return
    held = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert not any(isinstance(value, dict) for value in held.values())
    assert len(held) <= 13


@pytest.mark.parametrize("file", EXPERIMENTS or [None], ids=str)
def test_experiments_are_short_and_plan(file: Path | None) -> None:
    if file is None:
        pytest.skip("no recipe yet")
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 15
    plan(compose([f"experiment={file.stem}"]))
    if file.stem in MEASURING:
        return
    text = file.read_text(encoding="utf-8")
    assert re.search(r"arXiv \d{4}\.\d{5}", text)
    length = re.search(r"acceptance(_length: | length )\d\.\d\d", text)
    # Some papers claim a speed alone.
    assert length or re.search(r"Claimed.*?\d\.\d+x", text, re.DOTALL)
    assert length or file.stem not in ("sps", "pld", "medusa1", "medusa2", "eagle1", "eagle2")


def test_defaults_plan_and_are_all_there() -> None:
    made = plan(compose([]))
    words = [made.config[axis]["name"] for axis in ("drafter", "tree", "accept")]
    assert words == ["ngram", "dynamic", "match"], "eagle loses on the first built-in prompt"
    for key in ("prompt", "prompts", "max_new_tokens", "seed", "device", "require_lossless", "raw"):
        assert key in made.top
    for path in ("tree.depth", "tree.max_nodes", "target.path", "sampling.top_k"):
        assert OmegaConf.select(compose([]), path, default="absent") != "absent", path
    assert OmegaConf.select(compose(["tree=dynamic"]), "tree.top_k") is not None


def test_nothing_of_the_configuration_library_gets_past_build() -> None:
    made = plan(compose(["tree=static", "target=toy", "stop.eos=[1,2]"]))

    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(map(plain, value.values()))
        return all(map(plain, value)) if isinstance(value, list) else type(value) in PLAIN

    assert plain(made.config)
    for bound in made.bound.values():
        assert plain(bound.values)
    paths = made.bound["tree"].values["paths"]
    assert pickle.loads(pickle.dumps(paths)) == paths
    assert torch.tensor([path[0] for path in paths]).shape == (len(paths),)


def test_a_surplus_key_would_be_found() -> None:
    held = values("tree", "chain") | {"unread": 1}
    with pytest.raises(ValueError, match="unread"):
        bind(AXES["tree"].get("chain"), held, where="tree")
