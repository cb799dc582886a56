"""Tokenizers of transformers behind our verbs, on two small ones that are built here."""

from __future__ import annotations

import pytest

from specframe.models.tokenizer import HFTokenizer, _Redecoding
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


def test_no_tokenizer_is_none() -> None:
    assert HFTokenizer.of(None) is None
    assert HFTokenizer(byte_tokenizer()).eos_token_id == 1
    assert HFTokenizer(byte_tokenizer()).vocabulary()["</s>"] == 1
