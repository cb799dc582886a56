"""The composed engine as a user holds it: text in, events or a result out."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol, get_type_hints, runtime_checkable

from specframe.capture.wrappers import captured
from specframe.components import Components
from specframe.errors import ConfigError
from specframe.law.sampling import Sampling, SamplingConfig, build_sampling
from specframe.law.streams import Streams
from specframe.loop import Decoding
from specframe.measure.clock import Clock
from specframe.records import Observer
from specframe.registry import word_of
from specframe.session.arguments import (
    MaxNewTokens,
    Seed,
    SequenceNumber,
    bound,
    check_arguments,
)
from specframe.session.chat_settings import ChatSettings
from specframe.session.events import Event, events_of
from specframe.session.generation import Generation, Tally, say_exhausted
from specframe.session.prompt_encoding import Prompt, encode, is_plain
from specframe.session.stopping import StopConfig, build_stopping
from specframe.session.text_stream import TextStream


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run asks for besides its components. raw: prompts are not put in a chat template."""

    seed: Seed
    max_new_tokens: MaxNewTokens
    sampling: SamplingConfig
    stop: StopConfig
    raw: bool
    chat: ChatSettings = field(default_factory=ChatSettings)

    def __post_init__(self) -> None:
        check_arguments(get_type_hints(Settings, include_extras=True), vars(self))


@runtime_checkable
class ReadsHost(Protocol):
    """An acceptance rule that waits for the device beyond the step's own read."""

    def host_reads(self, path_dependent: bool) -> int:
        """Waits of one decision, under processors that depend on the path or not."""


