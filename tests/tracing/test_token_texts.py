"""Parts of a character are shown as bytes, special tokens by their names."""

from __future__ import annotations

from specframe.tracing.token_texts import TokenTexts
from tests.small_models import Composition, speller


def test_tokens_are_shown_readably() -> None:
    engine = Composition(target=speller()).engine()
    texts, tokenizer = TokenTexts(engine), speller().tokenizer
    assert tokenizer is not None
    euro = tokenizer.encode("a €\n")
    shown = [texts.text(token) for token in euro]
    assert shown == ["a", " ", "<E2>", "<82>", "<AC>", "\n"]
    assert texts.quoted(euro[-1]) == r"'\n'"
    assert texts.text(1) == "</s>"
