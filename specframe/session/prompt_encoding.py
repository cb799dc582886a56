"""A prompt of any form as token ids: a text, a conversation, or ids as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from specframe.errors import ConfigError
from specframe.session.chat_settings import ChatSettings
from specframe.target.base import Target

Prompt = str | Sequence[dict[str, str]] | Sequence[int] | torch.Tensor
_ONE_PROMPT = (
    "a prompt is one text, one list of token ids or one list of {role, content} messages; several "
    "prompts are a list of such, all of them"
)
_LISTED = 60  # tokens of a vocabulary that are worth listing


def encode(prompt: Prompt, target: Target, *, raw: bool, chat: ChatSettings) -> list[int]:
    """Token ids of a text, a conversation ({role, content} messages) or ids as they are.

    raw: a text goes through no chat template. Raises ConfigError for what is no prompt, and for a
    text that the target cannot read.
    """
    tokenizer = target.tokenizer
    if isinstance(prompt, torch.Tensor):
        prompt = prompt.tolist()
    if not isinstance(prompt, str):
        if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
            raise ConfigError(_ONE_PROMPT)
        ids = [one for one in prompt if type(one) is int]
        if len(ids) == len(prompt):
            return ids
        if not all(isinstance(one, Mapping) for one in prompt):
            raise ConfigError(_ONE_PROMPT)
    if tokenizer is None:
        raise ConfigError(f"target={target.name} has no tokenizer; give token ids")
    if isinstance(prompt, str):
        check_text(prompt, "the prompt")
        if is_plain(target, raw=raw):
            return _with_tokens(chat.before(prompt), target)
        prompt = [{"role": "user", "content": prompt}]
    messages = chat.with_system(prompt)  # type: ignore[arg-type]
    for message in messages:
        check_text(str(message.get("content")), "the prompt")
    return tokenizer.encode_chat(messages, **(chat.template_args or {}))


def is_several(prompts: object) -> bool:
    """Whether these are several prompts, each of any form, and not one prompt."""
    if isinstance(prompts, (str, bytes)) or not isinstance(prompts, Sequence) or not prompts:
        return False
    return all(isinstance(one, (str, Sequence, torch.Tensor)) for one in prompts)


def is_plain(target: Target, *, raw: bool) -> bool:
    """Whether a text goes to the target as it is, through no chat template."""
    tokenizer = target.tokenizer
    return raw or tokenizer is None or tokenizer.chat_template is None


def check_text(text: str, where: str) -> None:
    """Raises ConfigError, naming `where`, for a text that UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        wrong = ascii(text[error.start])[1:-1]
        raise ConfigError(
            f"{where}: half of a surrogate pair ({wrong}, character {error.start + 1}) is no text; "
            "write the whole character"
        ) from None


def _with_tokens(text: str, target: Target) -> list[int]:
    """Ids of a text. Raises ConfigError if the target's vocabulary has nothing of it."""
    assert target.tokenizer is not None
    tokens = target.tokenizer.encode(text)
    if not tokens and text.strip():
        words = sorted(target.tokenizer.vocabulary())
        known = f", which is {' '.join(words)}" if len(words) <= _LISTED else ""
        shown = text if len(text) <= _LISTED else f"{text[:_LISTED]}..."
        raise ConfigError(
            f"the prompt {shown!r} has nothing of the vocabulary of target={target.name}{known}; "
            "give a text that it can read"
        )
    return tokens
