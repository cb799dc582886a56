"""What a conversation is given besides its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ChatSettings:
    """system: what the model is told first, unless the messages say it themselves; template_args:
    variables of the chat template, such as enable_thinking."""

    system: str | None = None
    template_args: dict[str, Any] | None = field(default=None)

    def before(self, text: str) -> str:
        """A text that goes through no template, with the system prompt as a paragraph before it."""
        return text if self.system is None else f"{self.system}\n\n{text}"

    def with_system(self, messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
        """The messages, with the system prompt before them where they have none."""
        listed = [dict(message) for message in messages]
        if self.system is None or any(each.get("role") == "system" for each in listed):
            return listed
        return [{"role": "system", "content": self.system}, *listed]
