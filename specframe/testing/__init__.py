"""Suites of tests that every component of an axis passes, for the shipped ones and for plug-ins.

A plug-in's test derives from the suite of its axis and names its word:

    from specframe.testing.drafters import DrafterContract

    class TestHello(DrafterContract):
        word = "hello"

`trees`, `rules`, `caches`, `runtimes`, `targets`, `tasks`, `tracers`, `suites` (of prompts:
`data=`), `trackers` and `recipes` (`train=`) hold the other suites. Where a component needs other
numbers than those of its YAML file, `values` has them by key. The remaining modules are what tests
are written with: drafts and verify steps by hand, tiny models in float64, a composition without the
command line, and a count of what the host reads. This room needs pytest, and nothing else in
specframe imports it.
"""

import pytest

_MODULES = (
    "caches compositions draft_checks drafters recipes rules runtimes suites targets tasks "
    "tiny_models tracers trackers trees verify_steps"
)
# A failed assertion of a suite then shows its values, as one in a test file does.
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _MODULES.split()))
