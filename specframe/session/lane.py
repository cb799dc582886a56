"""One sequence under way, and the one host read of each of its steps."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from specframe.cache.base import Tenancy
from specframe.components import NOT_FINITE, SOUND, SPOILT, Components
from specframe.drafting.builder import TreeBuilder
from specframe.errors import ConfigError
from specframe.law.sampling import Sampling
from specframe.law.streams import Streams
from specframe.law.target_laws import Laws
from specframe.records import Context, StepRecord
from specframe.session.stopping import EXHAUSTED, Stopping
from specframe.types import Draft, How, TargetOutput, Verdict


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the answers of a loop have in common, beside its components."""

    max_new_tokens: int
    sampling: Callable[[int], Sampling]  # made for the length of a prompt
    stopping: Stopping
    streams: Callable[[int], Streams]  # of the number of a sequence
    log_probs: bool = False  # lanes keep those of the emitted tokens

    def lane(self, parts: Components, prompt: Sequence[int], sequence: int) -> Lane:
        """A sequence that begins with this prompt, for which the target's cache is opened.

        Raises ConfigError for a prompt that does not fit.
        """
        parts.check_prompt(prompt)
        length, most = len(prompt), self.max_new_tokens
        columns = parts.max_columns(length, most)
        return Lane(
            tenancy=parts.cache.open(0, columns=columns, device=parts.target.device),
            context=parts.context(prompt, sequence=sequence, columns=columns, max_new_tokens=most),
            limit=parts.limit(length, most),
            sampling=self.sampling(length),
            rng=self.streams(sequence),
            stopping=self.stopping,
            log_probs=[] if self.log_probs else None,
        )


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What the rule said of a lane's draft, before the host knows any of it."""

    draft: Draft
    laws: Laws
    out: TargetOutput
    verdict: Verdict
    wanted: Tensor  # [n] int64, what the host is to read
    num_log_probs: int  # of `wanted`, which are the bits of log-probabilities


def read_together(steps: Sequence[Judged]) -> list[list[int]]:
    """The values that each step wants: the one host read of a step of all lanes."""
    if len(steps) == 1:
        return [steps[0].wanted.tolist()]
    values = torch.cat([step.wanted for step in steps]).tolist()
    sizes = [len(step.wanted) for step in steps]
    ends = accumulate(sizes)
    return [values[end - size : end] for end, size in zip(ends, sizes, strict=True)]


