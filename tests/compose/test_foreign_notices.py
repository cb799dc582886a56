"""Nothing that other libraries say while they are imported reaches the user."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

import specframe
from specframe.compose.foreign_notices import TALKATIVE

_PROGRAM = """
import specframe
words = ["target=random", "target.layers=1", "drafter=ngram", "tree=chain"]
specframe.load([*words, "sampling.temperature=1", "sampling.top_k=5"]).generate([1, 2])
import lightning, peft, torch.utils.flop_counter, transformers.generation
try:
    import torchao
except ImportError:
    pass
"""


def test_notices_are_off_whatever_is_composed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"torchao", "torch.utils._pytree", "torch.utils.flop_counter"} <= set(TALKATIVE)
    for name in TALKATIVE:
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
        logging.getLogger(name).manager._clear_cache()  # type: ignore[attr-defined]
    specframe.load(["target=toy", "drafter=ngram", "tree=chain"])
    for name in (*TALKATIVE, "torchao.kernel.intmm"):
        assert not logging.getLogger(name).isEnabledFor(logging.WARNING)
        assert logging.getLogger(name).isEnabledFor(logging.ERROR)


@pytest.mark.slow
def test_a_fresh_process_says_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
