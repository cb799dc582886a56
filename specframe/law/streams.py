"""Counter-based random streams: every draw is a pure function of (seed, sequence, counters).

There is no hidden state, so the same question gets the same answer in any order, on any device and
inside a captured graph. Rules and the tree builder draw through these three verbs only, which lets
a test put an enumerator in their place and walk every branch with its probability.

The same counters give the same number. Counters of coins and draws that decide emitted text must
therefore never come twice in a sequence, within a step or in a later one: a coin that has helped to
refuse a token is no longer a fair one where it is tossed again, and no law computed from single
draws shows that. Three repetitions are meant: coupled draws share the target's noise, a rule that
explains a verdict tosses the same coins again, and positions that are decoded again after a
roll-back get the noise that they had. `CheckedStreams` and the enumerator of `task=certify` raise
ReusedDraw on any other.

Mixing function: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Stream = Literal["target", "draft", "accept", "policy"]
_STREAMS: dict[str, int] = {"target": 1, "draft": 2, "accept": 3, "policy": 4}
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def _mix_int(x: int) -> int:
    x = ((x ^ (x >> 30)) * _MULTIPLIERS[0]) & _MASK
    x = ((x ^ (x >> 27)) * _MULTIPLIERS[1]) & _MASK
    return x ^ (x >> 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _signed(_MULTIPLIERS[0])
    x = (x ^ _shift(x, 27)) * _signed(_MULTIPLIERS[1])
    return x ^ _shift(x, 31)


def _unit(bits: Tensor) -> Tensor:
    """float64 strictly inside (0, 1): 52 bits and a half, as one bit more would round up to 1."""
    return (_shift(bits, 12).double() + 0.5) * 2.0**-52


class Streams:
    """The four streams of one sequence: target noise, draft, accept, policy.

    sequence [] may be a tensor, so that one captured graph serves them all.
    """

    def __init__(self, *, seed: int, sequence: int | Tensor = 0) -> None:
        self.seed = seed
        self.sequence = sequence

    def roll_back(self) -> None:
        """Called when the sequence goes back: later positions get the noise again that they had."""

    def uniform(self, stream: Stream, *counters: int | Tensor) -> Tensor:
        """float64 in (0, 1), of the broadcast shape of the tensor counters ([] if all are ints)."""
        state: int | Tensor = _mix_int((self.seed * _GOLDEN + _STREAMS[stream]) & _MASK)
        for counter in (self.sequence, *counters):
            if isinstance(state, int) and isinstance(counter, int):
                state = _mix_int((state + _GOLDEN * (counter + 1)) & _MASK)
            else:
                base = _signed(state) if isinstance(state, int) else state
                if isinstance(counter, Tensor):
                    state = _mix((counter + 1) * _signed(_GOLDEN) + base)
                else:
                    assert isinstance(base, Tensor)
                    state = _mix(base + _signed((counter + 1) * _GOLDEN))
        bits = torch.tensor(_signed(state)) if isinstance(state, int) else state
        return _unit(bits)

    def noise(self, position: int | Tensor, ids: Tensor) -> Tensor:
        """Target noise: exponential variates [V], keyed by (seed, sequence, position, token id).

        argmax(p / noise) samples p; log p - log(noise) is the Gumbel form.
        """
        return -self.uniform("target", position, ids).log()

    def target(self, probs: Tensor, position: int | Tensor, where: Tensor) -> Tensor:
        """[M] tokens sampled from probs [M, V] for `position` with the target noise.

        All M rows share the noise of that position: only one of them can be on the path.
        where [M] bool marks the rows whose token matters. No later call may ask for the noise of a
        position at which a row mattered.
        """
        ids = torch.arange(probs.shape[-1], device=probs.device)
        return (probs.double() / self.noise(position, ids)).argmax(-1)

    def coupled(self, law: Tensor, ids: Tensor | None, position: int | Tensor, k: int) -> Tensor:
        """[F, k] indices into Vd: the k best of law [F, Vd] under the target noise of `position`.

        Coupled draws: Daliri et al., arXiv 2408.07978, extended to k children.
        """
        tokens = torch.arange(law.shape[-1], device=law.device) if ids is None else ids
        return (law.double() / self.noise(position, tokens)).topk(k, dim=-1).indices

    def categorical(
        self, stream: Stream, probs: Tensor, counters: tuple[int | Tensor, ...], where: Tensor
    ) -> Tensor:
        """[F] indices drawn from probs [F, V] (need not be normalised), by inverse distribution.

        counters broadcast to [F]; those of rows that matter are new in this sequence.
        Zero-probability entries are never returned unless all are zero.
        where [F] bool marks the rows whose draw matters; the others return anything.
        """
        cumulative = probs.double().cumsum(-1)
        total = cumulative[:, -1:]
        u = self.uniform(stream, *counters).to(probs.device).expand(probs.shape[0])[:, None] * total
        index = torch.searchsorted(cumulative, u, right=True)[:, 0]
        # u < total up to rounding; the last entry with mass closes the gap.
        last = (cumulative < total).sum(-1)
        return torch.minimum(index, last)

    def coin(
        self, probability: Tensor, counters: tuple[int | Tensor, ...], where: Tensor
    ) -> Tensor:
        """bool [] or [F]: u < probability on the accept stream (strict: zero never passes).

        The counters of rows where `where` is true are new in this sequence: begin them with the
        position at which the step begins, or with one that no later step can come to.
        """
        return self.uniform("accept", *counters).to(probability.device) < probability
