"""What a run asks for besides its components, and whether its target can give it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_type_hints

from specframe.errors import ConfigError
from specframe.law.sampling import SamplingConfig
from specframe.session.arguments import MaxNewTokens, Seed, check_arguments
from specframe.session.chat_settings import ChatSettings
from specframe.session.prompt_encoding import is_plain
from specframe.session.stopping import StopConfig
from specframe.target.base import Target


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run asks for besides its components. raw: prompts are not put in a chat template."""

    seed: Seed
    max_new_tokens: MaxNewTokens
    sampling: SamplingConfig
    stop: StopConfig
    raw: bool
    chat: ChatSettings = field(default_factory=ChatSettings)

    def __post_init__(self) -> None:
        check_arguments(get_type_hints(Settings, include_extras=True), vars(self))
        for group in ("sampling", "stop"):
            config = getattr(self, group)
            hints = get_type_hints(type(config), include_extras=True)
            check_arguments(
                {f"{group}.{key}": hint for key, hint in hints.items()},
                {f"{group}.{key}": value for key, value in vars(config).items()},
            )

    def numbers(self) -> str:
        """The settings that matter most, in one line."""
        temperature = f"temperature={self.sampling.temperature}"
        return f"{temperature}, seed={self.seed}, max_new_tokens={self.max_new_tokens}"

    def eos_ids(self, target: Target) -> Sequence[int]:
        """Ids that end a text in this run."""
        return target.eos_ids if self.stop.eos == "auto" else self.stop.eos


def check_settings(settings: Settings, target: Target) -> None:
    """Raises ConfigError for what this target cannot give."""
    ids = settings.eos_ids(target)
    outside = [one for one in ids if not 0 <= one < target.vocab_size]
    if outside:
        raise ConfigError(
            f"stop.eos={outside}: no such token id; {target.name} has 0 .. {target.vocab_size - 1}"
        )
    if settings.chat.template_args and is_plain(target, raw=settings.raw):
        reason = "raw=true leaves it out" if settings.raw else f"{target.name} has none"
        raise ConfigError(f"chat.template_args: they are for a chat template, and {reason}")