class Engine:
    """Components and settings of a run; decodes any number of prompts, one at a time.

    Every prompt starts afresh: the same prompt, seed and settings give the same answer, whatever
    came before. Threads may share an engine: whole answers wait for each other, and a stream that
    another answer overtook says so. Arguments are bound by the ranges of the YAML files, else
    ConfigError names them.
    """

    def __init__(self, parts: Components, settings: Settings) -> None:
        self.components = parts
        self.settings = settings
        self._running = captured(parts)  # the same, as the loop runs them
        target = parts.target
        outside = [one for one in self.eos_ids if not 0 <= one < target.vocab_size]
        if outside:
            raise ConfigError(
                f"stop.eos={outside}: no such token id; {target.name} has 0 .. "
                f"{target.vocab_size - 1}"
            )
        if settings.chat.template_args and self.is_plain:
            reason = "raw=true leaves it out" if settings.raw else f"{target.name} has none"
            raise ConfigError(f"chat.template_args: they are for a chat template, and {reason}")
        self._stopping = build_stopping(
            settings.stop,
            eos=target.eos_ids,
            tokenizer=getattr(target.tokenizer, "tokenizer", None),
        )

    def __repr__(self) -> str:
        parts, settings = self.components, self.settings
        axes = {"drafter": parts.drafter, "tree": parts.tree, "accept": parts.accept}
        words = [f"{axis}={word_of(part)}" for axis, part in axes.items()]
        words += [f"cache={word_of(parts.cache)}", f"runtime={word_of(parts.runtime)}"]
        numbers = f"temperature={settings.sampling.temperature}, seed={settings.seed}"
        limit = f"max_new_tokens={settings.max_new_tokens}"
        return f"Engine(target={parts.target.name}, {', '.join(words)}, {numbers}, {limit})"

    @property
    def eos_ids(self) -> Sequence[int]:
        """Ids that end a text in this run."""
        chosen = self.settings.stop.eos
        return self.components.target.eos_ids if chosen == "auto" else chosen

    @property
    def is_plain(self) -> bool:
        """Whether a text goes to the target as it is, through no chat template."""
        return is_plain(self.components.target, raw=self.settings.raw)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a text, a conversation ({role, content} messages) or ids as they are.

        Raises ConfigError for what is no prompt, and for a text that the target cannot read.
        """
        settings = self.settings
        return encode(prompt, self.components.target, raw=settings.raw, chat=settings.chat)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens without special ones; "" for a target without a tokenizer."""
        tokenizer = self.components.target.tokenizer
        return "" if tokenizer is None else tokenizer.decode(tokens)

    def host_reads(self) -> dict[str, int]:
        """Waits for the device that the components declare beyond the one of each step.

        drafter, tree and accept: in a step; sampling: in each call of the processors.
        """
        parts, sampling = self.components, self.sampling(prompt_length=1)
        rule, by_path = parts.accept, sampling.path_dependent
        return {
            "drafter": parts.drafter.traits.host_reads,
            "tree": parts.tree.host_reads,
            "accept": rule.host_reads(by_path) if isinstance(rule, ReadsHost) else 0,
            "sampling": sampling.host_reads,
        }

    @bound
    def decoding(
        self,
        *,
        max_new_tokens: MaxNewTokens | None = None,
        observers: Sequence[Observer] = (),
        clock: Clock | None = None,
        log_probs: bool = False,
        streams: type[Streams] = Streams,
    ) -> Decoding:
        """A loop over this engine's components, to be stepped by hand.

        clock: stamps the phases of each step; None: one of its own. log_probs: the lane keeps those
        of emitted tokens. streams: of coins and draws; `CheckedStreams` refuse repeated ones.
        """
        limit = self.settings.max_new_tokens if max_new_tokens is None else max_new_tokens
        return Decoding(
            self._running,
            max_new_tokens=limit,
            sampling=self.sampling,
            stopping=self._stopping,
            streams=lambda sequence: streams(seed=self.settings.seed, sequence=sequence),
            observers=observers,
            clock=clock,
            log_probs=log_probs,
        )

    @bound
    def stream(
        self,
        prompt: Prompt,
        *,
        sequence: SequenceNumber = 0,
        max_new_tokens: MaxNewTokens | None = None,
        observers: Sequence[Observer] = (),
        show_rejected: bool = False,
        log_probs: bool = False,
    ) -> Generator[Event, None, Generation]:
        """Events of one answer as it is made; returns the Generation (`yield from` gives it)."""
        decoding = self.decoding(
            max_new_tokens=max_new_tokens, observers=observers, log_probs=log_probs
        )
        return self._events(decoding, prompt, sequence, show_rejected)

    def _events(
        self, decoding: Decoding, prompt: Prompt, sequence: int, show_rejected: bool
    ) -> Generator[Event, None, Generation]:
        tally, text = Tally(), TextStream(self.components.target.tokenizer)
        with self.components.lock:  # not in the middle of another thread's answer
            tokens = self.encode(prompt)
            emissions = decoding.run(tokens, sequence=sequence)
            begun = next(emissions)
        seen = tally.watched(chain([begun], emissions))
        yield from events_of(seen, text, self.decode if show_rejected else None)
        return self._answer(decoding, tally, tokens, text.tokens, text.shown)

    @bound
    def generate(
        self,
        prompt: Prompt,
        *,
        sequence: SequenceNumber = 0,
        max_new_tokens: MaxNewTokens | None = None,
        observers: Sequence[Observer] = (),
        log_probs: bool = False,
    ) -> Generation:
        """The whole answer to one prompt. log_probs: with the log-probability of each token."""
        with self.components.lock:
            tally = Tally()
            decoding = self.decoding(
                max_new_tokens=max_new_tokens, observers=observers, log_probs=log_probs
            )
            prompt_tokens = self.encode(prompt)
            tokens: list[int] = []
            for emission in tally.watched(decoding.run(prompt_tokens, sequence=sequence)):
                tokens += emission.tokens
            return self._answer(decoding, tally, prompt_tokens, tokens, self.decode(tokens))

    def _answer(
        self,
        decoding: Decoding,
        tally: Tally,
        prompt_tokens: list[int],
        tokens: list[int],
        text: str,
    ) -> Generation:
        if decoding.finish_reason == "exhausted":
            say_exhausted(len(tokens), self.settings.sampling.banning)
        return tally.generation(
            prompt_tokens=prompt_tokens,
            tokens=tokens,
            text=text,
            finish_reason=decoding.finish_reason,
            log_probs=decoding.lane.log_probs,
        )

    def sampling(self, prompt_length: int) -> Sampling:
        """The processors and warpers of this run, for a prompt of this length."""
        tokenizer = self.components.target.tokenizer
        return build_sampling(
            self.settings.sampling,
            prompt_length=prompt_length,
            eos=self.eos_ids,
            encode=None if tokenizer is None else tokenizer.encode_plain,
            vocabulary=self.components.target.vocab_size,
            device=self.components.target.device,
        )
