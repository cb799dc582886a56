"""Tokenizers of transformers behind our verbs, on two small ones that are built here."""

from __future__ import annotations

from pathlib import Path

import pytest

from specframe.errors import ConfigError
from specframe.models.tokenizer import HFTokenizer, _Redecoding, load_tokenizer
from tests.small_models import byte_tokenizer

TEXTS = (
    "plain words",
    "two  spaces",
    "naïve café",
    "an emoji \U0001f600 and \U0001f44d\U0001f3fd more",
    "line\nbreak",
)


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_text_survives(text: str, bos: bool) -> None:
    ours = HFTokenizer(byte_tokenizer(bos=bos))
    ids = ours.encode_plain(text)
    assert 0 not in ids
    assert ours.encode(text) == ([0, *ids] if bos else ids)
    assert ours.decode(ours.encode(text)) == text
    assert ours.decode([*ids, 1]) == text


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("streams", [True, False])
def test_pieces_join_to_the_text(text: str, streams: bool) -> None:
    ours = HFTokenizer(byte_tokenizer())
    step = ours.decoder() if streams else _Redecoding(ours)
    pieces = [step(token) for token in [*ours.encode(text), 1]]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_template_writes_the_special_tokens_itself() -> None:
    inner = byte_tokenizer(bos=True)
    ours = HFTokenizer(inner)
    with pytest.raises(ValueError, match="no chat template; set raw=true"):
        ours.encode_chat([{"role": "user", "content": "a"}])
    inner.chat_template = (
        "<s>{% for one in messages %}{{ one['content'] }}</s>{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    ids = ours.encode_chat([{"role": "user", "content": "a"}])
    assert ids == [0, *ours.encode_plain("a"), 1, *ours.encode_plain(">")]
    assert ours.chat_template is not None


def test_a_template_gets_the_variables_of_a_run() -> None:
    inner = byte_tokenizer()
    inner.chat_template = "{{ messages[0]['content'] }}{% if enable_thinking %}<think>{% endif %}"
    ours, asked = HFTokenizer(inner), [{"role": "user", "content": "a"}]
    assert ours.encode_chat(asked) == ours.encode_plain("a")
    assert ours.encode_chat(asked, enable_thinking=True) == ours.encode_plain("a<think>")
    assert ours.encode_chat(asked, enable_thinking=False) == ours.encode_plain("a")
    with pytest.raises(
        ConfigError, match=r"^chat.template_args.thinking: the chat template has no"
    ):
        ours.encode_chat(asked, thinking=True)
    with pytest.raises(ConfigError, match=r"Did you mean 'enable_thinking'\?$"):
        ours.encode_chat(asked, enable_thinkin=True)
    with pytest.raises(
        ConfigError, match=r"^chat.template_args.messages: the chat template has no"
    ):
        ours.encode_chat(asked, messages=[])


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('System role not supported') }}", "TemplateError: System role not"),
        ("{{ messages[7].content }}", "UndefinedError: "),
        ("{% for", "TemplateSyntaxError: "),
        ("{{ messages[0].content + 1 }}", "TypeError: "),
    ],
)
def test_a_template_that_raises_is_a_users_mistake(template: str, reason: str) -> None:
    inner = byte_tokenizer()
    inner.chat_template = template
    asked = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    text = rf"the chat template refuses these messages \(roles: system, user\): {reason}"
    with pytest.raises(ConfigError, match=text):
        HFTokenizer(inner).encode_chat(asked)


def test_a_broken_tokenizer_is_not_called_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    assert load_tokenizer(str(tmp_path), {}, named_by="target.path=x") is None
    byte_tokenizer().save_pretrained(tmp_path)
    whole = (tmp_path / "tokenizer.json").read_bytes()
    assert load_tokenizer(str(tmp_path), {}, named_by="target.path=x").eos_token_id == 1
    text = r"^target.path=x: its tokenizer \(tokenizer.json, tokenizer_config.json\) cannot be read"
    for broken in (whole[: len(whole) // 2], b"", b"{}", b"\xff"):
        (tmp_path / "tokenizer.json").write_bytes(broken)
        with pytest.raises(ConfigError, match=text):
            load_tokenizer(str(tmp_path), {}, named_by="target.path=x")


def test_no_tokenizer_is_none() -> None:
    assert HFTokenizer.of(None) is None
    assert HFTokenizer(byte_tokenizer()).eos_token_id == 1
    assert HFTokenizer(byte_tokenizer()).vocabulary()["</s>"] == 1
