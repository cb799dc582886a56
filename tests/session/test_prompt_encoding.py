"""A prompt of any form becomes the ids that the target's template and vocabulary give it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import specframe
from specframe.errors import ConfigError
from specframe.models.tokenizer import HFTokenizer
from specframe.prompts.questions import conversation
from specframe.prompts.reader import PromptRecord
from specframe.session.chat_settings import ChatSettings
from specframe.session.prompt_encoding import encode
from tests.small_models import byte_tokenizer

TOY = ("target=toy", "drafter=none", "max_new_tokens=4")
BRIEF = ChatSettings(system="be brief")


def templated() -> Any:
    """A target whose template writes roles and contents, and whether it should think."""
    inner = byte_tokenizer()
    inner.chat_template = (
        "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}{{ think or '' }}"
    )
    return SimpleNamespace(name="x", tokenizer=HFTokenizer(inner))


def text_of(prompt: Any, chat: ChatSettings, *, raw: bool = False) -> str:
    target = templated()
    ids = encode(prompt, target, raw=raw, chat=chat)
    return str(target.tokenizer.decode(ids))


def test_a_system_prompt_stands_first_unless_the_messages_have_one() -> None:
    asked = [{"role": "user", "content": "hi"}]
    own = [{"role": "system", "content": "be long"}, *asked]
    assert text_of("hi", ChatSettings()) == "[user:hi]"
    assert text_of("hi", BRIEF) == text_of(asked, BRIEF) == "[system:be brief][user:hi]"
    assert text_of(own, BRIEF) == "[system:be long][user:hi]"
    assert text_of("hi", BRIEF, raw=True) == "be brief\n\nhi"
    assert text_of([1, 2], BRIEF) == text_of(torch.tensor([1, 2]), BRIEF)


def test_variables_reach_the_template() -> None:
    assert text_of("hi", ChatSettings(template_args={"think": "no"})) == "[user:hi]no"
    with pytest.raises(ConfigError, match=r"^chat.template_args.thing: the chat template has no"):
        text_of("hi", ChatSettings(template_args={"thing": 1}))


def test_a_file_of_messages_is_one_conversation() -> None:
    record = PromptRecord(before=(("user", "a"), ("assistant", "b")), turns=("c", "d"))
    target = templated()
    engine: Any = SimpleNamespace(is_plain=False, components=SimpleNamespace(target=target))
    assert text_of(conversation(engine, record, []), BRIEF) == (
        "[system:be brief][user:a][assistant:b][user:c]"
    )
    assert text_of(conversation(engine, record, ["x"]), ChatSettings()) == (
        "[user:a][assistant:b][user:c][assistant:x][user:d]"
    )
    engine.is_plain = True
    assert conversation(engine, record, ["x"]) == "a\n\nb\n\nc\n\nx\n\nd"


def test_half_a_character_is_no_text() -> None:
    for prompt in ("ab\udcff", [{"role": "user", "content": "ab\udcff"}]):
        with pytest.raises(ConfigError, match=r"^the prompt: half of a surrogate pair \(\\udcff"):
            text_of(prompt, ChatSettings())


def test_a_text_that_the_target_cannot_read_is_named() -> None:
    engine = specframe.load([*TOY, "target.vocab_size=3"])
    with pytest.raises(ConfigError, match=r"^the prompt '123 é' has nothing of the vocabulary of "):
        engine.encode("123 é")
    with pytest.raises(ConfigError, match=r"target=toy, which is a b c; give a text that it can"):
        engine.encode("xyz")
    assert engine.encode("xa") == [0]


def test_words_of_the_command_line() -> None:
    engine = specframe.load([*TOY, "chat.system=c"])
    assert engine.encode("ab") == [2, 0, 1]
    words = ["chat.template_args.enable_thinking=false"]
    reason = "chat.template_args: they are for a chat template, and"
    with pytest.raises(ConfigError, match=f"^{reason} toy has none"):
        specframe.load([*TOY, *words])
    with pytest.raises(ConfigError, match=f"^{reason} raw=true leaves it out"):
        specframe.load([*TOY, *words, "raw=true"])
    with pytest.raises(ConfigError, match=r"chat.sytem: chat has no field 'sytem'.*'system'"):
        specframe.load([*TOY, "chat.sytem=c"])
    with pytest.raises(ConfigError, match=r"chat.template_args=1: expected mapping or null"):
        specframe.load([*TOY, "chat.template_args=1"])
