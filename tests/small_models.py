"""Tiny random models in float64, a loop without a cache to compare with, and composing by hand.

The matrices of these models are scaled up, so that attention decides what comes next (a wrong key
or mask changes the text) and the head's margins are wide (a tie cannot look like a bug).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from string import ascii_lowercase
from typing import Any

import torch
from torch import Tensor

from specframe.accept.base import AcceptRule
from specframe.accept.match import Match
from specframe.cache.base import CacheManager
from specframe.cache.dynamic import DynamicCache as DynamicCache
from specframe.cache.static import StaticCache as StaticCache
from specframe.capture.wrappers import captured
from specframe.components import Components
from specframe.drafter.base import Drafter
from specframe.drafter.lm import LM
from specframe.drafter.ngram import Ngram
from specframe.drafter.none import NoDraft
from specframe.law.sampling import Sampling, SamplingConfig, build_sampling
from specframe.law.streams import Streams
from specframe.loop import Decoding
from specframe.records import Context, StepRecord
from specframe.runtime.base import Runtime
from specframe.runtime.eager import Eager
from specframe.session.engine import Engine, Settings
from specframe.session.stopping import StopConfig, build_stopping
from specframe.target.base import Target
from specframe.target.hf import HF
from specframe.target.toy import Toy
from specframe.tree.base import ProposalKind, TreePolicy
from specframe.tree.chain import ChainTree
from specframe.tree.dynamic import DynamicTree
from specframe.tree.native import NativeTree
from specframe.tree.static import StaticTree
from specframe.types import Frontier, How, Proposal, Rows, TargetOutput

VOCAB = 97
LAYERS = 3
WINDOW = 8
TINY = ("llama", "qwen2", "qwen3", "gemma3", "gpt2", "mixtral")
CPU = torch.device("cpu")
RUNTIME = Eager(buckets=None)
PROMPT = (5, 17, 42, 17, 42, 8)
LONG_PROMPT = (5, 17, 42, 17, 42, 8, 61, 3, 90, 17, 42, 8, 33, 2)  # longer than WINDOW

CACHE_MAKERS: dict[str, Callable[[], CacheManager]] = {
    "dynamic": DynamicCache,
    "static": lambda: StaticCache(capacity=None, block=16),
}
RANK_PATHS = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [1, 1], [0, 1, 0], [1, 0, 0], [1, 0, 0, 0]]


def config(name: str, **changes: Any) -> Any:
    """The configuration of a tiny model of a family."""
    import transformers as hf

    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        **changes,
    }
    if name == "gpt2":
        renamed = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer"}
        renamed |= {"num_attention_heads": "n_head", "max_position_embeddings": "n_positions"}
        gone = ("intermediate_size", "num_key_value_heads")
        sizes = {renamed.get(key, key): one for key, one in sizes.items() if key not in gone}
        return hf.GPT2Config(**sizes)
    if name == "gemma3":
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        sizes = {"head_dim": 8, "sliding_window": WINDOW, "layer_types": kinds, **sizes}
        return hf.Gemma3TextConfig(**sizes)
    if name == "qwen3":
        return hf.Qwen3Config(**{"head_dim": 8, **sizes})
    if name == "mixtral":
        # The default grouped matmul refuses float64, the loop over experts reads on the host.
        more = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
        return hf.MixtralConfig(**{**more, "experts_implementation": "batched_mm", **sizes})
    return {"llama": hf.LlamaConfig, "qwen2": hf.Qwen2Config}[name](**sizes)


def model(name: str, *, seed: int = 0, **changes: Any) -> Any:
    """A fresh random model in float64, not wrapped."""
    import transformers as hf

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = hf.AutoModelForCausalLM.from_config(config(name, **changes))
        made = made.to(torch.float64).eval()
    with torch.no_grad():
        for key, weight in made.named_parameters():
            if weight.dim() > 1:
                weight.mul_(20 if "lm_head" in key else 10)
    return made


@lru_cache
def raw(name: str) -> Any:
    """The shared model of a family, never wrapped: what oracles run."""
    return model(name)


@lru_cache
def target(name: str) -> HF:
    """The shared target of a family, equal to `raw(name)`."""
    return HF.of(copy.deepcopy(raw(name)), runtime=RUNTIME)


@lru_cache
def draft(name: str, kind: str) -> HF:
    """Draft of a family: `perfect` (a copy), `noisy` (often right), `bad` (another seed)."""
    made = model(name, seed=1) if kind == "bad" else copy.deepcopy(raw(name))
    if kind == "noisy":
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for weight in made.parameters():
                noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
                weight.add_(0.05 * noise * weight.std())
    return HF.of(made, runtime=RUNTIME)


def toy(*, blend: float = 0.0, vocab_size: int = 6, max_positions: int | None = None) -> Toy:
    """A table; `blend` > 0 makes it a draft of the one without."""
    return Toy(
        vocab_size=vocab_size,
        table_seed=1,
        spread=3.0,
        blend=blend,
        max_positions=max_positions,
        device=CPU,
        runtime=RUNTIME,
        draft=None,
    )


@torch.no_grad()
def full_logits(made: Any, tokens: Sequence[int]) -> Tensor:
    """[T, V] logits of one forward without a cache."""
    return made(torch.tensor([list(tokens)]), use_cache=False).logits[0]


@lru_cache
def oracle(name: str, prompt: tuple[int, ...], count: int) -> list[int]:
    """Greedy text by a full forward per token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(full_logits(raw(name), tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def sampling_config(temperature: float = 0.0, **changes: Any) -> SamplingConfig:
    """Plain sampling at a temperature, with `changes`."""
    nothing = dict.fromkeys(SamplingConfig.__dataclass_fields__)
    return SamplingConfig(**{**nothing, "temperature": temperature, **changes})


def stop_config(**changes: Any) -> StopConfig:
    """Nothing but the model's own end tokens, with `changes`."""
    return StopConfig(**{"eos": "auto", "strings": None, "criteria": None, **changes})


def tree_of(name: str, how: ProposalKind = "place") -> TreePolicy:
    """A small tree of each kind."""
    if name == "static":
        return StaticTree(depth=4, max_nodes=12, proposal=how, paths=RANK_PATHS)
    if name == "dynamic":
        return DynamicTree(depth=4, top_k=3, max_nodes=9, proposal=how)
    if name == "native":
        return NativeTree(depth=6, max_nodes=12, proposal=how)
    return ChainTree(depth=4, max_nodes=8, proposal=how)


def drafter_of(kind: str, family: str, cache: str = "dynamic") -> Drafter:
    """none, ngram, or lm with the draft perfect, noisy or bad of a family (or of the toy)."""
    if kind == "none":
        return NoDraft()
    if kind == "ngram":
        return Ngram(n_max=3, n_min=1, length=6, max_matches=4)
    if family == "toy":
        blends = {"perfect": 0.0, "noisy": 0.2, "bad": 1.0}
        return lm_of(toy(blend=blends[kind]), toy(), cache)
    return lm_of(draft(family, kind), target(family), cache)


def lm_of(small: Target, large: Target, cache: str = "dynamic", *, trust: bool = False) -> LM:
    """drafter=lm composed by hand."""
    return LM(model=small, target=large, new_cache=CACHE_MAKERS[cache], trust_vocabulary=trust)


class Scripted(Drafter):
    """Knows the whole text and offers its next token at place `rank` of `width` candidates."""

    def __init__(self, text: Sequence[int], *, rank: int = 0, width: int = 1) -> None:
        self.text, self.rank, self.width = list(text), rank, width

    def begin(self, context: Context, out: TargetOutput) -> None:
        self.context = context

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        place = len(self.context) + frontier.depth
        if place >= len(self.text):
            return []
        offsets = torch.arange(self.width, device=frontier.tokens.device) - self.rank
        candidates = ((self.text[place] + offsets) % VOCAB).expand(len(frontier), -1)
        return [Proposal(candidates=candidates, source="scripted")]


def alone(slots: Tensor) -> Rows:
    """Rows that see themselves alone, for passes whose masks do not matter."""
    return Rows(tokens=slots, positions=slots, slots=slots, prefix=torch.zeros_like(slots))


@dataclass(kw_only=True)
class Composition:
    """One component an axis and the settings of a run; unset ones are the plainest."""

    target: Target
    drafter: Drafter = field(default_factory=NoDraft)
    tree: TreePolicy = field(default_factory=lambda: tree_of("chain"))
    accept: AcceptRule = field(default_factory=Match)
    cache: CacheManager = field(default_factory=DynamicCache)
    runtime: Runtime = RUNTIME
    how: How = "place"
    sampling: SamplingConfig = field(default_factory=sampling_config)
    stop: StopConfig = field(default_factory=stop_config)
    seed: int = 0

    @property
    def parts(self) -> Components:
        names = ("target", "drafter", "tree", "accept", "cache", "runtime", "how")
        return Components(**{name: getattr(self, name) for name in names})

    def engine(self, max_new_tokens: int = 16) -> Engine:
        """The engine of a user."""
        settings = Settings(
            seed=self.seed,
            max_new_tokens=max_new_tokens,
            sampling=self.sampling,
            stop=self.stop,
            raw=True,
        )
        return Engine(self.parts, settings)

    def decoding(self, max_new_tokens: int, observers: Sequence[Any] = ()) -> Decoding:
        """The loop, to be stepped by hand."""
        eos = self.target.eos_ids if self.stop.eos == "auto" else self.stop.eos
        tokenizer = getattr(self.target.tokenizer, "tokenizer", None)

        def sampling(prompt_length: int) -> Sampling:
            return build_sampling(
                self.sampling,
                prompt_length=prompt_length,
                eos=eos,
                encode=None,
                vocabulary=self.target.vocab_size,
                device=self.target.device,
            )

        return Decoding(
            captured(self.parts),
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            stopping=build_stopping(self.stop, eos=eos, tokenizer=tokenizer),
            streams=lambda sequence: Streams(seed=self.seed, sequence=sequence),
            observers=observers,
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run left: emitted tokens, one record a step, and the loop in its last state."""

    tokens: list[int]
    records: list[StepRecord]
    loop: Decoding

    @property
    def num_accepted(self) -> int:
        return sum(record.num_accepted for record in self.records)


def decode(
    composed: Composition,
    prompt: Sequence[int] = PROMPT,
    count: int = 16,
    *,
    observers: Sequence[Any] = (),
    sequence: int = 0,
) -> Outcome:
    """Run to the end; after every step the cache holds all tokens but the root."""
    loop = composed.decoding(count, observers)
    tokens, records = loop.begin(prompt, sequence=sequence), []
    while loop.finish_reason is None:
        records.append(loop.step())
        tokens += records[-1].tokens
        assert loop.context.tokens == [*prompt, *tokens]
        assert composed.cache.lengths[0] == len(loop.context) - 1
        assert composed.cache.extents[0] == composed.cache.lengths[0]
        assert len(records[-1].path) == len(records[-1].tokens) - 1
    return Outcome(tokens=tokens, records=records, loop=loop)


def fresh_keys(made: Any, tokens: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Keys and values [1, heads, T, size] of each layer by transformers' own prefill."""
    from transformers import DynamicCache

    held = DynamicCache()  # without a configuration no layer forgets what left its window
    name = "cache" if "cache" in inspect.signature(made.forward).parameters else "past_key_values"
    with torch.no_grad():
        made(torch.tensor([list(tokens)]), use_cache=True, **{name: held})
    return [(layer.keys, layer.values) for layer in held.layers]


def assert_fresh(cache: CacheManager, made: Any, tokens: Sequence[int]) -> None:
    """The cache holds exactly what a prefill of tokens[:length] would leave."""
    for layer, expected in enumerate(fresh_keys(made, tokens[: cache.lengths[0]])):
        for held, wanted in zip(cache.committed(layer), expected, strict=True):
            torch.testing.assert_close(held, wanted, rtol=0, atol=1e-9)


# A tree of seven rows with three branches; tokens are arbitrary.
TREE_TOKENS = (8, 11, 12, 13, 14, 15, 16)
TREE_PARENTS = (-1, 0, 0, 1, 1, 2, 3)


def tree_paths() -> list[list[int]]:
    """Rows from the root down to each row of the tree, itself included."""
    paths: list[list[int]] = []
    for row, parent in enumerate(TREE_PARENTS):
        paths.append([*(paths[parent] if parent >= 0 else []), row])
    return paths


def tree_rows(cache: CacheManager, order: Sequence[int] | None = None) -> Rows:
    """The tree after the committed prefix; row r lies in the order[r]-th of the fresh slots."""
    paths = tree_paths()
    fresh = cache.reserve([len(paths)]).slots
    slots = fresh if order is None else fresh[torch.tensor(order)]
    visible = torch.zeros((len(paths), cache.width), dtype=torch.bool)
    visible[:, : cache.lengths[0]] = True
    for row, path in enumerate(paths):
        visible[row, slots[path]] = True
    depths = torch.tensor([len(path) - 1 for path in paths])
    return Rows(
        tokens=torch.tensor(TREE_TOKENS),
        positions=cache.lengths[0] + depths,
        slots=slots,
        visible=visible,
    )


def prefilled(made: Target, prompt: Sequence[int], cache: str = "dynamic") -> CacheManager:
    """A cache that holds the prompt."""
    held = CACHE_MAKERS[cache]()
    with torch.inference_mode():
        held.open(0, columns=len(prompt) + 64, device=CPU)
        made.prefill(prompt, held)
    return held


def byte_tokenizer(*, bos: bool = False) -> Any:
    """Every byte is a token; one family adds a first token to a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1, **{one: i + 2 for i, one in enumerate(letters)}}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>"])
    if bos:
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


@lru_cache
def speller() -> HF:
    """A tiny model over bytes that writes lower-case letters."""
    tokenizer = byte_tokenizer()
    made = model("llama", vocab_size=len(tokenizer), max_position_embeddings=512)
    letters = [token for word, token in tokenizer.get_vocab().items() if word in ascii_lowercase]
    with torch.no_grad():
        kept = made.lm_head.weight[letters].clone()
        made.lm_head.weight.zero_()
        made.lm_head.weight[letters] = kept
    return HF.of(made, runtime=RUNTIME, tokenizer=tokenizer)
