"""A tokenizer of transformers behind the few verbs that the framework uses."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError, describe_error, did_you_mean
from specframe.target.base import Tokenizer

_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt"),
    *("merges.txt", "spiece.model", "sentencepiece.bpe.model"),
)  # a folder with any of these has a tokenizer
_OURS = {"messages", "add_generation_prompt", "tokenize"}  # variables that a run gives itself


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

    def encode_chat(self, messages: Sequence[dict[str, str]], /, **template_args: Any) -> list[int]:
        """Raises ConfigError without a chat template, for a variable that it does not have, and for
        messages that it refuses."""
        if self.chat_template is None:
            raise ConfigError("this tokenizer has no chat template; set raw=true")
        if template_args:
            _check_variables(str(self.chat_template), template_args)
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=False, **template_args
            )
        except Exception as error:  # a template is a program of its own, and may raise anything
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise ConfigError(
                f"the chat template refuses these messages (roles: {roles}): "
                f"{describe_error(error)}; change them, or set raw=true to go without the template"
            ) from error
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


def load_tokenizer(folder: str, options: dict[str, Any], *, named_by: str) -> Any:
    """The tokenizer of transformers for a folder or hub name; None if there is none.

    named_by: key and value of the folder, for messages. Raises ConfigError for a tokenizer that
    is there and cannot be read.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, **options)
    except Exception as error:  # a file of any content may raise anything
        files = [name for name in _FILES if (Path(folder) / name).is_file()]
        if files:
            raise ConfigError(
                f"{named_by}: its tokenizer ({', '.join(files)}) cannot be read "
                f"({describe_error(error)[:200]}); mend it, or remove it to give token ids"
            ) from error
        if not isinstance(error, OSError | ValueError):
            raise
        return None


def identity_of(tokenizer: Tokenizer | None, folder: Path | None) -> dict[str, str] | None:
    """sha256 of tokenizer.json where the folder has one, else of the sorted vocabulary."""
    if tokenizer is None:
        return None
    file = None if folder is None else folder / "tokenizer.json"
    if file is not None and file.is_file():
        return {"of": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    words = sorted(tokenizer.vocabulary().items())
    return {"of": "vocabulary", "sha256": hashlib.sha256(json.dumps(words).encode()).hexdigest()}


def _check_variables(template: str, given: Mapping[str, Any]) -> None:
    """Raises ConfigError for a variable that a template ignores, or that is not the user's."""
    known = set(re.findall(r"[A-Za-z_]\w*", template)) - _OURS
    for name in given:
        if name not in known:
            raise ConfigError(
                f"chat.template_args.{name}: the chat template has no such variable."
                f"{did_you_mean(name, known)}"
            )


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
