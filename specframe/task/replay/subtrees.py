"""Which trees and rules a record of trace=full can be used to score, and refusals of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specframe.accept.base import AcceptRule
from specframe.compose.binding import bind
from specframe.errors import IncompatibleComponents
from specframe.tree.base import TREES, TreePolicy


def is_exact(rule: AcceptRule, settings: dict[str, Any]) -> bool:
    """Whether the recorded text alone decides what the rule accepts."""
    return rule.same_text or (rule.lossless and settings["greedy"])


def check_rule(rule: AcceptRule, word: str, settings: dict[str, Any]) -> None:
    """Raise IncompatibleComponents where the record lacks what the rule is scored by."""
    if settings["how"] not in ("place", "coupled"):
        raise IncompatibleComponents(
            f"task.trace: its children were drawn (tree.proposal={settings['how']}), and draws are "
            "keyed by a tree's own numbering, so those of a smaller tree are not in the record; "
            "record with tree.proposal=place"
        )
    if rule.lossless and not is_exact(rule, settings) and settings["how"] != "place":
        raise IncompatibleComponents(
            f"accept={word}: only placed children can be scored by their "
            "probability; record with tree.proposal=place, or use accept=match"
        )


def check_kind(kind: type[TreePolicy], word: str) -> None:
    """Raise IncompatibleComponents for a kind of tree that cannot be grown on a record."""
    if kind.needs_native or kind.observe is not TreePolicy.observe:
        raise IncompatibleComponents(unfit_message(word))


def check_within(policy: TreePolicy, word: str, settings: dict[str, Any]) -> None:
    """Raise IncompatibleComponents where a policy's tree may not be a sub-tree of the record's."""
    recorded = settings["tree"]
    kinds = {"dynamic": ("chain", "static", "dynamic"), "static": ("chain", "static")}
    of = recorded["name"]
    if word != of and (
        word not in kinds.get(of, ()) or (of != "dynamic" and settings["several_sources"])
    ):
        raise IncompatibleComponents(
            f"tree={word}: the record was made with tree={of}, whose nodes need not hold it; "
            "record with tree=dynamic"
        )
    rows = len(_wanted(policy, word)) + 1 if word != "dynamic" else policy.max_nodes
    limits = {"depth": policy.depth, "max_nodes": min(policy.max_nodes, rows)}
    if word == "dynamic":
        limits["top_k"] = getattr(policy, "top_k", 0)
    for key, number in limits.items():
        if number > recorded.get(key, number):
            raise IncompatibleComponents(
                f"tree.{key}={number}: the record has {recorded[key]} (tree={of}), and wider trees "
                f"are not in it; use tree.{key}={recorded[key]} or less, or record anew"
            )
    _check_paths(policy, word, recorded)


def _check_paths(policy: TreePolicy, word: str, recorded: dict[str, Any]) -> None:
    if recorded["name"] != "static":
        return
    cls: Any = TREES.get("static")
    static = cls(**bind(cls, recorded, where="tree"))
    known = set(_wanted(static, "static"))
    missing = [path for path in _wanted(policy, word) if path not in known]
    if missing:
        raise IncompatibleComponents(
            f"tree={word}: the path {list(missing[0])} is not in the recorded tree=static; record "
            "with tree=dynamic, or use some of the recorded paths"
        )


def _wanted(policy: TreePolicy, word: str) -> list[tuple[int, ...]]:
    """Rank paths of a tree of known shape; those of a chain follow the first child all the way."""
    if word == "static":
        paths: Sequence[tuple[int, ...]] = policy.paths  # type: ignore[attr-defined]
        return [path for path in paths if len(path) <= policy.depth][: policy.max_nodes - 1]
    return [(0,) * depth for depth in range(1, min(policy.depth, policy.max_nodes - 1) + 1)]


def unfit_message(word: str) -> str:
    """The message for a policy that cannot be grown on a record."""
    return (
        f"tree={word}: its shape depends on more than what was offered at a position, so a record "
        "cannot say what it would have been; use tree=chain, tree=static or tree=dynamic"
    )
