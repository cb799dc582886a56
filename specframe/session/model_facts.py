"""What of a model its text depends on: two runs may share a file only where this is the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

# Keys of `target=` that name a place or a machine, or the code that makes the same numbers.
_PLACES = ("path", "revision", "device_map", "attn_implementation", "trust_remote_code", "draft")
_RESOLVED = ("name", "dtype")  # the identity has what became of them


def model_facts(identity: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Class, weights, number type, tokenizer and chat template, without place or machine.

    identity: as `session.manifest.identity` gives it. chosen: the keys of `target=`, which make
    the weights where no file does (random ones), or change them (quantization).
    """
    where = {key: identity[key] for key in ("path", "commit")}
    template = json.dumps(identity["chat_template"])
    keys = {key: value for key, value in chosen.items() if key not in (*_PLACES, *_RESOLVED)}
    return {
        "model": identity["class"],
        **({"target": keys} if keys else {}),
        "weights": identity["weights"] or where,
        "dtype": identity["dtype"],
        "tokenizer": identity["tokenizer"],
        "chat_template_sha256": hashlib.sha256(template.encode()).hexdigest(),
    }
