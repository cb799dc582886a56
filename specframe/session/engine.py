"""The composed engine as a user holds it: text in, events or a result out."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import chain
from typing import Any, overload

from specframe.capture.wrappers import captured
from specframe.components import Components
from specframe.law.sampling import Sampling, build_sampling
from specframe.law.streams import Streams
from specframe.loop import Decoding
from specframe.measure.clock import Clock
from specframe.records import Observer
from specframe.session.arguments import (
    BatchSize,
    MaxNewTokens,
    SequenceNumber,
    bound,
)
from specframe.session.declared_reads import host_reads
from specframe.session.events import Event, EventMaker, events_of
from specframe.session.forking import forked
from specframe.session.generation import Generation, Tally, say_exhausted
from specframe.session.lane import Terms
from specframe.session.lanes import Lanes, Request, check_company
from specframe.session.prompt_encoding import Prompt, encode, is_plain, is_several
from specframe.session.settings import Settings, check_settings
from specframe.session.stopping import build_stopping
from specframe.session.text_stream import TextStream


class Engine:
    """Components and settings of a run; decodes any number of prompts, one or several at a time.

    Every prompt starts afresh: the same prompt, seed and settings give the same answer, whatever
    came before. Threads may share an engine: whole answers wait for each other, and a stream that
    another answer overtook says so. Arguments are bound by the ranges of the YAML files, else
    ConfigError names them.
    """

    def __init__(self, parts: Components, settings: Settings) -> None:
        self.components = parts
        self.settings = settings
        self._running = [captured(parts)]  # of each lane, as the loop runs them
        check_settings(settings, parts.target)
        target = parts.target
        self._stopping = build_stopping(
            settings.stop,
            eos=target.eos_ids,
            tokenizer=getattr(target.tokenizer, "tokenizer", None),
        )

    def __repr__(self) -> str:
        return f"Engine({self.components.words()}, {self.settings.numbers()})"

    @property
    def eos_ids(self) -> Sequence[int]:
        """Ids that end a text in this run."""
        return self.settings.eos_ids(self.components.target)

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
        return host_reads(self.components, self.sampling(prompt_length=1))

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
        terms = self._terms(max_new_tokens, log_probs, streams)
        return Decoding(self._running[0], terms, observers=observers, clock=clock)

    @bound
    def lanes(
        self,
        batch_size: BatchSize,
        *,
        max_new_tokens: MaxNewTokens | None = None,
        log_probs: bool = False,
        streams: type[Streams] = Streams,
    ) -> Lanes:
        """Lanes over this engine's components, each with a fork of them, to be run by hand.

        Raises IncompatibleComponents where an answer would depend on those beside it.
        """
        check_company(self.components, batch_size)
        while len(self._running) < batch_size:
            self._running.append(captured(forked(self.components)))
        terms = self._terms(max_new_tokens, log_probs, streams)
        return Lanes(self._running[:batch_size], terms, self._answer)

    def _terms(
        self, max_new_tokens: int | None, log_probs: bool, streams: type[Streams] = Streams
    ) -> Terms:
        limit = self.settings.max_new_tokens if max_new_tokens is None else max_new_tokens
        return Terms(
            max_new_tokens=limit,
            sampling=self.sampling,
            stopping=self._stopping,
            streams=lambda sequence: streams(seed=self.settings.seed, sequence=sequence),
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
        terms = self._terms(max_new_tokens, log_probs)
        decoding = Decoding(self._running[0], terms, observers=observers)
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
        yield from events_of(seen, EventMaker(text, self.decode if show_rejected else None))
        return self._answer(decoding, tally, tokens, text.tokens, text.shown)

    @overload
    def generate(
        self,
        prompt: Prompt,
        *,
        sequence: SequenceNumber = 0,
        max_new_tokens: MaxNewTokens | None = None,
        observers: Sequence[Observer] = (),
        log_probs: bool = False,
    ) -> Generation: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]] | list[list[dict[str, str]]],
        *,
        batch_size: BatchSize = 1,
        sequence: SequenceNumber = 0,
        max_new_tokens: MaxNewTokens | None = None,
        log_probs: bool = False,
    ) -> list[Generation]: ...

    @bound
    def generate(
        self,
        prompt: Any,
        *,
        batch_size: BatchSize = 1,
        sequence: SequenceNumber = 0,
        max_new_tokens: MaxNewTokens | None = None,
        observers: Sequence[Observer] = (),
        log_probs: bool = False,
    ) -> Generation | list[Generation]:
        """The whole answer to one prompt, or those to a list of prompts, in its order.

        batch_size: answers that are decoded at once; each is the one that its prompt gets alone.
        log_probs: with the log-probability of each token.
        """
        several = is_several(prompt)
        with self.components.lock:
            lanes = self.lanes(batch_size, max_new_tokens=max_new_tokens, log_probs=log_probs)
            prompts = [self.encode(one) for one in (prompt if several else [prompt])]
            for tokens in prompts:
                self.components.check_prompt(tokens)
            requests = [
                Request(number=i, prompt_tokens=one, sequence=sequence, observers=observers)
                for i, one in enumerate(prompts)
            ]
            found: dict[int, Generation] = {}
            for finished in lanes.answers(requests):
                if finished.error is not None:
                    raise finished.error
                assert finished.answer is not None
                found[finished.request.number] = finished.answer
        answers = [found[number] for number in range(len(requests))]
        return answers if several else answers[0]

    def _answer(
        self,
        decoding: Decoding,
        tally: Tally,
        prompt_tokens: Sequence[int],
        tokens: list[int],
        text: str | None = None,
    ) -> Generation:
        if decoding.finish_reason == "exhausted":
            say_exhausted(len(tokens), self.settings.sampling.banning)
        return tally.generation(
            prompt_tokens=prompt_tokens,
            tokens=tokens,
            text=self.decode(tokens) if text is None else text,
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
