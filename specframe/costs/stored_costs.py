"""Tables of costs on the disk: one file a fingerprint, in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError
from specframe.planning.cost_table import CostTable
from specframe.session.manifest import write_json
from specframe.storage.cache_folder import cache_root
from specframe.storage.digests import is_unchanged, seal


def costs_file(fingerprint: dict[str, Any]) -> Path:
    """The file of this fingerprint in the user's cache; another fingerprint has another file."""
    digest = hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()
    return cache_root() / "costs" / f"{digest[:24]}.json"


def load_costs(fingerprint: dict[str, Any]) -> CostTable | None:
    """The table that was measured for exactly this fingerprint, None if there is none.

    A file that cannot be read, or was changed, is reported on standard error and counts as none.
    """
    path = costs_file(fingerprint)
    if not path.is_file():
        return None
    try:
        if not is_unchanged(path):
            raise ConfigError(f"{path} is not what was stored there")
        stored, table = read_costs(path)
    except ConfigError as error:
        sys.stderr.write(f"specframe: {error}; measured again\n")
        return None
    return table if stored == fingerprint else None


def save_costs(fingerprint: dict[str, Any], costs: CostTable) -> Path | None:
    """Store a table for later runs and return its file.

    None, and a line on standard error, where the cache folder cannot be written.
    """
    path = costs_file(fingerprint)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"fingerprint": fingerprint, "costs": costs.as_dict()})
        seal(path)
    except OSError as error:
        sys.stderr.write(
            f"specframe: the costs are not kept, cannot write {path.parent} ({error.strerror}); "
            "set SPECFRAME_CACHE to a folder that you can write\n"
        )
        return None
    return path


def read_costs(path: Path) -> tuple[dict[str, Any], CostTable]:
    """(fingerprint, table) of a file. Raises ConfigError that names the file."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return stored["fingerprint"], CostTable.of(stored["costs"])
    except FileNotFoundError:
        raise ConfigError(
            f"tree.costs={path}: no such file; make one with task=profile, or give null"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"tree.costs={path}: no profile.json of task=profile ({error}); make one, or give null"
        ) from None
