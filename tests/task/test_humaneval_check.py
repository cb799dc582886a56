"""HumanEval's checker: right answers pass, wrong and hostile ones do not, nothing hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from specframe.prompts.reader import PromptRecord
from specframe.task.benchmark import humaneval_check as humaneval
from specframe.task.benchmark.humaneval_check import code_is_right, passes, program

PROMPT = "from typing import List\n\n\ndef total(numbers: List[int]) -> int:\n    '''Sum.'''\n"
CHECKS = "def check(f):\n    assert f([1, 2]) == 3\n\n\ncheck(total)\n"
RECORD = PromptRecord(turns=(PROMPT,), checks=CHECKS)


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("    return sum(numbers)\n", True),
        ("    return 4\n", False),
        (
            "Here it is:\n```python\ndef total(numbers: List[int]) -> int:\n    s = 0\n"
            "    for n in numbers:\n        s += n\n    return s\n```\nIt adds.",
            True,
        ),
        ("```python\n    return sum(numbers)\n```", True),
        ("I cannot do that.", False),
        ("```python3\ndef total(numbers):\n    return sum(numbers)\n```\nIt adds.", True),
        ("```Python\n    return sum(numbers)\n```", True),
        (
            "Use:\n```\n>>> total([1])\n```\nIt is\n```py\ndef total(n):\n    return sum(n)\n```",
            True,
        ),
        ("    return sum(numbers)\n```\nThis adds all numbers.", True),
        ("    return sum(numbers)\n\n\ndef main():\n    print(tot", True),
        ("    return sum(numbers)\n\nprint(total([1, 2", True),
        ("    print('x' * 3)\n    return sum(numbers)\n", True),
    ],
)
def test_answers(answer: str, right: bool) -> None:
    assert code_is_right(answer, RECORD) is right


def test_a_prompt_without_tests_is_not_judged() -> None:
    assert code_is_right("x", PromptRecord(turns=("x",))) is None


def test_imports_of_the_prompt_are_kept() -> None:
    made = program(PROMPT, "```py\ndef total(numbers: List[int]) -> int:\n    return 1\n```")
    assert made.startswith("from typing import List") and made.count("def total") == 1


@pytest.mark.slow
def test_hostile_programs_end_and_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    assert passes("x = 1")
    assert not passes("import os\nos._exit(0)")
    assert not passes("raise SystemExit(0)")
    assert not passes("import os\nprint('passed', end='', flush=True)\nos._exit(0)")
    assert passes("import sys\nfor _ in range(3000):\n    print('x' * 10_000)\nsys.stdout.flush()")
    assert not passes("x = bytearray(1 << 31)")
    assert not passes("open('big', 'wb').write(bytes(1 << 22))")
    monkeypatch.setattr(humaneval, "_SECONDS", 1)
    assert not passes("import time\ntime.sleep(60)")


def test_it_runs_in_a_folder_and_an_environment_of_its_own(tmp_path: Path) -> None:
    assert passes("import os\nassert not os.listdir('.') and 'HOME' not in os.environ")
    here = str(Path.cwd())
    assert passes(f"import os\nassert os.getcwd() != {here!r}")
