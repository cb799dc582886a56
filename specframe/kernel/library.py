"""The compiled kernel: built once per machine by its C++ compiler, stored, and loaded by ctypes."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from ctypes import POINTER, Structure, c_float, c_int, c_long, c_void_p
from pathlib import Path

from specframe.storage.cache_folder import cache_root
from specframe.storage.digests import is_unchanged, seal

_HERE = Path(__file__).parent
_SOURCES = ("vectors.h", "product.h", "attention.h", "blocks.cpp")
_COMPILERS = ("c++", "g++", "clang++")
# No -ffast-math, so that sums are never reordered: a row must not depend on how many there are.
_FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno"),
    *("-Wno-psabi", "-shared", "-fPIC"),
)
_TIMEOUT_S = 300


class NoCompiler(RuntimeError):
    """The kernel could not be built; the message says why in one line."""


class Matrix(Structure):
    """A packed weight: the struct of this name in product.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("panels", "scales", "bias")),
        *((name, c_long) for name in ("columns", "k", "bytes")),
    ]


class Block(Structure):
    """The weights of a block: the struct of this name in attention.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("norm", "mlp_norm", "query_norm", "key_norm")),
        *((name, Matrix) for name in ("query", "key", "value", "out", "gate", "up", "down")),
    ]


class KernelPass(Structure):
    """One pass over some blocks: the struct `Pass` of attention.h, which describes each field."""

    _fields_ = [
        ("blocks", POINTER(Block)),
        *((name, c_long) for name in ("first", "last", "rows", "hidden", "heads")),
        *((name, c_long) for name in ("kv_heads", "size", "inner")),
        *((name, c_float) for name in ("eps", "scale")),
        *((name, c_void_p) for name in ("stream", "cos", "sin", "slots")),
        *((name, c_long) for name in ("lanes", "widest")),
        *((name, c_void_p) for name in ("starts", "width", "visible")),
        *((name, c_void_p) for name in ("keys", "values", "capacity", "skip", "taps")),
        *((name, c_void_p) for name in ("scratch", "seen")),
        ("threads", c_long),
    ]


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded kernel; compiled at the first call on this machine, which takes seconds.

    Raises NoCompiler.
    """
    file = library_file()
    try:
        loaded = ctypes.CDLL(str(file))
    except OSError as error:  # a folder from which nothing may be run
        raise NoCompiler(f"cannot load {file} ({error})") from error
    loaded.panel_columns.restype = loaded.scratch_floats.restype = c_long
    loaded.scratch_floats.argtypes = loaded.run.argtypes = [POINTER(KernelPass)]
    loaded.pack.argtypes = [c_void_p, c_void_p, c_long, c_long, c_long, c_int]
    loaded.linear.argtypes = [POINTER(Matrix), c_void_p, c_void_p, c_long, c_long]
    loaded.pack.restype = loaded.linear.restype = loaded.run.restype = None
    return loaded


def library_file() -> Path:
    """The file of the compiled kernel, which is compiled if it is not there or not what it was.

    A file that was cut would end the process with a signal once it is run. It is named by a digest
    of source, flags, compiler and processor. Raises NoCompiler.
    """
    compiler = _compiler()
    digest = hashlib.sha256(_processor().encode())
    for part in (*(_HERE / name for name in _SOURCES), Path(compiler).resolve()):
        digest.update(part.read_bytes() if part.parent == _HERE else str(part).encode())
    digest.update(" ".join(_FLAGS).encode())
    file = cache_root() / "kernel" / f"{digest.hexdigest()[:24]}.so"
    if not is_unchanged(file, sealed=True):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            _compile(compiler, file)
            seal(file)
        except OSError as error:
            raise NoCompiler(f"cannot write {file.parent} ({error.strerror})") from error
    return file


def _compiler() -> str:
    chosen = os.environ.get("CXX")
    for name in (chosen,) if chosen else _COMPILERS:
        if compiler := shutil.which(name):
            return compiler
    looked = f"$CXX={chosen}" if chosen else ", ".join(_COMPILERS)
    raise NoCompiler(f"no C++ compiler (looked for {looked}); install g++")


def _compile(compiler: str, file: Path) -> None:
    """Compile to `file`, which appears whole or not at all, also if several processes do so."""
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        output = Path(scratch) / file.name
        reason = ""
        for openmp in (["-fopenmp"], []):  # not every compiler comes with it
            command = [compiler, *_FLAGS, *openmp, "-o", str(output), str(_HERE / "blocks.cpp")]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise NoCompiler(f"{compiler} took longer than {_TIMEOUT_S} s") from None
            if done.returncode == 0:
                os.replace(output, file)
                return
            reason = (done.stderr.strip().splitlines() or ["no message"])[0]
        raise NoCompiler(f"{compiler} failed: {reason[:200]}")


def _processor() -> str:
    """What -march=native depends on, since machines may share a cache folder."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() + platform.machine()
    lines = re.findall(r"^(?:model name|flags|Features)\s*:.*$", text, re.MULTILINE)
    return platform.machine() + "\n".join(sorted(set(lines)))
