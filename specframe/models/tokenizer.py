"""A tokenizer of transformers behind the few verbs that the framework uses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specframe.target.base import Tokenizer


class HFTokenizer:
    """Encodes prompts and decodes answers; never adds a special token twice."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @classmethod
    def of(cls, tokenizer: Any) -> HFTokenizer | None:
        """None for no tokenizer."""
        return None if tokenizer is None else cls(tokenizer)

    @property
    def chat_template(self) -> str | None:
        return self.tokenizer.chat_template

    @property
    def eos_token_id(self) -> int | None:
        """The one end-of-text id that the tokenizer names."""
        return self.tokenizer.eos_token_id

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text).input_ids)

    def encode_plain(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Raises ValueError if the tokenizer has no chat template."""
        if self.chat_template is None:
            raise ValueError("this tokenizer has no chat template; set raw=true")
        text = self.tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=False
        )
        # The template has written the special tokens already.
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def decoder(self) -> Callable[[int], str]:
        fast = getattr(self.tokenizer, "backend_tokenizer", None)
        if fast is None:  # a tokenizer in Python: decode the answer anew for each token
            return _Redecoding(self)
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=True)
        return lambda token: stream.step(fast, token) or ""

    def vocabulary(self) -> dict[str, int]:
        return self.tokenizer.get_vocab()


def identity_of(tokenizer: Tokenizer | None, folder: Path | None) -> dict[str, str] | None:
    """sha256 of tokenizer.json where the folder has one, else of the sorted vocabulary."""
    if tokenizer is None:
        return None
    file = None if folder is None else folder / "tokenizer.json"
    if file is not None and file.is_file():
        return {"of": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    words = sorted(tokenizer.vocabulary().items())
    return {"of": "vocabulary", "sha256": hashlib.sha256(json.dumps(words).encode()).hexdigest()}


class _Redecoding:
    """Token by token by decoding all of it, for tokenizers that cannot stream."""

    def __init__(self, tokenizer: HFTokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._shown = ""

    def __call__(self, token: int) -> str:
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        if text.endswith("\ufffd") or not text.startswith(self._shown):
            return ""
        new, self._shown = text[len(self._shown) :], text
        return new
