"""What an option or a key is, from what its YAML file and its class say of themselves.

`specframe list` and `specframe explain drafter=eagle` print it. Files are read and nothing is
imported, so that the answer comes at once.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader

from specframe.compose.catalogue import (
    CONFIG_NAME,
    PACKAGE,
    conf_dir,
    configuration,
    default_choices,
    groups,
    option_files,
    options,
    schema,
)
from specframe.errors import ConfigError, did_you_mean, no_such_option
from specframe.plugins import bootstrap

COMMANDS = ("list", "explain")
_KEY = re.compile(r"^(\s*)([A-Za-z_]\w*):(?:\s|$)")
_COMMENT = re.compile(r"(?:^|\s)#\s?(.*)$")


def answer(words: Sequence[str], config_dirs: Sequence[str] = ()) -> str:
    """The text for `list [AXIS ...]` or `explain AXIS=OPTION|KEY ...`. Raises ConfigError."""
    command, *asked = words
    with configuration(config_dirs) as loader:
        if command == "list":
            return "\n\n".join(_listed(axis, loader) for axis in asked or groups(loader))
        if not asked:
            raise ConfigError("explain needs a word or a key: explain drafter=eagle, explain seed")
        return "\n\n".join(_explained(word, loader) for word in asked)


def _listed(axis: str, loader: ConfigLoader) -> str:
    """The options of an axis with the first sentence of each."""
    if axis not in groups(loader):
        known = ", ".join(groups(loader))
        raise ConfigError(
            f"{axis}: no such axis; there are {known}.{did_you_mean(axis, groups(loader))}"
        )
    words = options(loader, axis)
    default = default_choices(loader).get(axis)
    width = max(map(len, words), default=0)
    lines = [f"{axis}= (default: {default or 'none'})"]
    for word in words:
        header = _header(option_files(loader, axis, word))
        lines.append(f"  {word:<{width}}  {header.partition(chr(10))[0]}".rstrip())
    return "\n".join(lines)


def _explained(word: str, loader: ConfigLoader) -> str:
    axis, equals, option = word.partition("=")
    if not equals:
        return _key(word, loader)
    if axis not in groups(loader):
        return _key(axis, loader)
    if option not in options(loader, axis):
        raise ConfigError(no_such_option(axis, option, options(loader, axis), {}))
    files = option_files(loader, axis, option)
    values = schema(loader, axis, option)
    name = values.get("name", option)
    preset = f", a preset of {axis}={name}" if name != option else ""
    parts = [f"{axis}={option}{preset}", _header(files), _docstring(axis, str(name))]
    if axis == "experiment":
        return "\n\n".join(filter(None, [*parts, _body(files[0])]))
    comments, place = _comments(files), axis
    if axis == "tracker":  # a callback of Hydra's
        place, values = f"hydra.callbacks.{name}", values.get(name, {})
        comments = {key.removeprefix(f"{name}."): comment for key, comment in comments.items()}
    rows = [
        (f"{place}.{key} = {_shown(value)}", comments.get(key, ""))
        for key, value in values.items()
        if key not in ("name", "_target_")
    ]
    return "\n\n".join(part for part in [*parts, _table(rows)] if part)


def _key(key: str, loader: ConfigLoader) -> str:
    """What a key means: of config.yaml, or of each option of an axis that has it."""
    comments = _comments([conf_dir() / f"{CONFIG_NAME}.yaml"])
    axis, _, field = key.partition(".")
    if axis in groups(loader) and not field:
        return _listed(axis, loader)
    if axis in groups(loader):
        rows = []
        for option in options(loader, axis):
            values = schema(loader, axis, option)
            if field in values:
                comment = _comments(option_files(loader, axis, option)).get(field, "")
                rows.append((f"{axis}={option}: {field} = {_shown(values[field])}", comment))
        if rows:
            return f"{key}\n\n{_table(rows)}"
        raise ConfigError(f"{key}: no option of {axis} has the field {field!r}")
    known: Any = schema(loader, "", CONFIG_NAME)
    value = known.get(axis)
    if axis not in known or (field and (not isinstance(value, dict) or field not in value)):
        near = did_you_mean(key, comments)
        raise ConfigError(f"{key}: no such key, and no axis=option.{near}")
    if isinstance(value, dict) and not field:
        places = {f"{key}.{name}": inner for name, inner in value.items()}
        return _table([(f"{at} = {_shown(v)}", comments.get(at, "")) for at, v in places.items()])
    shown = value[field] if field else value
    return _table([(f"{key} = {_shown(shown)}", comments.get(key, ""))])


def _table(rows: Sequence[tuple[str, str]]) -> str:
    width = max((len(left) for left, _ in rows), default=0)
    return "\n".join(f"  {left:<{min(width, 44)}}  {right}".rstrip() for left, right in rows)


def _shown(value: Any) -> str:
    """A value as it is written on the command line, cut where it is long."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    text = "null" if value is None else text
    return text if len(text) <= 60 else f"{text[:57]}..."


def _header(files: Sequence[Path]) -> str:
    """The comment at the top of a YAML file, without Hydra's own directive."""
    lines = []
    for line in files[0].read_text(encoding="utf-8").splitlines() if files else ():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            lines.append(line.removeprefix("#").strip())
    return "\n".join(lines)


def _body(file: Path) -> str:
    """The lines of a YAML file below its comment."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return "\n".join(f"  {line}" for line in lines if not line.startswith("#"))


def _comments(files: Sequence[Path]) -> dict[str, str]:
    """Dotted key -> the comment behind it, of a value of several lines that behind its last one."""
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in files[0].read_text(encoding="utf-8").splitlines() if files else ():
        if match := _KEY.match(line):
            above = [(depth, key) for depth, key in above if depth < len(match[1])]
            above.append((len(match[1]), match[2]))
        comment = _COMMENT.search(line)
        if above and comment is not None and not line.lstrip().startswith("#"):
            found[".".join(key for _, key in above)] = comment[1]
    return found


def _docstring(axis: str, name: str) -> str:
    """The docstring of the class of a component, from its source; "" where there is none."""
    for file in _sources(axis, name):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and _is_component(node, axis, name):
                return inspect.cleandoc(ast.get_docstring(node) or "")
    return ""


def _sources(axis: str, name: str) -> Iterator[Path]:
    folder = PACKAGE / axis
    yield from filter(Path.is_file, (folder / f"{name}.py", folder / name / "__init__.py"))
    for plugin in bootstrap().plugins:
        if plugin.conf is not None:
            yield from plugin.conf.parent.glob(f"**/{name}.py")


def _is_component(node: ast.ClassDef, axis: str, name: str) -> bool:
    """Whether a class registers itself under this name; a tracker is the class of its file."""
    names = [
        argument.value
        for call in node.decorator_list
        if isinstance(call, ast.Call)
        for argument in call.args
        if isinstance(argument, ast.Constant)
    ]
    return name in names or (axis == "tracker" and any(True for _ in node.bases))