@dataclass(kw_only=True)
class Lane:
    """One sequence under way. Only the loop makes one."""

    context: Context
    sampling: Sampling  # made for the length of the prompt
    rng: Streams  # keyed by the number of the sequence
    stopping: Stopping
    limit: int  # tokens that the context may reach
    tenancy: Tenancy  # of the target's cache
    finish_reason: str | None = None
    log_probs: list[float] | None = None  # of the emitted tokens; None: nobody wants them

    def room(self) -> int:
        """Tokens that may still be emitted before the length limit; none where all are banned."""
        return 0 if self.finish_reason == "exhausted" else self.limit - len(self.context)

    def builder(self, how: How) -> TreeBuilder:
        """A draft of the bare root."""
        ids = self.context.ids
        return TreeBuilder(
            context=ids, sampling=self.sampling, rng=self.rng, step=ids.shape[0], how=how
        )

    def laws(self, draft: Draft, out: TargetOutput) -> Laws:
        """The target's laws at the nodes of a draft, made where they are asked for."""
        return Laws(
            draft=draft, logits=out.logits, context=self.context.ids, sampling=self.sampling
        )

    def check_current(self) -> None:
        """Raises ConfigError if a later sequence has taken the cache and the drafter over."""
        if self.tenancy.ended:
            raise ConfigError(
                "this answer was superseded by a later one of the same engine; finish it first, "
                "or load a second engine"
            )

    def go_back(self, length: int, *, num_tail: int) -> None:
        """Keep `length` tokens of the context, which `num_tail` more are to follow.

        Raises ConfigError if that leaves less than the prompt and one token, or too much.
        """
        self.check_current()
        context, total = self.context, length + num_tail
        if length > len(context) or not context.prompt_length < total <= self.limit:
            raise ConfigError(
                f"cannot truncate {len(context)} tokens to {length} and go on to {total}; "
                f"the prompt has {context.prompt_length}, the limit is {self.limit}"
            )
        context.truncate(length)
        self.finish_reason = None
        self.rng.roll_back()

    def first_token(self, out: TargetOutput) -> tuple[list[int], int]:
        """(token, soundness as `check_sound` reads it) after prefill, by the last prompt row's law.

        No token where processors ban every one.
        """
        laws = self.laws(self.builder("place").build(), out)
        root = torch.zeros(1, dtype=torch.long, device=out.logits.device)
        token = laws.pick(root, 0, self.rng, root == 0)
        codes = self._codes(laws, root[:0], token)
        sound = self._sound(out, laws)
        tensors = [token, codes, sound, *self._log_probs(laws, root[:0], token)]
        token_id, code, state, *log_probs = torch.cat(tensors).tolist()
        self._keep(log_probs[: code != EXHAUSTED])
        self.finish_reason = self.stopping.reason(code)
        return [] if code == EXHAUSTED else [token_id], state

    def judged(
        self, draft: Draft, laws: Laws, out: TargetOutput, verdict: Verdict, extra: Tensor | None
    ) -> Judged:
        """A step that waits for the read that all lanes share. extra: the drafter's readback."""
        path, tokens = verdict.path[0], verdict.tokens[0]
        codes = self._codes(laws, path, tokens)
        log_probs = self._log_probs(laws, path, tokens)
        tensors = [verdict.count, self._sound(out, laws), path, tokens, codes, *log_probs]
        tensors += [] if extra is None else [extra.view(-1)]
        return Judged(
            draft=draft,
            laws=laws,
            out=out,
            verdict=verdict,
            wanted=torch.cat([tensor.to(tokens.device) for tensor in tensors]),
            num_log_probs=sum(map(len, log_probs)),
        )

    def record(self, step: Judged, values: list[int]) -> tuple[StepRecord, int]:
        """The record of a step and its soundness, given what the host has read.

        Stop conditions cut the verdict here and nowhere else. values: of `step.wanted`.
        """
        (count, state), depth = values[:2], step.verdict.path.shape[1]
        rows, values = values[2 : 2 + depth], values[2 + depth :]
        emitted, values = values[: depth + 1], values[depth + 1 :]
        stops, values = values[: depth + 1], values[depth + 1 :]
        size = step.num_log_probs
        place = next((place for place, code in enumerate(stops[:count]) if code), count - 1)
        kept = place + (stops[place] != EXHAUSTED)
        self._keep(values[:size][:kept])
        record = StepRecord(
            draft=step.draft,
            laws=step.laws,
            out=step.out,
            verdict=step.verdict,
            path=rows[: max(kept - 1, 0)],
            tokens=emitted[:kept],
            num_accepted=min(count - 1, kept),
            was_cut=kept < count,
            length_before=len(self.context),
            finish_reason=self.stopping.reason(stops[place]),
            readback=values[size:],
        )
        return record, state

    def _sound(self, out: TargetOutput, laws: Laws) -> Tensor:
        """[1] SOUND, or what is not: the logits, or what processors made of them."""
        finite = out.logits.amax().isfinite()  # the maximum of a row carries NaN and infinity
        if not self.sampling.path_dependent:
            return finite.long().view(1)
        spoilt = torch.where(laws.is_spoilt(), SPOILT, SOUND)
        return torch.where(finite, spoilt, NOT_FINITE).view(1)

    def _codes(self, laws: Laws, path: Tensor, tokens: Tensor) -> Tensor:
        """[D + 1] the stop code of each token [D + 1] of a verdict with this path [D] of rows."""
        codes = self.stopping.codes(self.context, tokens, self.room())
        if not self.sampling.path_dependent:
            return codes  # only processors ban tokens
        return torch.where(laws.exhausted()[_parents(path)], EXHAUSTED, codes)

    def _log_probs(self, laws: Laws, path: Tensor, tokens: Tensor) -> list[Tensor]:
        """[D + 1] bits of the log-probabilities of a verdict's tokens, in a list; none unless
        somebody wants them. As integers they travel with the rest of the one host read."""
        if self.log_probs is None:
            return []
        return [laws.log_probs(_parents(path), tokens).view(torch.long)]

    def _keep(self, bits: list[int]) -> None:
        """Append the log-probabilities of emitted tokens."""
        if self.log_probs is not None:
            self.log_probs += struct.unpack(f"<{len(bits)}d", struct.pack(f"<{len(bits)}q", *bits))

    def forced(self, draft: Draft, out: TargetOutput, tail: list[int]) -> StepRecord:
        """The record of a step that emits `tail`, of which the draft is all but the last token."""
        path = list(range(1, len(tail)))
        verdict = Verdict(
            path=draft.tokens.new_tensor([path]),
            tokens=draft.tokens.new_tensor([tail]),
            count=draft.tokens.new_tensor([len(tail)]),
        )
        return StepRecord(
            draft=draft,
            laws=self.laws(draft, out),
            out=out,
            verdict=verdict,
            path=path,
            tokens=tail,
            num_accepted=len(path),
            was_cut=False,
            length_before=len(self.context),
        )


def _parents(path: Tensor) -> Tensor:
    """[D + 1] the rows after which the tokens of a verdict with this path [D] come."""
    return torch.cat([path.new_zeros(1), path.clamp_min(0)])
