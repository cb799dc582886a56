"""What a constructor may ask for: as plugins/README.md says, and refused by name otherwise."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specframe.accept.base import RULES
from specframe.accept.match import Match
from specframe.compose.axes import AXES, SUPPLIED, _kind, bind_axis
from specframe.compose.build import plan
from specframe.compose.overrides import compose
from specframe.drafter.base import DRAFTERS
from specframe.drafter.none import NoDraft
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.planning.cost_table import CostTable
from specframe.runtime.base import Launch, Runtime
from specframe.target.base import Target

README = Path(__file__).resolve().parents[2] / "plugins" / "README.md"
ROW = re.compile(r"^\| (\w+) \| `(.+?)`.*? \| (any other|any|`\w+`) \|", re.MULTILINE)
WRITTEN = {
    "Callable[[], CacheManager]": "NewCache",
    "Sequence[Drafter]": "Sources",
    "Launch \\| None": "Launch | None",
}


def test_the_table_for_authors_is_what_is_supplied() -> None:
    rows = ROW.findall(README.read_text(encoding="utf-8"))
    written = {(axis, WRITTEN.get(kind, kind), name.strip("`")) for axis, kind, name in rows}
    supplied = {
        (axis, _kind(kind), name or "any")
        for axis, kinds in SUPPLIED.items()
        for kind, name in kinds.items()
    }
    # A target has two rows: that of the run, and a model of the drafter's own.
    targets = {("drafter", "Target", "target"), ("drafter", "Target", "any other")}
    assert written == supplied - {("drafter", "Target", "any")} | targets


@pytest.mark.parametrize(
    ("axis", "parameter", "hint", "sentence"),
    [
        (
            "drafter",
            "device",
            torch.device,
            "drafter=asking: the constructor's `device` asks for torch.device, which no drafter is "
            "given; it may ask for Target, Runtime, NewCache, InnerLoop, Sources, TrueText",
        ),
        (
            "drafter",
            "running",
            Runtime,
            "drafter=asking: the constructor's parameter `running` must be called `runtime`",
        ),
        (
            "accept",
            "target",
            Target,
            "accept=asking: the constructor's `target` asks for Target, which no accept is given; "
            "it may ask for nothing but values of its YAML file",
        ),
        (
            "tree",
            "launch",
            Launch | None,
            "tree=asking: the constructor's `launch` asks for Launch | None, which no tree is "
            "given; it may ask for CostTable",
        ),
        (
            "cache",
            "costs",
            CostTable,
            "cache=asking: the constructor's `costs` asks for CostTable, which no cache is given; "
            "it may ask for Launch | None",
        ),
    ],
)
def test_what_is_not_given_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, axis: str, parameter: str, hint: Any, sentence: str
) -> None:
    class Asking(NoDraft):
        def __init__(self, **values: Any) -> None:
            self.values = values

    Asking.__init__.__annotations__ = {parameter: hint}
    monkeypatch.setitem(AXES[axis]._entries, "asking", SimpleNamespace(cls=Asking))
    with pytest.raises(ConfigError) as refused:
        bind_axis(axis, {"name": "asking"})
    assert str(refused.value) == sentence


def test_every_drafter_asks_for_what_there_is() -> None:
    assert len(DRAFTERS.names()) > 10
    for word in DRAFTERS.names():
        plan(compose([f"drafter={word}", "target=smollm2"]))


class FromTheEnd(Match):
    """Judges a chain from its end."""

    chains_only = True


@pytest.mark.parametrize("tree", ["static", "dynamic", "branching"])
def test_a_chains_only_rule_of_a_plugin_is_refused_before_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tree: str
) -> None:
    """With a tree of another plugin, too, which says nothing of branching; nothing is loaded."""
    from specframe.tree.base import TREES
    from specframe.tree.chain import ChainTree

    class Branching(ChainTree):
        chain_only = False

    files = {
        "accept/from_the_end": "name: from_the_end\n",
        "tree/branching": "name: branching\ndepth: 3\nmax_nodes: 8\nproposal: auto\n",
    }
    for path, text in files.items():
        file = tmp_path / "plugins" / "outside" / "conf" / f"{path}.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(RULES._entries, "from_the_end", SimpleNamespace(cls=FromTheEnd))
    monkeypatch.setitem(TREES._entries, "branching", SimpleNamespace(cls=Branching))
    words = ["target=hf", "target.path=/no/such/weights", "accept=from_the_end", "drafter=ngram"]
    with pytest.raises(IncompatibleComponents) as refused:
        plan(compose([*words, f"tree={tree}"]))
    assert str(refused.value) == (
        f"accept=from_the_end judges chains only, and tree={tree} may give a node two children; "
        "use tree=chain"
    )
    assert plan(compose([*words, "tree=chain"])).bound["accept"].cls is FromTheEnd
