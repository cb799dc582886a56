"""A head's configuration that contradicts its weights is refused by key, for every layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specframe.errors import ConfigError
from specframe.heads.eagle_export import save_eagle
from specframe.heads.eagle_file import load_eagle, load_eagle3
from specframe.heads.mtp_file import load_mtp, save_mtp
from tests.heads.small_heads import eagle3_net, eagle_net, mtp_net
from tests.small_models import VOCAB

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
}
LAYOUTS: dict[str, tuple[Callable[[Path], object], Callable[[str], Any], dict[str, int]]] = {
    "eagle": (
        lambda folder: save_eagle(eagle_net(embeddings=VOCAB, head=VOCAB), folder),
        load_eagle,
        {**SIZES, "num_hidden_layers": 1},
    ),
    "eagle3": (
        lambda folder: save_eagle(eagle3_net(draft_vocab=40), folder),
        load_eagle3,
        {**SIZES, "draft_vocab_size": 40},
    ),
    "mtp": (
        lambda folder: save_mtp(mtp_net(embeddings=VOCAB, head=VOCAB), folder),
        load_mtp,
        SIZES,
    ),
}
CASES = [(name, key) for name, (_, _, sizes) in LAYOUTS.items() for key in sizes]


@pytest.mark.parametrize(("name", "key"), CASES)
def test_a_size_that_the_weights_contradict_is_refused(name: str, key: str, tmp_path: Path) -> None:
    save, load, sizes = LAYOUTS[name]
    save(tmp_path)
    load(str(tmp_path))
    file = tmp_path / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    # Heads of a given size, or their number would make the size.
    config |= {"head_dim": sizes["hidden_size"] // sizes["num_attention_heads"]}
    for size in (sizes[key], None):
        file.write_text(json.dumps(config | {key: size}), encoding="utf-8")
        load(str(tmp_path))
    file.write_text(json.dumps(config | {key: sizes[key] + 3}), encoding="utf-8")
    message = f"config.json has {key}={sizes[key] + 3}, the weights have {sizes[key]}; they are"
    with pytest.raises(ConfigError, match=message):
        load(str(tmp_path))
