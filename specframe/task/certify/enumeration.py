"""The exact law of a decode: every branch of its randomness walked, with its probability.

An `Enumerator` stands in for `Streams` and answers each draw from a script. The decode is repeated
with every script in turn, depth first, which visits all outcomes. This is meant for a vocabulary of
a few tokens, as the number of branches grows with its powers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from specframe.law.checked_streams import UsedCounters
from specframe.law.sampling import Sampling
from specframe.law.streams import Stream, Streams
from specframe.loop import Decoding
from specframe.session.engine import Engine
from specframe.session.lane import Terms
from specframe.session.stopping import Stopping

Law = dict[tuple[int, ...], float]
Outcome = TypeVar("Outcome")


@runtime_checkable
class Tabulated(Protocol):
    """A target whose exact law is known, such as `target=toy`."""

    device: torch.device

    def law(self, tokens: Sequence[int]) -> Tensor:
        """[V] exact log-probabilities of the token after `tokens`, at temperature 1."""


class TooManyBranches(ValueError):
    """The decode has more branches than the caller allows."""


@dataclass
class _Choice:
    """One draw: (value, probability) of each possible outcome, and the index of the current one."""

    options: list[tuple[int, float]]
    taken: int = 0


class Enumerator(Streams):
    """Streams that answer from a script, and multiply up the probability of what they answered.

    A batched call branches for each of its rows. Rows where `where` is false are not used and do
    not branch. Every answer counts as independent of the others, so counters that come twice raise
    ReusedDraw: the true law would have the same coin there. Draws that share the target's noise
    (`coupled`) and raw uniforms cannot be enumerated and raise ValueError. What is decoded again
    after a roll-back counts as drawn afresh.
    """

    def __init__(self, choices: list[_Choice]) -> None:
        super().__init__(seed=0)
        self.probability = 1.0
        self.num_draws = 0
        self._choices = choices
        self._used = UsedCounters()

    def roll_back(self) -> None:
        self._used.clear()

    def beside(self) -> Enumerator:
        """For a loop inside the drafter: the same script, and counters of its own."""
        return _Beside(self)

    def uniform(self, stream: Stream, *counters: int | Tensor) -> Tensor:
        raise ValueError("raw uniforms cannot be enumerated; draw by target, categorical or coin")

    def coupled(self, law: Tensor, ids: Tensor | None, position: int | Tensor, k: int) -> Tensor:
        raise ValueError("coupled draws share the target's noise and cannot be enumerated")

    def target(self, probs: Tensor, position: int | Tensor, where: Tensor) -> Tensor:
        self._used.use_noise(position, where)
        return self._rows(probs, where)

    def categorical(
        self, stream: Stream, probs: Tensor, counters: tuple[int | Tensor, ...], where: Tensor
    ) -> Tensor:
        self._used.use(stream, counters, where)
        return self._rows(probs, where)

    def coin(
        self, probability: Tensor, counters: tuple[int | Tensor, ...], where: Tensor
    ) -> Tensor:
        self._used.use("accept", counters, where)
        passes = probability.double().expand(where.shape).reshape(-1)
        tosses = self._rows(torch.stack([1 - passes, passes], dim=1), where.reshape(-1))
        return tosses.view(where.shape).bool()

    def _rows(self, probs: Tensor, where: Tensor) -> Tensor:
        drawn = [
            self._choose(row) if matters else 0
            for row, matters in zip(probs.tolist(), where.tolist(), strict=True)
        ]
        return torch.tensor(drawn, device=probs.device)

    def _choose(self, probs: Sequence[float]) -> int:
        if self.num_draws == len(self._choices):
            if all(map(math.isnan, probs)):
                return 0  # every token is banned: the loop cuts whatever comes of it
            total = math.fsum(probs)
            if not 0 < total < math.inf:
                raise ValueError(f"a law sums to {total}, so nothing can be drawn from it")
            options = [(value, p / total) for value, p in enumerate(probs) if p > 0]
            self._choices.append(_Choice(options))
        choice = self._choices[self.num_draws]
        self.num_draws += 1
        value, probability = choice.options[choice.taken]
        self.probability *= probability
        return value


class _Beside(Enumerator):
    """Asks another enumerator for every choice, so that one script serves both."""

    def __init__(self, first: Enumerator) -> None:
        super().__init__([])
        self._first = first

    def _choose(self, probs: Sequence[float]) -> int:
        return self._first._choose(probs)


def branches(
    run: Callable[[Enumerator], Outcome], *, max_branches: int
) -> Iterator[tuple[Outcome, float]]:
    """Every outcome of `run` with its probability. Equal outcomes of two branches come twice.

    `run` must make the same draws whenever it gets the same answers. Raises TooManyBranches.
    """
    choices: list[_Choice] = []
    for _ in range(max_branches):
        rng = Enumerator(choices)
        outcome = run(rng)
        assert rng.num_draws == len(choices), "the run is not a function of its draws"
        yield outcome, rng.probability
        while choices and choices[-1].taken + 1 == len(choices[-1].options):
            choices.pop()
        if not choices:
            return
        choices[-1].taken += 1
    raise TooManyBranches(f"more than {max_branches} branches; lower tree.depth or tree.max_nodes")


def sequence_law(
    engine: Engine, prompt: Sequence[int], *, length: int, max_branches: int
) -> tuple[Law, int]:
    """The law of the first `length` tokens that the engine emits, and the number of branches.

    Stop conditions are left out, since they cut a text without changing its law. Raises
    TooManyBranches.
    """

    def run(rng: Enumerator) -> tuple[int, ...]:
        terms = Terms(
            max_new_tokens=length,
            sampling=engine.sampling,
            stopping=Stopping([]),
            streams=lambda sequence: rng,
        )
        decoding = Decoding(engine.components, terms)
        tokens: list[int] = []
        for emission in decoding.run(prompt):
            tokens += emission.tokens
        return tuple(tokens)

    law: defaultdict[tuple[int, ...], float] = defaultdict(float)
    count = 0
    for tokens, probability in branches(run, max_branches=max_branches):
        law[tokens] += probability
        count += 1
    return dict(law), count


def exact_law(target: Tabulated, sampling: Sampling, prompt: Sequence[int], *, length: int) -> Law:
    """The law of the next `length` tokens, read token by token from a target that knows its law.

    A sequence after which every token is banned ends there.
    """
    law: Law = {(): 1.0}
    for _ in range(length):
        longer: Law = {}
        for tokens, probability in law.items():
            context = [*prompt, *tokens]
            ids = torch.tensor([context], device=target.device)
            scores = sampling.scores(ids, target.law(context)[None])
            if scores.isneginf().all():
                longer[tokens] = probability
                continue
            row = sampling.warp(scores, ids)[0].tolist()
            total = math.fsum(row)
            longer |= {(*tokens, t): probability * p / total for t, p in enumerate(row) if p > 0}
        law = longer
    return law


def max_error(law: Law, other: Law) -> float:
    """The largest difference of two laws at any sequence."""
    keys = law.keys() | other.keys()
    return max(abs(law.get(key, 0.0) - other.get(key, 0.0)) for key in keys)


def total_variation(law: Law, other: Law) -> float:
    """Half the summed difference of two laws: 0 for equal ones, 1 for disjoint ones."""
    keys = law.keys() | other.keys()
    return math.fsum(abs(law.get(key, 0.0) - other.get(key, 0.0)) for key in keys) / 2
