"""Passes compiled by torch.compile before the first answer, a few row counts each."""

from __future__ import annotations

import os
import sys
import time
import types
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, Literal

import torch

from specframe.runtime.base import RUNTIMES, Launch, Pass, Runtime, Tensors, Weights
from specframe.storage.cache_folder import cache_root

_KEPT = 32  # passes; the oldest make way
_CACHE = "TORCHINDUCTOR_CACHE_DIR"


@RUNTIMES.register("compile")
class Compile(Runtime):
    """Passes of a few row counts run as `torch.compile` makes them; others run as they are written.

    Compiled before the first answer and never again: rows are fixed, the slots of the cache are one
    unknown size (so attention always runs over all that are allocated), and no guard is kept, since
    a pass's key says all that it depends on. What was compiled is kept on the disk, where the next
    process finds it. A pass that cannot be compiled runs as it is written, and a line says why; so
    do all of them where there is no compiler (g++ for a CPU, Triton for CUDA). Sums over another
    row count may round differently, as in eager.

    freeze: weights are constants, which are folded; auto: on a CPU. autotune: kernels of matrix
    products are chosen by measurement; auto: on CUDA. On a CPU that freezes too and lays weights
    out anew for each row count, which then has its own copy of them, and keeps the kernels alone on
    the disk.
    """

    def __init__(
        self,
        *,
        freeze: bool | Literal["auto"],
        autotune: bool | Literal["auto"],
        buckets: list[int] | None,
    ) -> None:
        launch = CompileLaunch(freeze=freeze, autotune=autotune, buckets=buckets)
        super().__init__(launch=launch, weights=Weights())


class CompileLaunch(Launch):
    """Compiles the passes that `prepare` asks for; see `Compile`.

    The slots of a cache are no fixed size of a pass (`one_width`), so a pass sees all of them.
    """

    one_width: ClassVar[bool] = False

    def __init__(
        self,
        *,
        freeze: bool | Literal["auto"],
        autotune: bool | Literal["auto"],
        buckets: list[int] | None,
    ) -> None:
        super().__init__(buckets)
        self.prepared_s = 0.0  # seconds that compiling took so far
        self._freeze, self._autotune = freeze, autotune
        self._passes: dict[Hashable, Pass] = {}
        self._limits: set[int] = set()  # row counts beyond the buckets that are prepared
        self._wanted: tuple[int, ...] = ()  # row counts to compile, while preparing
        self._usable: dict[str, bool] = {}  # by type of device: whether its compiler is there
        self._num_compiled = 0

    def wrap(self, fn: Pass, key: Hashable) -> Pass:
        found = self._passes.get(key)
        if found is not None or not self._wanted:
            return found or fn
        return lambda inputs, buffers: self._first(fn, key, inputs, buffers)

    def columns(self, needed: int, allocated: int) -> int:
        return allocated

    def bucket(self, rows: int, limit: int) -> int:
        padded = super().bucket(rows, limit)
        if not self.buckets or padded in self.buckets or limit not in self._limits:
            return padded
        return limit

    def prepare(self, rehearse: Callable[[int], None], *, most: int, limit: int) -> None:
        """Compile what will be run: `rehearse(rows)` runs the passes of a draft of so many rows.

        most: rows that a draft can have; limit: rows that it may be padded to.
        """
        sizes = _sizes(self.buckets or [], most, limit)
        self._limits.add(sizes[-1])
        self._wanted = tuple(sizes)
        try:
            for done, size in enumerate(sizes, start=1):
                before = self._num_compiled
                rehearse(size)
                if self._num_compiled > before:
                    took = f"{self._num_compiled} passes, {self.prepared_s:.0f} s so far"
                    _say(f"{done} of {len(sizes)} row counts compiled, {took}")
        finally:
            self._wanted = ()

    def _first(self, fn: Pass, key: Hashable, inputs: Tensors, buffers: Tensors) -> Tensors:
        """Compile a pass whose rows are wanted, and run it."""
        rows, device = len(inputs[0]), inputs[0].device
        if rows not in self._wanted or not self._is_usable(device):
            return fn(inputs, buffers)
        if not self._num_compiled:
            counts = ", ".join(map(str, self._wanted))
            _say(f"compiling passes of {counts} rows; they are kept in {_folder()}")
        start = time.perf_counter()
        made, outputs, reason = _compiled(fn, inputs, buffers, self._options(device))
        self.prepared_s += time.perf_counter() - start
        self._num_compiled += reason is None
        if reason is not None:
            _say(f"a pass of {rows} rows runs as it is written ({reason})")
        while len(self._passes) >= _KEPT:
            self._passes.pop(next(iter(self._passes)))
        self._passes[key] = made
        return outputs

    def _options(self, device: torch.device) -> dict[str, Any]:
        """Inductor's settings."""
        cpu = device.type == "cpu"
        freeze = cpu if self._freeze == "auto" else self._freeze
        tune = not cpu if self._autotune == "auto" else self._autotune
        options: dict[str, Any] = {"freezing": freeze, "cpp.weight_prepack": False}
        if tune and cpu:  # the templates are for weights that they lay out themselves
            options |= {"freezing": True, "cpp.weight_prepack": True}
            options["max_autotune_gemm_backends"] = "CPP,ATEN"
        elif tune:
            options["coordinate_descent_tuning"] = True
        if tune:
            options |= {"max_autotune": True, "autotune_num_choices_displayed": 0}
        return options

    def _is_usable(self, device: torch.device) -> bool:
        """Whether there is a compiler for a device; told once where there is none."""
        if device.type not in self._usable:
            lacking = _lacking(device)
            self._usable[device.type] = lacking is None
            if lacking is not None:
                _say(f"{lacking}; running as eager")
        return self._usable[device.type]


