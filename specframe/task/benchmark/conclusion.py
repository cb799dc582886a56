"""How a benchmark ends: what came out, in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specframe.session.engine import Engine
from specframe.task.benchmark.comparison import SideSummary
from specframe.task.benchmark.lineup import weights_key
from specframe.task.benchmark.peer_side import PeerSide
from specframe.task.benchmark.sides import METHOD, Side

_LISTED = 4  # categories that a sentence names
_PLAIN, _AUTO = "drafter=none", "tree=auto"
_EVEN = 0.005  # what rounds to 1.00 neither wins nor loses
Numbers = dict[str, Any]


def conclusion(
    numbers: Numbers, *, name: str, sides: Sequence[tuple[Side, SideSummary]] = ()
) -> list[str]:
    """The last sentences of a benchmark.

    numbers: of `scoreboard.summary`; name: the words of the method; sides: of a comparison. Only
    sides on the target, runtime and cache of the method stand beside it; the rest is named.
    """
    overall = numbers["overall"]
    if overall is None:
        return ["No prompt was answered, so nothing can be concluded."]
    alike = [(side, each) for side, each in sides if not _differs_in(side, sides)]
    clauses = [
        _against_plain(overall, name),
        _losses(numbers),
        _others(alike),
        _hint(overall, name),
    ]
    sentence = "; ".join(clause for clause in clauses if clause)
    return [f"{sentence}.", *_apart(sides)]


def _against_plain(overall: Numbers, name: str) -> str:
    method = overall[METHOD]
    length = method["acceptance_length"]
    per_pass = "" if length is None else f", with {length:.2f} tokens a pass"
    if method["synthetic"]:
        return f"{name} was told the text (synthetic), so its speed is no method's{per_pass}"
    speed = overall.get("speedup")
    if speed is None:
        rate = method["tokens_per_s"]
        pace = "no step was timed" if rate is None else f"{rate:.1f} tokens a second"
        if name.startswith(f"{_PLAIN} "):
            return f"this is plain decoding: {pace}"
        return f"{name} was not measured against plain decoding: {pace}{per_pass}"
    ends = overall["intervals"].get("speedup")
    between = "" if ends is None else f" ({ends[0]:.2f} to {ends[1]:.2f})"
    unsure = ends is not None and ends[0] < 1 < ends[1]
    doubt = ", which may be chance: the interval over prompts holds 1" if unsure else ""
    return f"{name} decodes at {speed:.2f} times plain decoding{between}{doubt}{per_pass}"


def _losses(numbers: Numbers) -> str:
    """The categories on which it is slower than plain decoding, the worst first."""
    boards = numbers["categories"]
    speeds = {name: board.get("speedup") for name, board in boards.items()}
    lost = {name: speed for name, speed in speeds.items() if speed and speed < 1 - _EVEN}
    if numbers["overall"][METHOD]["synthetic"] or not lost or len(boards) < 2:
        return ""
    worst = sorted(lost, key=lambda name: lost[name])
    named = [f"{name.replace('_', ' ')} ({lost[name]:.2f})" for name in worst[:_LISTED]]
    if len(worst) == len(boards):
        return f"it loses on every kind of prompt, most on {named[0]}"
    if len(worst) == 1:
        return f"on {worst[0].replace('_', ' ')} it loses ({lost[worst[0]]:.2f})"
    more = f" and {len(worst) - _LISTED} more" if len(worst) > _LISTED else ""
    return f"it loses on {', '.join(named)}{more}"


def _others(sides: Sequence[tuple[Side, SideSummary]]) -> str:
    """The fastest of the other sides that draft, and the fastest of the peers."""
    clauses = []
    ours = [each for side, each in sides if each.name != METHOD and _drafts(side, each)]
    lossy = {each.name for side, each in sides if not side.engine.components.accept.lossless}
    if best := _fastest(ours):
        rule = " with a lossy rule" if best.name in lossy else ""
        clauses.append(f"{best.label} gives {best.speedup_decode:.2f}{rule}")
    if best := _fastest([each for _, each in sides if each.peer]):
        clauses.append(f"of other engines {best.label} is the fastest, {best.speedup_decode:.2f}")
    return "; ".join(clauses)


def _hint(overall: Numbers, name: str) -> str:
    """What to try where drafting did not pay."""
    lost = (overall.get("speedup") or 1.0) < 1 - _EVEN
    if not lost or _AUTO in name or overall[METHOD]["synthetic"]:
        return ""
    return f"{_AUTO} drafts only where measured costs say that it pays"


def _drafts(side: Side, each: SideSummary) -> bool:
    return not each.peer and not each.synthetic and side.drafter != "none"


def _fastest(sides: Sequence[SideSummary]) -> SideSummary | None:
    timed = [each for each in sides if each.speedup_decode is not None]
    return max(timed, key=lambda each: each.speedup_decode or 0.0, default=None)


def _apart(sides: Sequence[tuple[Side, SideSummary]]) -> list[str]:
    """A sentence about the sides whose speeds are not to be held against the method's."""
    apart = [f"{each.label} ({why})" for side, each in sides if (why := _differs_in(side, sides))]
    if not apart:
        return []
    return [f"Not to be compared with it, since they run on other terms: {', '.join(apart)}."]


def _differs_in(side: Side, sides: Sequence[tuple[Side, SideSummary]]) -> str:
    """What a side has otherwise than the method: target, runtime or cache; "" for nothing."""
    method = next((other.engine for other, each in sides if each.name == METHOD), side.engine)
    if weights_key(side.engine) != weights_key(method):
        return "another target"
    if isinstance(side, PeerSide):  # which are compared as engines, on the same weights
        return ""
    return _of_launch(side.engine, method)


def _of_launch(engine: Engine, method: Engine) -> str:
    mine, theirs = engine.components, method.components
    if mine.runtime is not theirs.runtime:
        return "another runtime"
    return "another cache" if mine.cache is not theirs.cache else ""
