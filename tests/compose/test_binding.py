"""The constructor's signature is the schema: what fits, and one sentence for what does not."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from omegaconf import OmegaConf

from specframe.compose.binding import bind
from specframe.errors import ConfigError
from specframe.registry import Range

if TYPE_CHECKING:
    from nowhere import Target  # type: ignore[import-not-found]


class Chain:
    """Has one parameter of each kind; `target` has a type that does not exist at run time."""

    def __init__(
        self,
        *,
        target: Target,
        depth: Annotated[int, Range(1, 64)],
        proposal: Literal["auto", "place"],
        share: Annotated[float, Range(0, 1, low_open=True)] = 1.0,
        limit: Annotated[int, Range(1)] | None = None,
        eos: Literal["auto"] | list[int] = "auto",
        paths: list[tuple[int, ...]] | None = None,
        label: str | None = None,
        extra: dict[str, Any] | None = None,
        fast: bool = False,
        file: Path | None = None,
    ) -> None: ...


GOOD: dict[str, Any] = {"name": "chain", "depth": 5, "proposal": "auto"}


def bound(**values: Any) -> dict[str, Any]:
    """GOOD with changes, bound as `tree`."""
    return bind(Chain, GOOD | values, where="tree", injected=("target",))


def test_good_values_pass_and_the_name_is_dropped() -> None:
    assert bound() == {"depth": 5, "proposal": "auto"}


@pytest.mark.parametrize(
    ("key", "value", "result"),
    [
        ("share", 1, 1.0),
        ("limit", None, None),
        ("limit", 3, 3),
        ("eos", [1, 2], [1, 2]),
        ("eos", "auto", "auto"),
        ("paths", [[0], [0, 1]], [(0,), (0, 1)]),
        ("extra", {"bits": 4}, {"bits": 4}),
        ("fast", True, True),
        ("label", "6", "6"),
        ("file", "a/b", Path("a/b")),
    ],
)
def test_values_that_fit(key: str, value: Any, result: Any) -> None:
    found = bound(**{key: value})[key]
    assert found == result
    assert type(found) is type(result)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"dpeth": 6},
            "tree.dpeth: tree=chain has no field 'dpeth'; it has depth, proposal, share,",
        ),
        ({"dpeth": 6}, "Did you mean 'depth'?"),
        ({"depth": 99}, "tree.depth=99 is out of range; allowed 1 .. 64"),
        ({"depth": "six"}, "tree.depth=six: expected integer, got 'six' (str)"),
        ({"depth": 6.5}, "tree.depth=6.5: expected integer, got 6.5 (float)"),
        ({"depth": 6.0}, "tree.depth=6.0: expected integer, got 6.0 (float)"),
        ({"depth": True}, "tree.depth=True: expected integer, got True (bool)"),
        ({"depth": None}, "tree.depth=None: expected integer, got None (NoneType)"),
        ({"depth": "???"}, "tree.depth: no value given; tree=chain needs it"),
        ({"share": 0}, "tree.share=0 is out of range; allowed > 0 and <= 1"),
        ({"share": math.nan}, "tree.share=nan is out of range"),
        ({"share": True}, "expected number, got True (bool)"),
        ({"limit": 0}, "tree.limit=0 is out of range; allowed >= 1"),
        ({"limit": "None"}, "integer or null, got 'None' (str); for nothing write tree.limit=null"),
        ({"proposal": "plaec"}, "expected one of auto, place. Did you mean 'place'?"),
        ({"eos": [1, "x"]}, "tree.eos=[1, 'x']: expected auto or list of integer"),
        ({"paths": [[0, "a"]]}, "expected list of list of integer or null"),
        ({"label": 6}, "expected string or null, got 6 (int)"),
        ({"extra": 3}, "expected mapping or null"),
        ({"fast": 1}, "expected true or false, got 1 (int)"),
        ({"target": 1}, "tree.target: tree=chain has no field 'target'"),
    ],
)
def test_messages(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bound(**change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_key_is_named() -> None:
    with pytest.raises(ConfigError, match=r"tree\.depth: no value given; tree=chain needs it"):
        bind(Chain, {"name": "chain", "proposal": "auto"}, where="tree", injected=["target"])


def test_functions_and_the_top_level_bind_too() -> None:
    def settings(*, max_new_tokens: Annotated[int, Range(0)], **others: Any) -> None: ...

    values = {"max_new_tokens": 3, "spare": 1}
    assert bind(settings, values, where="") == values
    with pytest.raises(ConfigError, match=r"^max_new_tokens=-1 is out of range; allowed >= 0$"):
        bind(settings, {"max_new_tokens": -1}, where="")


def test_values_from_yaml_come_out_as_plain_types() -> None:
    cfg = OmegaConf.create({"name": "chain", "depth": 2, "proposal": "auto", "paths": [[0], [1]]})
    values: Any = OmegaConf.to_container(cfg)
    result = bind(Chain, values, where="tree", injected=["target"])
    assert pickle.loads(pickle.dumps(result)) == result
    assert json.loads(json.dumps(result))["paths"] == [[0], [1]]


@pytest.mark.parametrize(
    ("interval", "inside", "outside", "text"),
    [
        (Range(1, 3), [1, 3], [0, 4], "1 .. 3"),
        (Range(0, None, low_open=True), [0.1, math.inf], [0, -1, math.nan], "> 0"),
        (Range(None, 1, high_open=True), [0.9, -math.inf], [1, math.nan], "< 1"),
        (Range(), [0, math.inf], [math.nan], "any number but NaN"),
    ],
)
def test_range(interval: Range, inside: list[float], outside: list[float], text: str) -> None:
    assert all(value in interval for value in inside)
    assert not any(value in interval for value in outside)
    assert str(interval) == text
