"""Tiny random models in float64, and a loop without a cache to compare with.

The matrices of these models are scaled up, so that attention decides what comes next (a wrong key
or mask changes the text) and the head's margins are wide (a tie cannot look like a bug).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from specframe.buffers.contiguous import Contiguous

VOCAB = 97
LAYERS = 3
WINDOW = 8  # of the layers of gemma3 that see a part of the text
TINY = ("llama", "qwen2", "qwen3", "gemma3", "gpt2", "mixtral")  # the families


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
        built = hf.AutoModelForCausalLM.from_config(config(name, **changes))
        built = built.to(torch.float64).eval()
    with torch.no_grad():
        for key, weight in built.named_parameters():
            if weight.dim() > 1:
                weight.mul_(20 if "lm_head" in key else 10)
    return built


@lru_cache
def shared_model(name: str) -> Any:
    """The model of a family that all tests share; a target works on a copy, never on this one."""
    return model(name)


@torch.no_grad()
def full_logits(model: Any, tokens: Sequence[int]) -> Tensor:
    """[T, V] logits of one forward without a cache."""
    logits: Tensor = model(torch.tensor([list(tokens)]), use_cache=False).logits
    return logits[0]


@lru_cache
def greedy_text(name: str, prompt: tuple[int, ...], count: int) -> list[int]:
    """The greedy text of a family's shared model, by one pass over everything for each token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(full_logits(shared_model(name), tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def fresh_keys(model: Any, tokens: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Keys and values [1, heads, T, size] of each layer by transformers' own prefill."""
    from transformers import DynamicCache

    cache: Any = DynamicCache()  # without a configuration no layer forgets what left its window
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with torch.no_grad():
        model(torch.tensor([list(tokens)]), use_cache=True, **{name: cache})
    return [(layer.keys, layer.values) for layer in cache.layers]


def assert_fresh(cache: Contiguous, model: Any, tokens: Sequence[int]) -> None:
    """The cache holds exactly what a prefill of tokens[:length] would leave."""
    for layer, expected in enumerate(fresh_keys(model, tokens[: cache.lengths[0]])):
        for present, wanted in zip(cache.committed(layer), expected, strict=True):
            torch.testing.assert_close(present, wanted, rtol=0, atol=1e-9)


def byte_tokenizer(*, bos: bool = False) -> Any:
    """Every byte is a token; one family adds a first token to a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1, **{one: i + 2 for i, one in enumerate(letters)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
