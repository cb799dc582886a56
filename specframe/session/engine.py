"""The composed engine as a user holds it: text in, events or a result out."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from specframe.capture.wrappers import captured
from specframe.components import Components
from specframe.errors import ConfigError
from specframe.law.sampling import Sampling, SamplingConfig, build_sampling
from specframe.law.streams import Streams
from specframe.loop import Decoding
from specframe.measure.clock import Clock
from specframe.records import Observer
from specframe.session.chat_settings import ChatSettings
from specframe.session.events import Event, kinds_of, refused_token
from specframe.session.prompt_encoding import Prompt, encode, is_plain
from specframe.session.stopping import StopConfig, build_stopping


@dataclass(frozen=True, kw_only=True)
class Generation:
    """An answer: token ids after the prompt, their text, and why it ended."""

    prompt_tokens: list[int]
    tokens: list[int]
    text: str
    finish_reason: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run asks for besides its components. raw: prompts are not put in a chat template."""

    seed: int
    max_new_tokens: int
    sampling: SamplingConfig
    stop: StopConfig
    raw: bool
    chat: ChatSettings = field(default_factory=ChatSettings)


@runtime_checkable
class ReadsHost(Protocol):
    """An acceptance rule that waits for the device beyond the step's own read."""

    def host_reads(self, path_dependent: bool) -> int:
        """Waits of one decision, under processors that depend on the path or not."""


class TextStream:
    """Text of an answer token by token; the pieces concatenate to the decoded whole."""

    def __init__(self, engine: Engine) -> None:
        self.tokens: list[int] = []
        self.shown = ""
        self._engine = engine
        tokenizer = engine.components.target.tokenizer
        self._step = (lambda token: "") if tokenizer is None else tokenizer.decoder()

    def add(self, token: int) -> str:
        """The text that is certain after this token."""
        self.tokens.append(token)
        new = self._step(token)
        self.shown += new
        return new

    def rest(self) -> str:
        """What the whole answer has beyond what was shown (bytes of a cut character)."""
        text = self._engine.decode(self.tokens)
        new, self.shown = text[len(self.shown) :], text
        return new


class Engine:
    """Components and settings of a run; decodes any number of prompts, one at a time.

    Every prompt starts afresh: the same prompt, seed and settings give the same answer, whatever
    came before.
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

    def decoding(
        self,
        *,
        max_new_tokens: int | None = None,
        observers: Sequence[Observer] = (),
        clock: Clock | None = None,
    ) -> Decoding:
        """A loop over this engine's components, to be stepped by hand.

        clock: what stamps the phases of each step; None: one of its own.
        """
        return Decoding(
            self._running,
            max_new_tokens=max_new_tokens or self.settings.max_new_tokens,
            sampling=self.sampling,
            stopping=self._stopping,
            streams=lambda sequence: Streams(seed=self.settings.seed, sequence=sequence),
            observers=observers,
            clock=clock,
        )

    def stream(
        self,
        prompt: Prompt,
        *,
        sequence: int = 0,
        max_new_tokens: int | None = None,
        observers: Sequence[Observer] = (),
        show_rejected: bool = False,
    ) -> Generator[Event, None, Generation]:
        """Events of one answer as it is made; returns the Generation (`yield from` gives it)."""
        decoding = self.decoding(max_new_tokens=max_new_tokens, observers=observers)
        tokens = self.encode(prompt)
        text = TextStream(self)
        for step, emission in enumerate(decoding.run(tokens, sequence=sequence)):
            record = emission.record
            if record is None:
                (token,) = emission.tokens
                yield Event("first", token, text.add(token), step)
                continue
            refused = refused_token(record) if show_rejected else None
            for place, (kind, token) in enumerate(kinds_of(record)):
                if place == record.num_accepted and refused is not None:
                    yield Event("rejected", refused, self.decode([refused]), step)
                yield Event(kind, token, text.add(token), step)
        rest = text.rest()
        if rest:
            yield Event("rest", -1, rest, step)
        return Generation(
            prompt_tokens=tokens,
            tokens=text.tokens,
            text=text.shown,
            finish_reason=decoding.finish_reason or "",
        )

    def generate(
        self,
        prompt: Prompt,
        *,
        sequence: int = 0,
        max_new_tokens: int | None = None,
        observers: Sequence[Observer] = (),
    ) -> Generation:
        """The whole answer to one prompt."""
        decoding = self.decoding(max_new_tokens=max_new_tokens, observers=observers)
        prompt_tokens = self.encode(prompt)
        tokens: list[int] = []
        for emission in decoding.run(prompt_tokens, sequence=sequence):
            tokens += emission.tokens
        return Generation(
            prompt_tokens=prompt_tokens,
            tokens=tokens,
            text=self.decode(tokens),
            finish_reason=decoding.finish_reason or "",
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