def _sizes(buckets: list[int], most: int, limit: int) -> list[int]:
    """Row counts that drafts of up to `most` rows are padded to, where `limit` is the most; without
    buckets nothing is padded, and the largest draft is the only one."""
    sizes: list[int] = []
    for size in (*buckets, limit) if buckets else (most,):
        if not sizes or sizes[-1] < most:
            sizes.append(min(size, limit))
    return sizes


def _compiled(
    fn: Pass, inputs: Tensors, buffers: Tensors, options: dict[str, Any]
) -> tuple[Pass, Tensors, str | None]:
    """A compiled pass and what it gives here; where that fails the pass itself, and why."""

    def run(inputs: Tensors, buffers: Tensors) -> Tensors:
        return fn(inputs, buffers)

    # Compiled code belongs to a code object, of which every pass needs its own.
    alone = types.FunctionType(
        run.__code__.replace(), run.__globals__, "run", None, run.__closure__
    )
    os.environ[_CACHE] = _folder()
    _mark(inputs, buffers)
    guards: Any = {"guard_filter_fn": _no_guards}
    compiled: Pass = torch.compile(alone, fullgraph=True, dynamic=False, options=guards)
    from torch._inductor import config as inductor

    try:
        # Not by `options`: whether weights are constants is asked before inductor gets the graph.
        with inductor.patch(options):
            return compiled, compiled(inputs, buffers), None
    except Exception as error:  # dynamo, inductor and the compilers below them raise all sorts
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return fn, fn(inputs, buffers), (lines or [type(error).__name__])[0][:200]


def _mark(inputs: Tensors, buffers: Tensors) -> None:
    """Say which sizes are not fixed: the slots, in the buffers and in the masks over them."""
    if not buffers:
        return
    slots = buffers[0].shape[2]
    for buffer in buffers:
        torch._dynamo.mark_dynamic(buffer, 2)
    for one in inputs[1:]:
        if one.dim() > 1 and one.shape[-1] == slots:
            torch._dynamo.mark_dynamic(one, one.dim() - 1)


def _no_guards(guards: Any) -> list[bool]:
    return [False for _ in guards]


def _folder() -> str:
    """Where inductor keeps what it made: where the user says, else with all else that we keep."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # Inductor sets the variable itself, to its default, when parts of it are imported.
    chosen = os.environ.get(_CACHE)
    return chosen if chosen and chosen != default_cache_dir() else str(cache_root() / "compile")


def _lacking(device: torch.device) -> str | None:
    """The compiler that is not there, and what to do about it."""
    if device.type == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            get_cpp_compiler()
        except InvalidCxxCompiler:
            return "no C++ compiler (looked for $CXX, g++); install g++"
        return None
    from torch.utils._triton import has_triton

    return None if has_triton() else "no Triton for this device; pip install triton"


def _say(text: str) -> None:
    sys.stderr.write(f"specframe: runtime=compile: {text}\n")
    sys.stderr.flush()
