"""What the README tells a reader to write is written and run.

A fenced block whose first line is a comment that names a file under `plugins/` is that file:

    ```python
    # plugins/mine/mine.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(r"^```\w+\n# plugins/(\S+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)

SAMPLE = '''
```python
# plugins/mine/mine.py
"""Says the last token again."""

from collections.abc import Sequence

from specframe.drafter.base import DRAFTERS, Continuation, Retrieval


@DRAFTERS.register("mine")
class Mine(Retrieval):
    """Proposes the last token `times` times. Lossless. Needs nothing. Source: none."""

    def __init__(self, *, times: int) -> None:
        self.times = times

    def continuations(self) -> Sequence[Continuation]:
        return [Continuation([self.context.tokens[-1]] * self.times)]
```

and its numbers:

```yaml
# plugins/mine/conf/drafter/mine.yaml
name: mine
times: 3 # tokens
```

```python
# plugins/mine/test_mine.py
"""The contract."""

from specframe.testing.drafters import DrafterContract


class TestMine(DrafterContract):
    word = "mine"
```

```bash
python -m specframe drafter=mine target=toy
```
'''

RUN = """
import sys
from specframe import load
plain = load(["target=toy", "drafter=none"]).generate([1, 2, 1, 2, 1], max_new_tokens=16).tokens
for word in sys.argv[1:]:
    engine = load(["target=toy", *([] if "drafter" in word else ["drafter=ngram"]), word])
    answer = engine.generate([1, 2, 1, 2, 1], max_new_tokens=16)
    assert len(answer.tokens) == 16, word
    if engine.parts.accept.lossless:
        assert answer.tokens == plain, word
    print(word, "ran")
"""


def blocks(text: str) -> dict[str, str]:
    """Path below plugins/ -> content."""
    return dict(BLOCK.findall(text))


def words(files: dict[str, str]) -> list[str]:
    """`axis=word` of every YAML file among them."""
    found = (re.fullmatch(r"[^/]+/conf/([^/]+)/([^/]+)\.yaml", path) for path in files)
    return [f"{match[1]}={match[2]}" for match in found if match]


def python(*arguments: str, plugins: Path) -> str:
    """Standard output of a fresh interpreter that finds these plugins."""
    environment = os.environ | {"SPECFRAME_PLUGINS": str(plugins), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(files: dict[str, str], folder: Path) -> None:
    """The files are all it takes: the words run, are listed, and their tests pass."""
    for path, content in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    chosen = words(files)
    assert chosen, "no YAML file among the blocks"
    ran = python("-c", RUN, *chosen, plugins=folder)
    listed = python("-m", "specframe", "--help", plugins=folder)
    for word in chosen:
        assert f"{word} ran" in ran
        axis, _, option = word.partition("=")
        assert re.search(rf"{axis}: .*\b{option}\b", listed), f"--help does not list {word}"
    tests = [str(folder / path) for path in files if Path(path).name.startswith("test_")]
    if tests:
        python("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, plugins=folder)


def test_blocks_are_found() -> None:
    files = blocks(SAMPLE)
    assert list(files) == ["mine/mine.py", "mine/conf/drafter/mine.yaml", "mine/test_mine.py"]
    assert files["mine/conf/drafter/mine.yaml"] == "name: mine\ntimes: 3 # tokens\n"
    assert words(files) == ["drafter=mine"]
    assert blocks("```python\nprint(1)\n```\n") == {}


def test_the_sample_runs(tmp_path: Path) -> None:
    check(blocks(SAMPLE), tmp_path)


def test_a_broken_block_is_noticed(tmp_path: Path) -> None:
    broken = {
        path: text.replace("self.times", "self.tiems", 1) for path, text in blocks(SAMPLE).items()
    }
    with pytest.raises(AssertionError):
        check(broken, tmp_path)


def test_the_readme_runs(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    if "five minutes" not in text:
        pytest.skip("the README does not teach it yet")
    files = blocks(text)
    assert any(word.startswith("drafter=") for word in words(files))
    check(files, tmp_path)
