"""What a sweep needs beyond Hydra: its extras, a direction, and the command that goes on."""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from specframe.errors import ConfigError, MissingResource
from specframe.sweep.point import OBJECTIVE

# Word -> the module that brings it, and the extra that installs that.
_EXTRAS = {
    "hydra/sweeper=optuna": ("hydra_plugins.hydra_optuna_sweeper", "sweep"),
    "hydra/sweeper=maximise": ("hydra_plugins.hydra_optuna_sweeper", "sweep"),
    "hydra/launcher=joblib": ("hydra_plugins.hydra_joblib_launcher", "launch"),
    "hydra/launcher=submitit_local": ("hydra_plugins.hydra_submitit_launcher", "launch"),
    "hydra/launcher=submitit_slurm": ("hydra_plugins.hydra_submitit_launcher", "launch"),
    "hydra/launcher=ray": ("hydra_plugins.hydra_ray_launcher", "launch"),
}
_FOLDER = "hydra.sweep.dir"


def check_installed(words: Sequence[str]) -> None:
    """Raises MissingResource, with the command that installs it, for a word of an extra."""
    for word in words:
        module, extra = _EXTRAS.get(word, ("", ""))
        if module and not is_there(module):
            raise MissingResource(f"{word} needs an extra: pip install 'specframe[{extra}]'")


def is_there(module: str) -> bool:
    """Whether a module could be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package above it
        return False


def check_sweeper(sweeper: DictConfig, objective: str) -> None:
    """Raises ConfigError for a sweeper that would look for the worst."""
    if "direction" in sweeper and str(sweeper.direction).rpartition(".")[2] != "maximize":
        raise ConfigError(
            f"hydra.sweeper.direction={sweeper.direction}: {OBJECTIVE}={objective} is better when "
            "it is higher; use hydra/sweeper=maximise, or hydra.sweeper.direction=maximize"
        )


def go_on(command: Sequence[str], sweep: Path | None) -> str:
    """The command that goes on with a sweep where it stopped; "" if there is none."""
    if sweep is None:
        return ""
    own = Path(command[0]).name == "__main__.py"
    words = [word for word in command[1:] if not word.startswith(f"{_FOLDER}=")]
    program = ["python", "-m", "specframe"] if own else [Path(command[0]).name]
    return "go on with: " + shlex.join([*program, *words, f"{_FOLDER}={os.path.relpath(sweep)}"])
