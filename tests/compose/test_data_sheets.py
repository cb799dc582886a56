"""`list` and `explain` say what the YAML files and the classes say of themselves."""

from __future__ import annotations

import pytest

from specframe.compose import catalogue
from specframe.compose.axes import AXES
from specframe.compose.data_sheets import answer
from specframe.errors import ConfigError


def test_every_option_of_every_axis_is_listed_with_a_sentence() -> None:
    shown = answer(["list"])
    with catalogue.configuration() as loader:
        for axis in catalogue.groups(loader):
            default = catalogue.default_choices(loader)[axis] or "none"
            lines = shown.partition(f"{axis}= (default: {default})\n")[2].partition("\n\n")[0]
            listed = {line.split()[0]: line.split(maxsplit=1)[1:] for line in lines.splitlines()}
            assert list(listed) == catalogue.options(loader, axis)
            assert all(listed.values()), f"an option of {axis} has no sentence in its YAML file"


def test_an_axis_is_listed_alone() -> None:
    assert answer(["list", "cache"]) == answer(["explain", "cache"])
    first, *lines = answer(["list", "cache"]).splitlines()
    assert first == "cache= (default: dynamic)"
    assert [line.split()[0] for line in lines] == ["dynamic", "static"]


def test_an_option_is_its_comment_its_data_sheet_and_its_keys() -> None:
    title, comment, sheet, *_, keys = answer(["explain", "drafter=ngram"]).split("\n\n")
    assert (title, comment) == ("drafter=ngram", "Prompt lookup (Saxena 2023).")
    assert sheet.startswith("Finds earlier occurrences of the context's last n tokens")
    assert (
        keys.splitlines()[0] == "  drafter.n_max = 3        tokens of the longest suffix looked up"
    )
    assert len(keys.splitlines()) == 4


def test_every_component_has_a_data_sheet() -> None:
    with catalogue.configuration() as loader:
        asked = [
            f"{axis}={option}"
            for axis in (*AXES, "train")
            for option in catalogue.options(loader, axis)
            if option_is_component(axis, option)
        ]
    for word in asked:
        axis, _, option = word.partition("=")
        cls = AXES[axis].get(option) if axis in AXES else None
        shown = answer(["explain", word])
        first = (cls.__doc__ or "").strip().splitlines()[0] if cls is not None else ""
        assert first in shown, word
        assert len(shown.split("\n\n")) >= 3, word


def option_is_component(axis: str, option: str) -> bool:
    """Whether an option is no preset of another one."""
    with catalogue.configuration() as loader:
        return catalogue.schema(loader, axis, option).get("name") == option


def test_a_preset_names_what_it_is_of() -> None:
    shown = answer(["explain", "target=smollm2", "drafter=hello"])
    assert shown.startswith("target=smollm2, a preset of target=hf\n\nSmolLM2-135M-Instruct")
    assert "\n\ndrafter=hello\n\nThe example plugin." in shown
    assert "  drafter.span = 2    tokens that must occur before\n" in shown


def test_a_key_is_explained_by_its_own_comment() -> None:
    assert answer(["explain", "seed"]) == "  seed = 0  of all random streams: same seed, same text"
    assert answer(["explain", "sampling.top_k"]) == (
        "  sampling.top_k = null  keep the k likeliest tokens"
    )
    assert "  sampling.temperature = 0.0            0: greedy\n" in answer(["explain", "sampling"])
    depths = answer(["explain", "tree.depth"]).splitlines()
    assert depths[:2] == ["tree.depth", ""] and len(depths) > 6
    assert "  tree=auto: depth = 10             longest drafted path" in depths


def test_a_tracker_and_an_experiment_show_what_can_be_set() -> None:
    shown = answer(["explain", "tracker=mlflow"])
    assert "hydra.callbacks.mlflow.uri = null" in shown and "null: MLFLOW_TRACKING_URI" in shown
    assert "_target_" not in shown
    assert "\n    - override /tree: dynamic\n" in answer(["explain", "experiment=eagle2"])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["explain"], "explain needs a word or a key: explain drafter=eagle"),
        (["explain", "drafter=eagel"], "drafter=eagel: no such option.*Did you mean 'eagle'"),
        (["explain", "sead"], "sead: no such key.*Did you mean 'seed'"),
        (["explain", "sampling.topk"], "sampling.topk: no such key.*Did you mean 'sampling.top_k'"),
        (["explain", "tree.nope"], "tree.nope: no option of tree has the field 'nope'"),
        (["list", "drafers"], "drafers: no such axis.*Did you mean 'drafter'"),
    ],
)
def test_what_does_not_exist_is_named(words: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        answer(words)
