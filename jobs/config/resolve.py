"""Expands paths, variables and times in the values of a spec; each function returns new values."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

from slurm_job_kit.jobs import gpus
from slurm_job_kit.jobs.config.keys import keys, sections
from slurm_job_kit.jobs.config.reserved import full_name
from slurm_job_kit.jobs.problems import KeyPath, Problem
from slurm_job_kit.jobs.slurm import duration
from slurm_job_kit.jobs.spec import Spec

INIT_FROM: KeyPath = ("train", "init_from")
# sbatch options that hold a time; here, too, a number without a unit is minutes.
SBATCH_TIMES = ("time-min", "delay-boot")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)


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
    """Return the values with absolute paths, and what is wrong with a path.

    `~` and `$VARIABLE` are expanded as a shell does it; every other `$` stays. A relative
    train.init_from begins in the current directory; its links are resolved, because a later run
    of that name moves its link `latest`. An absolute one may exist on the nodes only.
    """
    problems: list[Problem] = []
    for path in (("runs_root",), ("launch", "python"), INIT_FROM):
        written = _get(values, path)
        if not isinstance(written, str):
            continue
        expanded = _expanded(path, written)
        if isinstance(expanded, str) and path == INIT_FROM:
            expanded = _absolute(expanded)
        if isinstance(expanded, Problem):
            problems.append(expanded)
        else:
            values = _with(values, path, expanded)
    return values, problems


def _expanded(path: KeyPath, written: str) -> str | Problem:
    try:
        return _VARIABLE.sub(
            lambda match: os.environ[match[1] or match[2]], os.path.expanduser(written)
        )
    except KeyError as error:
        what = f"the environment variable {error.args[0]} is not set"
        return Problem(path, what, "set it, or write the path out")


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
    """GPUs as sbatch's --gpus-per-node takes them: 2, or with a type, a100:2."""
    text = re.sub(r"\bgpu[:=]|\s|\([^)]*\)", "", str(value)).replace("=", ":")
    return int(text) if text.isdecimal() else text if gpus.in_number(text) else 0


def _canonical(text: str) -> str:
    return duration.canonical(duration.parse(text))


def _get(values: Any, path: KeyPath, default: Any = None) -> Any:
    for name in path:
        if not isinstance(values, dict) or name not in values:
            return default
        values = values[name]
    return values


def _with(values: dict[str, Any], path: KeyPath, value: Any) -> dict[str, Any]:
    """Return the values with another value of a key that they have."""
    name = str(path[0])
    return {**values, name: _with(values[name], path[1:], value) if len(path) > 1 else value}
