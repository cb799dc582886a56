"""HumanEval's own check: an answer is run against its tests, in a process with limits."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from specframe.prompts.reader import PromptRecord

_SECONDS = 10  # of one program, processor and wall
_BYTES = 1 << 30  # of memory
_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL | re.MULTILINE)
# A text that goes on from the prompt ends where it leaves the function (Chen et al., section 3.1).
_AFTER = re.compile(r"\n(?:class|def|#|if|print|```)")
_BODY = re.compile(r"\n*(?: {2,}|\t)\S")

# Runs inside the child: limits first, then the program from standard input. What the program
# prints is thrown away, and it does not know the file descriptor that the verdict is written to.
_CHILD = f"""
import os, resource, sys
verdict = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
for name, limit in (("RLIMIT_CPU", {_SECONDS}), ("RLIMIT_AS", {_BYTES}), ("RLIMIT_FSIZE", 1 << 20),
                    ("RLIMIT_NOFILE", 64), ("RLIMIT_CORE", 0), ("RLIMIT_NPROC", 0)):
    if hasattr(resource, name):
        resource.setrlimit(getattr(resource, name), (limit, limit))
exec(compile(sys.stdin.read(), "answer", "exec"), {{"__name__": "answer"}})
os.write(verdict, b"passed")
"""


def code_is_right(text: str, record: PromptRecord) -> bool | None:
    """Whether the answer passes the suite's tests; None where the prompt has none."""
    if record.checks is None:
        return None
    return passes(f"{program(record.turns[0], text)}\n\n{record.checks}\n")


def program(prompt: str, answer: str) -> str:
    """The source of the function that an answer stands for.

    A code block of the answer, or else the answer itself, that defines the function is put behind
    the prompt's imports and helpers. Otherwise the first code block, or a text that goes on from
    the prompt, is put behind the prompt; such a text is cut where it leaves the function.
    """
    names = re.findall(r"^def\s+(\w+)", prompt, re.MULTILINE)
    whole = re.compile(rf"^def\s+{names[-1]}\b" if names else r"(?!)", re.MULTILINE)
    blocks = _FENCE.findall(answer)
    code = next((text for text in [*blocks, answer] if whole.search(text)), None)
    if code is not None:
        above, _, _ = prompt.rpartition(f"def {names[-1]}")
        return f"{above}\n{code}"
    if blocks and not _BODY.match(answer):
        return prompt + blocks[0]
    return prompt + _AFTER.split(answer, maxsplit=1)[0]


def passes(source: str) -> bool:
    """Run a program in a process of its own and return whether it ends without an error.

    The process has an empty folder and environment and limits on time, memory, files and child
    processes. It still runs as this user and may reach the network.
    """
    with tempfile.TemporaryDirectory(prefix="specframe-") as folder:
        child = subprocess.Popen(
            [sys.executable, "-I", "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(folder),
            env={},
            start_new_session=True,
        )
        try:
            output, _ = child.communicate(source.encode(errors="replace"), timeout=2 * _SECONDS)
        except subprocess.TimeoutExpired:
            output = b""
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return child.returncode == 0 and output == b"passed"
