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

from specframe.data.prompts import PromptRecord

_SECONDS = 10  # of one program, processor and wall
_BYTES = 1 << 30  # of memory
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)

# Runs inside the child: limits first, then the program from standard input.
_CHILD = f"""
import resource, sys
for name, limit in (("RLIMIT_CPU", {_SECONDS}), ("RLIMIT_AS", {_BYTES}), ("RLIMIT_FSIZE", 1 << 20),
                    ("RLIMIT_NOFILE", 64), ("RLIMIT_CORE", 0), ("RLIMIT_NPROC", 0)):
    if hasattr(resource, name):
        resource.setrlimit(getattr(resource, name), (limit, limit))
exec(compile(sys.stdin.read(), "answer", "exec"), {{"__name__": "answer"}})
print("passed", end="")
"""


def code_is_right(text: str, record: PromptRecord) -> bool | None:
    """Whether the answer passes the suite's tests; None where the prompt has none."""
    if record.checks is None:
        return None
    return passes(f"{program(record.turns[0], text)}\n\n{record.checks}\n")


def program(prompt: str, answer: str) -> str:
    """The function an answer makes: its code block, or what it says, after the prompt unless it
    defines the function itself (then after the prompt's imports and helpers)."""
    fenced = _FENCE.search(answer)
    code = answer if fenced is None else fenced.group(1)
    names = re.findall(r"^def\s+(\w+)", prompt, re.MULTILINE)
    if names and re.search(rf"^def\s+{names[-1]}\b", code, re.MULTILINE):
        above, _, _ = prompt.rpartition(f"def {names[-1]}")
        return f"{above}\n{code}"
    return prompt + code


def passes(source: str) -> bool:
    """Run a program in a process of its own: an empty folder and environment, limits on time,
    memory, files and processes. It still runs as this user and may reach the network."""
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
            said, _ = child.communicate(source.encode(errors="replace"), timeout=2 * _SECONDS)
        except subprocess.TimeoutExpired:
            said = b""
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return child.returncode == 0 and said.endswith(b"passed")
