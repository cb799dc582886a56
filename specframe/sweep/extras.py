"""Words that need an optional package: the extra of specframe that installs it is named."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from specframe.errors import MissingResource

# Word -> the module that brings it, and the extra that installs that.
_EXTRAS = {
    "hydra/sweeper=optuna": ("hydra_plugins.hydra_optuna_sweeper", "sweep"),
    "hydra/sweeper=maximise": ("hydra_plugins.hydra_optuna_sweeper", "sweep"),
    "hydra/launcher=joblib": ("hydra_plugins.hydra_joblib_launcher", "launch"),
    "hydra/launcher=submitit_local": ("hydra_plugins.hydra_submitit_launcher", "launch"),
    "hydra/launcher=submitit_slurm": ("hydra_plugins.hydra_submitit_launcher", "launch"),
    "hydra/launcher=ray": ("hydra_plugins.hydra_ray_launcher", "launch"),
}


def check_installed(words: Sequence[str]) -> None:
    """Raises MissingResource, with the command that installs it, for a word of an extra."""
    for word in words:
        module, extra = _EXTRAS.get(word, ("", ""))
        if module and not is_installed(module):
            raise MissingResource(f"{word} needs an extra: pip install 'specframe[{extra}]'")


def is_installed(module: str) -> bool:
    """Whether a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it is missing too
        return False
