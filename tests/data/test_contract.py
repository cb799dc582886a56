"""The suite of prompts that ships, and one of a file, keep the contract."""

from __future__ import annotations

from specframe.testing.suites import SuiteContract


class TestBuiltin(SuiteContract):
    """data=builtin."""

    word = "builtin"
