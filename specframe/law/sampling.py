"""The sampling law: transformers' own processors, applied to any node with that node's prefix.

A law is made in two stages, as `generate` does it: *processors* (penalties, bans, minimum length,
the user's own) see the prefix and edit scores; *warpers* (temperature, top-k, top-p, ...) reshape
them. Temperature 0 is the one-hot limit: processors only, then the arg max.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from specframe.errors import ConfigError
from specframe.law.user_classes import user_object
from specframe.registry import Range

if TYPE_CHECKING:
    from transformers import LogitsProcessorList

PROCESSOR = "LogitsProcessor"  # what sampling.processors must be, in transformers
GREEDY_BELOW = 1e-5  # temperatures under this are the greedy limit: 1/T would overflow float32
_OFF = "null turns it off"
_READS_HOST = {"NoRepeatNGramLogitsProcessor", "SequenceBiasLogitsProcessor"}


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """What a user may ask for; the names are those of transformers' GenerationConfig."""

    temperature: Annotated[float, Range(0, 100)]
    top_k: Annotated[int, Range(1, None, hint=_OFF)] | None
    top_p: Annotated[float, Range(0, 1, low_open=True, hint=_OFF)] | None
    min_p: Annotated[float, Range(0, 1, hint=_OFF)] | None
    typical_p: Annotated[float, Range(0, 1, low_open=True, hint=_OFF)] | None
    repetition_penalty: Annotated[float, Range(0, None, low_open=True, hint=_OFF)] | None
    no_repeat_ngram_size: Annotated[int, Range(1, None, hint=_OFF)] | None
    min_new_tokens: Annotated[int, Range(0, None, hint=_OFF)] | None
    bad_words: list[str] | None
    processors: list[str] | None

    def __post_init__(self) -> None:
        check_words("sampling.bad_words", self.bad_words)

    @property
    def banning(self) -> list[str]:
        """The keys in use that take tokens out."""
        names = ("bad_words", "no_repeat_ngram_size", "min_new_tokens", "processors")
        return [f"sampling.{name}" for name in names if getattr(self, name)]


def check_words(key: str, words: Sequence[str] | None) -> None:
    """Raises ConfigError for an empty string among them."""
    if "" in (words or []):
        raise ConfigError(f'{key}={words}: "" is in every text; leave it out')


class Sampling:
    """Processors and warpers of one run, shared by target and drafts.

    greedy: temperature 0. path_dependent: the law at a node depends on more than its own logits.
    host_reads: host reads that the processors make in each call.
    """

    def __init__(
        self,
        *,
        temperature: float,
        processors: LogitsProcessorList,
        warpers: LogitsProcessorList,
        vocabulary: int,
    ) -> None:
        self.temperature = temperature
        self.vocabulary = vocabulary
        self.greedy = temperature < GREEDY_BELOW
        self.processors = processors
        self.warpers = warpers
        self.path_dependent = len(processors) > 0
        self.host_reads = sum(
            getattr(one, "host_reads", int(type(one).__name__ in _READS_HOST)) for one in processors
        )

    @property
    def warping(self) -> Hashable:
        """Equal for samplings that warp alike."""
        made = [(type(one).__name__, *map(repr, sorted(vars(one).items()))) for one in self.warpers]
        return (self.temperature, *made)

    def scores(self, ids: Tensor, logits: Tensor) -> Tensor:
        """Processed, unwarped scores [M, V] (float32 or wider) for prefixes ids [M, T]."""
        scores = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        for processor in self.processors:
            scores = processor(ids, scores)
        return scores

    def warp(self, scores: Tensor, ids: Tensor) -> Tensor:
        """Probabilities [M, V] of processed scores: one-hot at temperature 0."""
        if self.greedy:
            best = scores.argmax(-1, keepdim=True)
            return torch.zeros_like(scores).scatter_(-1, best, 1.0)
        for warper in self.warpers:
            scores = warper(ids, scores)
        return scores.softmax(-1)

    def log_law(self, scores: Tensor, ids: Tensor) -> Tensor:
        """Log-probabilities [M, V] float64 of processed scores.

        At temperature 0 those of the scores themselves, as a one-hot law would say nothing.
        """
        for warper in [] if self.greedy else self.warpers:
            scores = warper(ids, scores)
        return scores.double().log_softmax(-1)

    def law(self, ids: Tensor, logits: Tensor) -> Tensor:
        """Probabilities [M, V] for prefixes ids [M, T] and raw logits [M, V]."""
        return self.warp(self.scores(ids, logits), ids)


def build_sampling(
    config: SamplingConfig,
    *,
    prompt_length: int,
    eos: Sequence[int],
    encode: Callable[[str], list[int]] | None,
    vocabulary: int,
    device: torch.device,
) -> Sampling:
    """The processors of transformers that `config` asks for, in the order `generate` uses.

    Raises ConfigError for bad words without a tokenizer (`encode`) or an unknown processor path.
    """
    greedy = config.temperature < GREEDY_BELOW
    return Sampling(
        temperature=config.temperature,
        processors=_processors(config, prompt_length, eos, encode, device),
        warpers=[] if greedy else _warpers(config),
        vocabulary=vocabulary,
    )


def _processors(
    config: SamplingConfig,
    prompt_length: int,
    eos: Sequence[int],
    encode: Callable[[str], list[int]] | None,
    device: torch.device,
) -> Any:
    wanted = (
        config.repetition_penalty,
        config.no_repeat_ngram_size,
        config.bad_words,
        config.min_new_tokens,
        config.processors,
    )
    if not any(wanted):
        return []
    import transformers as hf

    made: list[Any] = []
    if config.repetition_penalty not in (None, 1.0):
        made.append(hf.RepetitionPenaltyLogitsProcessor(penalty=config.repetition_penalty))
    if config.no_repeat_ngram_size:
        made.append(hf.NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size))
    if config.bad_words:
        if encode is None:
            raise ConfigError("sampling.bad_words needs a target with a tokenizer")
        words = _word_ids(config.bad_words, encode)
        made.append(hf.NoBadWordsLogitsProcessor(words, eos_token_id=list(eos) or None))
    if config.min_new_tokens and eos:
        made.append(
            hf.MinNewTokensLengthLogitsProcessor(
                prompt_length, config.min_new_tokens, list(eos), device=str(device)
            )
        )
    for path in config.processors or []:
        made.append(user_object(path, where="sampling.processors", base=PROCESSOR))
    return hf.LogitsProcessorList(made)


def _word_ids(words: Sequence[str], encode: Callable[[str], list[int]]) -> list[list[int]]:
    """Ids of each word at the start of a text and after a space, as it may occur in both."""
    ids = []
    for word in words:
        forms = [encode(form) for form in (word, " " + word)]
        if not any(forms):
            raise ConfigError(f"sampling.bad_words: no token of the target writes {word!r}")
        ids += forms
    return [list(one) for one in dict.fromkeys(tuple(i) for i in ids if i)]


def _warpers(config: SamplingConfig) -> Any:
    import transformers as hf

    made: list[Any] = []
    if config.temperature != 1.0:
        made.append(hf.TemperatureLogitsWarper(config.temperature))
    if config.top_k:
        made.append(hf.TopKLogitsWarper(top_k=config.top_k))
    if config.top_p is not None and config.top_p < 1.0:
        made.append(hf.TopPLogitsWarper(top_p=config.top_p))
    if config.min_p is not None:
        made.append(hf.MinPLogitsWarper(min_p=config.min_p))
    if config.typical_p is not None and config.typical_p < 1.0:
        made.append(hf.TypicalLogitsWarper(mass=config.typical_p))
    return hf.LogitsProcessorList(made)
