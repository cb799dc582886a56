"""Other engines on the same weights, which a benchmark measures beside ours in one process.

A plugin brings another engine by subclassing `Peer` under `@peer("its_name")` in its module. That
engine is then among the `peers` of task.compare wherever its package can be imported.
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
    """What every peer gets to work with."""

    model: Any  # of transformers, with the run's weights as they were loaded
    draft: Any  # the model that the target names as its draft model; None if there is none
    max_new_tokens: int
    eos_ids: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way in which a peer decodes greedily."""

    label: str  # its name in tables
    answer: Answer  # prompt ids -> new ids, an end token included
    like: str | None = None  # the drafter of ours that does the same, if there is one


class Peer(ABC):
    """An engine that can decode a model of transformers."""

    package: ClassVar[str]  # the package that must be installed for it

    @abstractmethod
    def ways(self, question: PeerQuestion) -> list[Way]:
        """Its ways to decode, the plain one first."""

    def pass_of(
        self, question: PeerQuestion, context: Sequence[int]
    ) -> Callable[[Sequence[int]], Any] | None:
        """A function that runs one forward of some token ids behind a context.

        It must leave the context as it was. None where the peer has no forward of its own.
        """
        return None


def peer(name: str) -> Callable[[C], C]:
    """Class decorator that registers a peer. Raises ValueError for a name that is taken."""

    def register(cls: C) -> C:
        other = PEERS.get(name)
        if other is not None and (other.__module__, other.__qualname__) != (
            cls.__module__,
            cls.__qualname__,
        ):
            raise ValueError(f"peer {name}: already registered by {other.__module__}")
        PEERS[name] = cls
        return cls

    return register


def peers(name: str | None = None) -> list[Peer]:
    """All peers whose packages are installed, or the one of this name.

    Raises ConfigError for an unknown name, MissingResource if its package is not installed.
    """
    failures = Registry.import_plugins()
    if name is not None and name not in PEERS:
        raise ConfigError(f"task.compare: {no_such_option('peers', name, PEERS, failures)}")
    chosen = [PEERS[name]] if name is not None else list(PEERS.values())
    here = [cls for cls in chosen if importlib.util.find_spec(cls.package) is not None]
    if name is not None and not here:
        raise MissingResource(
            f"task.compare: peers={name}: the package {chosen[0].package} is not installed"
        )
    return [cls() for cls in here]


@peer("transformers")
class Transformers(Peer):
    """`generate` of transformers: plain, with prompt lookup, and with the target's draft model."""

    package: ClassVar[str] = "transformers"
    num_lookup: ClassVar[int] = 10  # prompt_lookup_num_tokens, as in its documentation

    def ways(self, question: PeerQuestion) -> list[Way]:
        lookup = {"prompt_lookup_num_tokens": self.num_lookup}
        ways = [
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
            ways.append(Way(label=title, like="lm", answer=self._answer(question, given=given)))
        return ways

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
        """config: keys of the GenerationConfig; given: arguments of `generate` itself."""
        import transformers

        model = question.model
        # A model's own generation config may sample, penalise or end a text, which must not happen
        # here. Without an end token an id outside of the vocabulary is given, which never comes.
        none = model.config.get_text_config().vocab_size
        settings = transformers.GenerationConfig(
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
                # Parts of transformers warn each other of changes to come.
                warnings.simplefilter("ignore", FutureWarning)
                out = model.generate(
                    ids, attention_mask=mask, generation_config=settings, **(given or {})
                )
            return out[0, len(prompt) :].tolist()

        return answer


@peer("economize")
class Economize(Peer):
    """economize (github.com/Thiggel/economize): its decoding loop, plain and with prompt lookup.

    The lookup takes 3-grams and cycles of 6, as its documentation does. CUDA graphs on a GPU.
    """

    package: ClassVar[str] = "economize"

    def ways(self, question: PeerQuestion) -> list[Way]:
        import economize
        from economize.techniques.lookup import LookupConfig

        graphs = question.model.device.type == "cuda"
        plain = economize.DecodeConfig(cycle_length=1, cuda_graphs=graphs)
        cycles = economize.DecodeConfig(cycle_length=6, cuda_graphs=graphs)
        lookup = LookupConfig(max_ngram=3)
        models = {
            "none": economize.apply(question.model, decoding=plain),
            "ngram": economize.apply(question.model, lookup, decoding=cycles),
        }
        labels = {"none": "economize", "ngram": "economize(lookup)"}
        return [
            Way(label=labels[like], like=like, answer=self._answer(question, model))
            for like, model in models.items()
        ]

    def _answer(self, question: PeerQuestion, model: Any) -> Answer:
        def answer(prompt: list[int]) -> list[int]:
            ids = torch.tensor(prompt, device=question.model.device)
            stop = list(question.eos_ids) or None
            return model.decode(ids, question.max_new_tokens, stop=stop).tokens.tolist()

        return answer
