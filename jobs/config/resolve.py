"""Expands paths, variables and times in the values of a spec; each function returns new values."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from .. import gpus
from ..problems import KeyPath, Problem, expand_path, format_value, shell_expansion
from ..slurm import duration
from ..spec import Spec
from .keys import keys, sections
from .reserved import full_name

INIT_FROM: KeyPath = ("train", "init_from")
# sbatch options that hold a time; here, too, a number without a unit is minutes.
SBATCH_TIMES = ("time-min", "delay-boot")
# Paths: ~ and variables are expanded where the user submits.
EXPANDED: tuple[KeyPath, ...] = (
    *(("runs_root",), ("launch", "python"), ("launch", "script"), INIT_FROM),
    *(("launch", "inputs"), ("launch", "outputs")),
)
# Texts that a shell reads, or that the trainer expands on the nodes: the paths of built-in data.
LEFT: tuple[KeyPath, ...] = (("setup",), ("notify", "command"), ("train", "dataset_args"))


def without_key(values: Any, path: KeyPath) -> Any:
    """Return the values without a key; without the whole list if the path leads into one."""
    if not isinstance(values, dict) or path[0] not in values:
        return values
    inner = values[path[0]]
    if len(path) > 1 and isinstance(inner, dict):
        return {**values, path[0]: without_key(inner, path[1:])}
    return {name: value for name, value in values.items() if name != path[0]}


def without_empty(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without the sections, lists and mappings that are null.

    A section whose keys are all commented out is null in YAML.
    """
    collections = [key.path for key in keys().values() if isinstance(key.default, (dict, list))]
    for path in [*collections, *((name,) for name in sections() if name)]:
        if _get(values, path, ...) is None:
            values = without_key(values, path)
    return values


def expand(values: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the values with absolute paths, and each text with a variable that would stay in it.

    In the keys of EXPANDED `~`, `$VARIABLE` and `${VARIABLE:-text}` are expanded as a shell does
    it. Any other text is passed on as it is, so it may have none; `$$` stands for one `$`. A
    relative train.init_from begins in the current directory; its links are resolved, because a
    later run of that name moves its link `latest`. An absolute one may exist on the nodes only.
    """
    problems: list[Problem] = []
    expanded = _walk(values, (), problems, _is_own_dataset(values))
    return expanded, problems


def _is_own_dataset(values: dict[str, Any]) -> bool:
    return ":" in str(_get(values, ("train", "dataset"), ""))


def _walk(value: Any, path: KeyPath, problems: list[Problem], is_own: bool) -> Any:
    """Return a value with its texts expanded; adds what is wrong with them to `problems`."""
    if path in LEFT and not (path[-1] == "dataset_args" and is_own):
        return value
    if isinstance(value, dict):
        return {k: _walk(item, (*path, k), problems, is_own) for k, item in value.items()}
    if isinstance(value, list):
        return [_walk(item, (*path, n), problems, is_own) for n, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    value_or_problem = _expand(path, value) if path[:2] in EXPANDED else _plain(path, value)
    if isinstance(value_or_problem, str) and path == INIT_FROM:
        value_or_problem = _absolute(value_or_problem)
    if isinstance(value_or_problem, Problem):
        problems.append(value_or_problem)
        return value
    return value_or_problem


def _expand(path: KeyPath, written: str) -> str | Problem:
    try:
        return expand_path(written)
    except ValueError as error:
        return Problem(path, str(error), "set it, or write the path out; $$ means one $")


def _plain(path: KeyPath, written: str) -> str | Problem:
    """Return a text that nothing expands; a problem where a shell would expand something in it."""
    expansion = shell_expansion(written)
    if expansion is None or (path == ("name",) and expansion.startswith("$(")):
        return written.replace("$$", "$")
    what = f"{format_value(written)} has {expansion} in it, which nothing expands here"
    escape = f"; ${expansion} means the text {expansion}" if expansion.startswith("$") else ""
    return Problem(path, what, f"write it out, or export a variable in setup{escape}")


def _absolute(path: str) -> str | Problem:
    if not path or os.path.isabs(path):
        return path
    full = os.path.abspath(path)
    if os.path.exists(full):
        return os.path.realpath(full)
    hint = "a relative path begins where you submit; a run by name is runs/NAME/latest"
    return Problem(INIT_FROM, f"{full} does not exist", hint)


def canonical(spec: Spec) -> Spec:
    """Return the spec with times in canonical form and sbatch's options in sbatch's spelling."""
    sbatch_args = {}
    for name, value in spec.slurm.sbatch_args.items():
        option = full_name(name)
        is_time = option in SBATCH_TIMES and isinstance(value, str)
        if value is not False:
            sbatch_args[option] = _canonical(str(value)) if is_time else value
    slurm = dataclasses.replace(
        spec.slurm,
        time=_canonical(spec.slurm.time),
        gpus_per_node=_gpus(spec.slurm.gpus_per_node),
        sbatch_args=sbatch_args,
    )
    return dataclasses.replace(spec, slurm=slurm)


def _gpus(value: int | str) -> int | str:
    text = gpus.canonical(str(value))
    return int(text) if text.isdecimal() else text


def _canonical(text: str) -> str:
    return duration.canonical(duration.parse(text))


def _get(values: Any, path: KeyPath, default: Any = None) -> Any:
    for name in path:
        if not isinstance(values, dict) or name not in values:
            return default
        values = values[name]
    return values
