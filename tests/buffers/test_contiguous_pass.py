"""Caches of plug-ins over our buffers: what they override is what runs, under every runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe.buffers.contiguous_pass import ContiguousPass
from specframe.cache.base import Layout, Opened
from specframe.cache.dynamic import DynamicCache
from specframe.target.hf import HF
from specframe.types import Rows
from tests.runtime.test_packed import WIDE, both, tree


class Halved(ContiguousPass):
    """Reads keys as half of what was written."""

    def dense(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        all_keys, all_values = super().dense(layer, keys, values)
        return all_keys / 2, all_values


class Forgetful(ContiguousPass):
    """Shows a row nothing that is four columns or more before it."""

    def visible(self, window: int | None = None) -> Tensor:
        return super().visible(4)


class Strided(ContiguousPass):
    """Overrides what is read and names a memory that a kernel cannot read by address."""

    def dense(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return super().dense(layer, keys, values)

    def layout(self, layers: Sequence[int], like: Tensor) -> Layout:
        made = super().layout(layers, like)
        wide = {layer: keys.repeat(1, 1, 1, 2)[..., ::2] for layer, keys in made.keys.items()}
        return Layout(keys=wide, values=made.values, visible=made.visible, slots=made.slots)


class Bare(Opened):
    """A pass of its own over the buffers, which names no memory."""

    def __init__(self, inner: ContiguousPass) -> None:
        self._inner, self.positions = inner, inner.positions

    def dense(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return self._inner.dense(layer, keys, values)

    def visible(self, window: int | None = None) -> Tensor:
        return self._inner.visible(window)


def cache_of(kind: type) -> DynamicCache:
    class Own(DynamicCache):
        def opened(self, rows: Rows) -> Opened:
            self._fresh.append((rows.slots, rows.positions))
            one = ContiguousPass(self, rows) if kind is Bare else kind(self, rows)
            return Bare(one) if kind is Bare else one

    return Own()


@torch.inference_mode()
def logits(target: HF, cache: DynamicCache, seen: list[Any]) -> Tensor:
    """[7, V] of a tree after a prompt; `seen`: what the fused blocks answered to each pass."""
    trunk = target._trunk

    def watched(*args: Any, **kwargs: Any) -> Any:
        assert trunk is not None
        seen.append(trunk(*args, **kwargs))
        return seen[-1]

    target._trunk = watched if trunk is not None else None
    try:
        cache.open(0, columns=64, device=target.device)
        target.prefill([3, 1, 4, 1, 5, 9, 2], cache)
        rows = tree(cache, [-1, 0, 0, 1, 1, 3, 2])
        out = target.forward(rows, cache, want=torch.arange(7)).logits
    finally:
        target._trunk = trunk
    assert out is not None
    return out


@pytest.mark.parametrize("kind", [Halved, Forgetful, Strided, Bare])
def test_what_a_cache_overrides_is_not_gone_past(kind: type) -> None:
    plain, packed = both("llama", **WIDE)
    seen: list[Any] = []
    found = logits(packed, cache_of(kind), seen)
    expected = logits(plain, cache_of(kind), [])
    assert seen == [None, None], "both passes run layer by layer"
    assert (found - expected).abs().max() < 1e-4 * expected.std()
    usual = logits(plain, DynamicCache(), [])
    same = kind in (Strided, Bare)
    assert ((expected - usual).abs().max() < 1e-4 * expected.std()) == same


def test_our_own_caches_are_read_by_address() -> None:
    _, packed = both("llama", **WIDE)
    seen: list[Any] = []
    logits(packed, DynamicCache(), seen)
    assert len(seen) == 2 and None not in seen


@pytest.mark.parametrize("kind", [Halved, Forgetful, Bare])
def test_no_launch_goes_past_it_either(kind: type) -> None:
    plain, _ = both("llama", **WIDE)
    for cache, has_form in ((cache_of(kind), False), (DynamicCache(), True)):
        logits(plain, cache, [])
        opened = cache.opened(tree(cache, [-1, 0]))
        assert (opened.form([0], [None]) is not None) == has_form
        cache.discard(0)
        assert (cache.fixed(3) is not None) == has_form


def test_a_subclass_that_overrides_nothing_keeps_the_layout() -> None:
    class Counted(ContiguousPass):
        count = 0

    class Mixin:
        def dense(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            raise NotImplementedError

    class Mixed(Mixin, ContiguousPass):  # type: ignore[misc]
        pass

    assert Counted.layout is ContiguousPass.layout
    assert Counted.form is ContiguousPass.form
    assert Mixed.layout is Opened.layout
    assert Mixed.form is Opened.form
