"""What a draft network's attention reads, answered by a pass over a cache."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from specframe.cache.base import Opened
from specframe.heads.layers import View, without_first


class CacheView(View):
    """The view of a network whose keys lie in a cache; every tensor has a batch of one.

    skipped: tokens at the start of each path that have no keys in these layers (see `View.later`).
    """

    def __init__(
        self, opened: Opened, *, skipped: int = 0, layers: list[int] | None = None
    ) -> None:
        self._opened, self._skipped = opened, skipped
        positions = opened.positions
        self.positions = (positions - skipped).clamp_min(0) if skipped else positions
        self.layers: list[int] = [] if layers is None else layers  # that were asked, in order

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        self.layers.append(layer)
        if not self._skipped:
            return self._opened.attend(layer, queries[0], keys[0], values[0])[None]
        grouped = queries.shape[1] != keys.shape[1]
        keys, values = self._opened.dense(layer, keys, values)
        visible = without_first(self._opened.visible(), self._skipped)
        return functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=visible, enable_gqa=grouped
        )

    def later(self, count: int) -> View:
        return CacheView(self._opened, skipped=count, layers=self.layers)
