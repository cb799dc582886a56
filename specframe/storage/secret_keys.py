"""Which keys of a configuration hold what nobody should read in a file."""

from __future__ import annotations

import re

_SECRET = re.compile(r"(^|_)(api_?key|auth|password|secret|token)$")


def is_secret(key: str) -> bool:
    """Whether a key looks like that of a password or a token; dots divide its parts."""
    return _SECRET.search(key.lower().replace(".", "_")) is not None
