"""Words that give a drafter, and those inside it, models that go with target=toy."""

from __future__ import annotations

from typing import Any

from specframe.compose.catalogue import configuration
from specframe.compose.nested_options import Option, nested_options


def toy_models(values: dict[str, Any]) -> list[str]:
    """Overrides that put toy models in the place of those of a drafter; empty if it has none.

    values: of the drafter in a resolved configuration. Drafters that it lists are changed as well;
    an inner engine drafts for its own model with another one, so that some tokens are refused.
    """
    option = Option(where="drafter", axis="drafter", word=values["name"], values=values)
    with configuration() as loader:
        return _words(option, loader, "toy_draft")


def _words(option: Option, loader: Any, model: str) -> list[str]:
    words = [f"{option.where}.model={model}"] if "model" in option.values else []
    if "trust_vocabulary" in option.values:
        words.append(f"{option.where}.trust_vocabulary=true")
    inner = "toy" if isinstance(option.values.get("inner"), list) else model
    for nested in nested_options(option, loader):
        words += _words(nested, loader, inner)
    return words
