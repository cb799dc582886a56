"""Notices that other libraries log while they are imported, of kernels that they lack."""

from __future__ import annotations

import logging

# torchao, which transformers imports where it is installed, and what it makes torch say; triton,
# which the counting of operations looks for; the hub, whose errors are raised as well.
TALKATIVE = ("huggingface_hub", "torchao", "torch.utils._pytree", "torch.utils.flop_counter")


def silence_notices() -> None:
    """Let only the errors of these libraries through. To be called before they are imported."""
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
