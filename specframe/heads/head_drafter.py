"""What the drafters of trained heads share: which head is meant, and a head that is in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

from torch import nn

from specframe.heads.choice import with_choice
from specframe.heads.head_files import WEIGHTS


class HeadDrafter:
    """A mixin, named before `Drafter` among the bases; `_adopt` puts a network beside a target."""

    word: ClassVar[str]  # of the command line, which is also the folder of shipped heads
    weight_files: ClassVar[Sequence[str]] = WEIGHTS  # names of files that hold weights, best first
    _adopt: Callable[..., None]

    @classmethod
    def settle(cls, values: Mapping[str, Any], target: str) -> dict[str, Any]:
        """`path` and `vocabulary` as they will be used. Raises ConfigError if a file is missing."""
        return with_choice(cls.word, values, target, weights=cls.weight_files)

    @classmethod
    def of(cls, net: nn.Module, **components: Any) -> Self:
        """A drafter of a network that is in memory already (training, notebooks, tests).

        components: the keywords of this drafter's `_adopt`. The network is moved to the target's
        device, cast to its dtype and frozen.
        """
        drafter = cls.__new__(cls)
        drafter._adopt(net, **components)
        return drafter
