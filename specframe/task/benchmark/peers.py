"""Other engines on the same weights, to be measured beside ours in one process.

A plugin brings another one by subclassing `Peer` under `@peer("its_name")` in its module; it is
then one of the `peers` of task.compare wherever its package can be imported.
"""

from __future__ import annotations

import importlib.util
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch

from specframe.errors import ConfigError, MissingResource, no_such_option
from specframe.registry import Registry

PEERS: dict[str, type[Peer]] = {}  # by name, in the order in which they are measured
C = TypeVar("C", bound="type[Peer]")
Answer = Callable[[list[int]], list[int]]


@dataclass(frozen=True, kw_only=True)
class PeerQuestion:
    """What every peer is asked. model: of transformers, with the run's weights as they were loaded.
    draft: the model that the target names as its draft, if that is another one."""

    model: Any
    draft: Any
    max_new_tokens: int
    eos_ids: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way in which a peer decodes greedily. answer: prompt ids -> new ids, an end token
    included. like: the drafter of ours that does the same, if one does."""

    label: str
    answer: Answer
    like: str | None = None


class Peer(ABC):
    """An engine that can decode a model of transformers. package: what must be importable."""

    package: ClassVar[str]

    @abstractmethod
    def ways(self, question: PeerQuestion) -> list[Way]:
        """Its ways to decode, the plain one first."""

    def pass_of(
        self, question: PeerQuestion, context: Sequence[int]
    ) -> Callable[[Sequence[int]], Any] | None:
        """A forward of some rows behind a context, which leaves the context as it was; None where
        the peer has none of its own."""
        return None


def peer(name: str) -> Callable[[C], C]:
    """Class decorator: a peer by its name. Raises ValueError for a name that is taken."""

    def register(cls: C) -> C:
        held = PEERS.get(name)
        if held is not None and (held.__module__, held.__qualname__) != (
            cls.__module__,
            cls.__qualname__,
        ):
            raise ValueError(f"peer {name}: already registered by {held.__module__}")
        PEERS[name] = cls
        return cls

    return register


def peers(name: str | None = None) -> list[Peer]:
    """Those whose packages are here, or the one that is asked for.

    Raises ConfigError for a name that is none, MissingResource for one whose package is missing.
    """
    failures = Registry.import_plugins()
    if name is not None and name not in PEERS:
        raise ConfigError(f"task.compare: {no_such_option('peers', name, PEERS, failures)}")
    chosen = [PEERS[name]] if name is not None else list(PEERS.values())
    here = [one for one in chosen if importlib.util.find_spec(one.package) is not None]
    if name is not None and not here:
        raise MissingResource(
            f"task.compare: peers={name}: the package {chosen[0].package} is not installed"
        )
    return [one() for one in here]


@peer("transformers")
class Transformers(Peer):
    """`generate` of transformers: plain, prompt lookup, and with the target's draft as its
    assistant. num_lookup: prompt_lookup_num_tokens, 10 in its documentation."""

    package: ClassVar[str] = "transformers"
    num_lookup: ClassVar[int] = 10

    def ways(self, question: PeerQuestion) -> list[Way]:
        lookup = {"prompt_lookup_num_tokens": self.num_lookup}
        found = [
            Way(label="generate()", like="none", answer=self._answer(question)),
            Way(
                label=f"generate(prompt_lookup_num_tokens={self.num_lookup})",
                like="ngram",
                answer=self._answer(question, config=lookup),
            ),
        ]
        if question.draft is not None:
            title = f"generate(assistant_model={type(question.draft).__name__})"
            given = {"assistant_model": question.draft}
            found.append(Way(label=title, like="lm", answer=self._answer(question, given=given)))
        return found

    def pass_of(
        self, question: PeerQuestion, context: Sequence[int]
    ) -> Callable[[Sequence[int]], Any] | None:
        import transformers

        model, cache = question.model, transformers.DynamicCache(config=question.model.config)
        named = {"cache", "past_key_values"} & set(inspect.signature(model.forward).parameters)

        @torch.inference_mode()
        def run(tokens: Sequence[int]) -> Any:
            ids = torch.tensor([list(tokens)], device=model.device)
            behind = cache.get_seq_length()
            out = model(ids, **{min(named): cache}, use_cache=True)
            if behind:
                cache.crop(-len(tokens))
            return out

        run(context)
        return run

    def _answer(
        self,
        question: PeerQuestion,
        config: dict[str, Any] | None = None,
        given: dict[str, Any] | None = None,
    ) -> Answer:
        """config: of the generation; given: to `generate` itself."""
        import transformers

        model = question.model
        # A model's own generation config may sample, penalise or end a text, which nobody asked for
        # here; an id that it has not is never said.
        none = model.config.get_text_config().vocab_size
        asked = transformers.GenerationConfig(
            max_new_tokens=question.max_new_tokens,
            do_sample=False,
            repetition_penalty=1.0,
            eos_token_id=list(question.eos_ids) or [none],
            pad_token_id=0,
            **(config or {}),
        )

        def answer(prompt: list[int]) -> list[int]:
            ids = torch.tensor([prompt], device=model.device)
            mask = torch.ones_like(ids)
            with warnings.catch_warnings():
                # Of transformers' own parts to each other.
                warnings.simplefilter("ignore", FutureWarning)
                out = model.generate(
                    ids, attention_mask=mask, generation_config=asked, **(given or {})
                )
            return out[0, len(prompt) :].tolist()

        return answer


@peer("economize")
class Economize(Peer):
    """economize (github.com/Thiggel/economize): its decoding loop, plain and with prompt lookup of
    its defaults, 3-grams and cycles of 6 as in its documentation; CUDA graphs on a GPU."""

    package: ClassVar[str] = "economize"

    def ways(self, question: PeerQuestion) -> list[Way]:
        import economize
        from economize.techniques.lookup import LookupConfig

        graphs = question.model.device.type == "cuda"
        plain = economize.DecodeConfig(cycle_length=1, cuda_graphs=graphs)
        cycles = economize.DecodeConfig(cycle_length=6, cuda_graphs=graphs)
        lookup = LookupConfig(max_ngram=3)
        made = {
            "none": economize.apply(question.model, decoding=plain),
            "ngram": economize.apply(question.model, lookup, decoding=cycles),
        }
        labels = {"none": "economize", "ngram": "economize(lookup)"}
        return [
            Way(label=labels[like], like=like, answer=self._answer(question, model))
            for like, model in made.items()
        ]

    def _answer(self, question: PeerQuestion, model: Any) -> Answer:
        def answer(prompt: list[int]) -> list[int]:
            ids = torch.tensor(prompt, device=question.model.device)
            stop = list(question.eos_ids) or None
            return model.decode(ids, question.max_new_tokens, stop=stop).tokens.tolist()

        return answer
