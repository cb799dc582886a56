"""The text of a single token: special tokens by their names, parts of a character as bytes."""

from __future__ import annotations

import json

from specframe.session.engine import Engine


class TokenTexts:
    """Texts of single tokens, each made once. Without a tokenizer they are the ids."""

    def __init__(self, engine: Engine) -> None:
        self._decode = engine.decode
        self._tokenizer = engine.components.target.tokenizer
        self._known: dict[int, str] = {}
        words = {} if self._tokenizer is None else self._tokenizer.vocabulary()
        self._pieces = {token: piece for piece, token in words.items()}

    def text(self, token: int) -> str:
        """The text of a token, such as `" the"`, `"<|im_end|>"` or `"<E2><80>"`."""
        if token not in self._known:
            self._known[token] = self._read(token)
        return self._known[token]

    def quoted(self, token: int) -> str:
        """The text in quotation marks and on one line: `' the'`."""
        return f"'{json.dumps(self.text(token), ensure_ascii=False)[1:-1]}'"

    def _read(self, token: int) -> str:
        if self._tokenizer is None:
            return f"<{token}>"
        text = self._decode([token])
        piece = self._pieces.get(token, "")
        if text and "\ufffd" not in text:
            # Decoding drops the space in front of a first word.
            return f" {text}" if piece.startswith("\u2581") and text[0] != " " else text
        raw = [_BYTES.get(letter) for letter in piece]
        if not piece or text == "" or None in raw:
            return piece or f"<{token}>"
        return "".join(f"<{byte:02X}>" for byte in raw if byte is not None)


def _byte_letters() -> dict[str, int]:
    """Letter -> byte of the alphabet of GPT-2, in which byte-level tokenizers spell bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


_BYTES = _byte_letters()
