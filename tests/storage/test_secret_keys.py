"""Keys of passwords and tokens are known, in any case and at any depth; others are not."""

from __future__ import annotations

import pytest

from specframe.storage.secret_keys import is_secret


@pytest.mark.parametrize("key", ["token", "API_KEY", "wandb.apikey", "a.b.Password", "hub_token"])
def test_a_secret_is_known(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize("key", ["max_new_tokens", "tokens", "author", "tokenizer", "secretary"])
def test_other_keys_are_none(key: str) -> None:
    assert not is_secret(key)
