"""A step on the meta device: what is captured takes nothing from the host and gives it nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import specframe.loop
from specframe.buffers import contiguous_pass
from specframe.capture.graphs import CapturedGraph
from specframe.drafter.eagle import Eagle
from specframe.runtime.base import Pass, Tensors
from specframe.runtime.cudagraph import GraphLaunch
from specframe.session.lane import Lane
from specframe.target import base, hf
from specframe.target.hf import HF
from specframe.testing.defaults import component
from specframe.testing.host_reads import is_read
from specframe.types import How
from tests.heads.small_heads import eagle_net
from tests.runtime.rehearsal import decomposed, rehearsed
from tests.small_models import CACHE_MAKERS, PROMPT, Composition, model, sampling_config, tree_of


class Transfers(TorchDispatchMode):
    """The operators that read a value, or whose tensors lie on two devices."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if decomposed(func):
            with self:
                return func.decompose(*args, **kwargs)
        if is_read(func, args):
            self.found.append(str(func))
        result = func(*args, **kwargs)
        tensors = [one for one in tree_leaves((args, kwargs, result)) if isinstance(one, Tensor)]
        if {one.device.type for one in tensors} - {"meta"}:
            self.found.append(str(func))
        return result


class Watching:
    """A `GraphCapturer` that never captures, but looks at what it would."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.called: list[str] = []  # functions of the step that nobody captures
        self.transfers = Transfers()

    def refusal(self, tensors: Any) -> str | None:
        assert {one.device.type for one in tensors} == {"meta"}
        return None

    def warm(self, fn: Pass, inputs: Tensors, buffers: Tensors) -> Tensors:
        self.ran.append(fn.__qualname__)
        with self.transfers:
            return fn(inputs, buffers)

    def within(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn`, looked at too."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self.called.append(fn.__qualname__)
            with self.transfers:
                return fn(*args, **kwargs)

        return run

    def capture(self, fn: Pass, inputs: Tensors, buffers: Tensors) -> CapturedGraph:
        raise AssertionError("it is never warm")


FUNCTIONS = [  # of a step, in their order: draft, verify pass, decision, commit
    "CapturedTree._grown.<locals>.run",
    "PassKey.over.<locals>.run",
    "CapturedRule.decide.<locals>.decide",
    "_move",
]


class Read(Exception):
    """The step's one read, which a tensor without values cannot answer."""


def step(tree: str, rule: str, how: How, temperature: float, patch: pytest.MonkeyPatch) -> Watching:
    """Everything of a step up to its read, and a commit."""

    def read(*args: Any) -> None:
        raise Read

    patch.setattr(hf, "check_tree", lambda target: None)
    patch.setattr(Lane, "first_token", lambda self, out: ([5], True))
    patch.setattr(specframe.loop, "read_together", read)
    runtime, watching = rehearsed(warmup=100), Watching()
    assert isinstance(runtime.launch, GraphLaunch)
    runtime.launch.capturer = watching
    target = HF.of(model("llama").to("meta"), runtime=runtime)
    cache, own = (CACHE_MAKERS["static"](launch=runtime.launch) for _ in range(2))
    warpers = {"top_k": 20, "top_p": 0.9, "min_p": 0.01} if temperature else {}
    loop = Composition(
        target=target,
        drafter=Eagle.of(eagle_net(), target=target, cache=own, runtime=runtime),
        tree=tree_of(tree, how),
        accept=component("accept", rule),
        cache=cache,
        runtime=runtime,
        how=how,
        sampling=sampling_config(temperature, **warpers),
    ).decoding(10)
    loop.begin(PROMPT)
    # The rows of the verify pass and their masks are no captured function, but are watched too.
    patch.setattr(base, "verify_rows", watching.within(base.verify_rows))
    patch.setattr(type(cache), "opened", watching.within(type(cache).opened))
    masks = watching.within(contiguous_pass.visible_columns)
    patch.setattr(contiguous_pass, "visible_columns", masks)
    with pytest.raises(Read):
        loop.step()
    assert set(watching.called) == {"verify_rows", "Contiguous.opened", "visible_columns"}
    with torch.inference_mode():
        cache.commit(cache.lengths[0] + torch.arange(3, device="meta"), [3], moved=[True])
    return watching


@pytest.mark.parametrize(
    ("tree", "rule", "how", "temperature"),
    [
        ("dynamic", "match", "place", 0.0),
        ("static", "rejection", "wor", 0.8),
        ("static", "typical", "iid", 0.7),
        ("chain", "match", "coupled", 0.9),
    ],
)
def test_what_is_captured_keeps_to_the_device(
    tree: str, rule: str, how: How, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = step(tree, rule, how, temperature, monkeypatch)
    assert watching.ran == FUNCTIONS
    assert not watching.transfers.found


def test_control_a_transfer_is_found() -> None:
    there, here = torch.zeros(3, device="meta"), torch.ones(3)
    for moved in (lambda: here.to("meta"), lambda: there.copy_(here), lambda: there.nonzero()):
        watching = Transfers()
        with torch.inference_mode(), watching, suppress(NotImplementedError):
            moved()
        assert watching.found
