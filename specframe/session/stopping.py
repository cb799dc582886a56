"""Where a text ends: transformers' criteria, judged at every token of a verdict on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from specframe.errors import ConfigError
from specframe.law.sampling import check_words
from specframe.law.user_classes import user_object

if TYPE_CHECKING:
    from specframe.records import Context

CRITERION = "StoppingCriteria"  # what stop.criteria must be, in transformers
# exhausted: the processors ban every token that could follow.
FinishReason = Literal["eos", "stop", "length", "exhausted"]
EXHAUSTED = -1  # the code of a token in whose place nothing may be said


@dataclass(frozen=True, kw_only=True)
class StopConfig:
    """eos: "auto" for the model's own ids, or a list of ids (empty: none); strings end the text
    when it contains one; criteria: `module:Class` of transformers' StoppingCriteria."""

    eos: list[int] | Literal["auto"]
    strings: list[str] | None
    criteria: list[str] | None

    def __post_init__(self) -> None:
        check_words("stop.strings", self.strings)


@dataclass(frozen=True)
class _Criterion:
    reason: FinishReason
    judge: Any
    window: int | None  # tokens it looks at, None for the whole prefix


class Stopping:
    """End-of-text ids, stop strings, the user's criteria and the length limit of one run."""

    def __init__(self, criteria: Sequence[_Criterion]) -> None:
        self._criteria = list(criteria)

    def codes(self, context: Context, tokens: Tensor, room: int) -> Tensor:
        """[D + 1] after each token of a verdict: 0 to go on, else 1 + index of the first reason.

        tokens [D + 1] may be padded with -1; room: tokens that may still be emitted.
        """
        count = tokens.shape[0]
        places = torch.arange(count, device=tokens.device)
        codes = torch.where(places == room - 1, len(self._criteria) + 1, 0)
        if not self._criteria:
            return codes
        text = torch.cat([context.ids, tokens.clamp_min(0)])
        for index, criterion in reversed(list(enumerate(self._criteria))):
            codes = torch.where(_judge(criterion, text, count), index + 1, codes)
        return codes

    def reason(self, code: int) -> FinishReason | None:
        """The finish reason behind a code."""
        if code == 0:
            return None
        if code == EXHAUSTED:
            return "exhausted"
        return self._criteria[code - 1].reason if code <= len(self._criteria) else "length"


def _judge(criterion: _Criterion, text: Tensor, count: int) -> Tensor:
    """[count] verdicts of a criterion on the last `count` prefixes of `text`."""
    first, window = text.shape[0] - count, criterion.window
    if window is not None and first + 1 >= window:
        # A criterion with a window sees equal-length views, so one batched call answers all.
        views = text[first + 1 - window :].unfold(0, window, 1)
        verdicts: Tensor = criterion.judge(views, None)
        return verdicts
    prefixes = [text[None, : first + 1 + place] for place in range(count)]
    return torch.cat([torch.as_tensor(criterion.judge(one, None)).view(1) for one in prefixes])


def build_stopping(config: StopConfig, *, eos: Sequence[int], tokenizer: Any) -> Stopping:
    """Criteria of a run. Raises ValueError for stop strings without a tokenizer of transformers."""
    ids = list(eos) if config.eos == "auto" else list(config.eos)
    criteria: list[_Criterion] = []
    if ids or config.strings or config.criteria:
        from transformers import EosTokenCriteria, StopStringCriteria

        if ids:
            criteria.append(_Criterion("eos", EosTokenCriteria(ids), 1))
        if config.strings:
            if tokenizer is None:
                raise ConfigError("stop.strings needs a target with a tokenizer of transformers")
            strings = StopStringCriteria(tokenizer, config.strings)
            criteria.append(_Criterion("stop", strings, strings.maximum_token_len))
    for path in config.criteria or []:
        judge = user_object(path, where="stop.criteria", base=CRITERION)
        criteria.append(_Criterion("stop", judge, None))
    return Stopping(criteria)
