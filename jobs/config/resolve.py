"""Expands paths and times in the values of a spec; each function returns new values."""

import dataclasses
import os
from typing import Any

from ..contract.problems import KeyPath, Problem, dotted, expand_path
from ..contract.spec import Spec
from ..slurm import duration
from .keys import keys, sections

# Paths: ~ and variables are expanded where the user submits.
EXPANDED = ("runs_root", "launch.python", "launch.script", "launch.inputs", "train.init_from")


def without_key(values: Any, path: KeyPath) -> Any:
    """Return the values without a key; without the whole list if the path leads into one."""
    if not isinstance(values, dict) or path[0] not in values:
        return values
    inner = values[path[0]]
    if len(path) > 1 and isinstance(inner, dict):
        return {**values, path[0]: without_key(inner, path[1:])}
    return {name: value for name, value in values.items() if name != path[0]}


def without_empty(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without sections, lists and mappings that are all commented out."""
    collections = [key.path for key in keys().values() if isinstance(key.default, (dict, list))]
    for path in [*collections, *((name,) for name in sections() if name)]:
        *above, name = path
        inner = values if not above else values.get(above[0])
        if isinstance(inner, dict) and inner.get(name, ...) is None:
            values = without_key(values, path)
    return values


def expand(value: Any, problems: list[Problem], path: KeyPath = ()) -> Any:
    """Return a value with its paths expanded; adds what is wrong with them to `problems`.

    A relative train.init_from begins in the current directory; its links are resolved, because a
    later run of that name moves its link `latest`. An absolute one may exist on the nodes only.
    """
    if isinstance(value, dict):
        return {name: expand(item, problems, (*path, name)) for name, item in value.items()}
    if isinstance(value, list):
        return [expand(item, problems, (*path, index)) for index, item in enumerate(value)]
    if not isinstance(value, str) or dotted(path[:2]) not in EXPANDED:
        return value
    try:
        full = expand_path(value)
        if dotted(path) == "train.init_from" and full and not os.path.isabs(full):
            full = os.path.abspath(full)
            if not os.path.exists(full):
                raise ValueError(f"{full} does not exist")
            full = os.path.realpath(full)
        return full
    except ValueError as error:
        hint = "write the path out; a relative one begins where you submit"
        problems.append(Problem(path, str(error), hint))
        return value


def canonical(spec: Spec) -> Spec:
    """Return the spec with nodes, time, mode and names of options in canonical form."""
    given = spec.slurm.sbatch_args.items()
    sbatch_args = {name.replace("_", "-"): value for name, value in given if value is not False}
    time = duration.canonical(duration.parse(spec.slurm.time))
    nodes = spec.slurm.nodes if spec.slurm.is_range else spec.slurm.most_nodes
    slurm = dataclasses.replace(spec.slurm, nodes=nodes, time=time, sbatch_args=sbatch_args)
    return dataclasses.replace(spec, slurm=slurm, dir_mode=f"{int(spec.dir_mode, 8):04o}")
