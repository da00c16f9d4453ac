"""Reads what a user types to make: `make submit CONFIG=x SET="a=1"` is `submit x --set=a=1`.

make takes each variable of the environment as if it was typed. Those that were are in
MAKEOVERRIDES, which kit.mk exports, with a backslash before blanks and backslashes and `$` doubled.
Source: GNU make, quote_for_env() in main.c.
"""

import os
import re
import shlex
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import NoReturn

from ..base.errors import UserError
from ..config.keys import nearest
from ..node import signed_torchrun
from ..runs import lookup
from . import catalogue
from .catalogue import load

# The targets that are no command of this name; MAKE of a command's module has its variables.
TARGETS = {"dry-run": ("CONFIG", "SET FLAGS CMD"), "train": ("CONFIG", "SET NPROC")}
SWITCHES = {"YES": "--yes", "CODE": "--code", "DRY": "--dry-run"}
OPTIONS = {"SET": "--set", "FROM": "--from", "CHECKPOINT": "--checkpoint"}
OF_MAKEFILES = ("PYTHON", "TORCH", "PY", "READY", "READY_DEV", "KIT", "SHELL")
TYPED = "KIT_TYPED"
_WORD = re.compile(r"(?:\\.|[^\\ \t])+", re.DOTALL)


def words_of(target: str, environ: MutableMapping[str, str] = os.environ) -> list[str]:
    """Return the words of the kit's command for a target of make; the target train runs here.

    What make adds to the environment is removed from it: the run shall not get it.
    Raises: UserError for a variable that the target does not take, or lacks.
    """
    commands = [x for x in catalogue.all_commands() if x != target or hasattr(load(x), "MAKE")]
    if target not in (*TARGETS, *commands):
        near = nearest(target, [*TARGETS, *commands])
        hint = f"did you mean make {near}?" if near else "make lists the targets"
        raise UserError(f"make has no target {target}\n  hint: {hint}")
    values = typed(environ.get(TYPED, ""))
    for name in (TYPED, "MAKEFLAGS", "MFLAGS", "MAKELEVEL", *values):
        environ.pop(name, None)
    variables = make_variables(target)
    needed, taken = (names.replace("...", "").split() for names in variables)
    several = [name[:-3] for name in " ".join(variables).split() if name.endswith("...")]
    for name in values:
        if name not in (*needed, *taken, *OF_MAKEFILES):
            takes = ", ".join([*needed, *taken])
            raise UserError(f"make {target} takes no {name}=...\n  hint: it takes {takes}")
    given = [name for name in (*needed, *taken) if values.get(name)]
    if missing := [name for name in needed if name not in given and not values.get("CMD")]:
        names = {run.run_id: run.path.parent.name for run in lookup.all_runs()}
        typed_run = next((x for x in names if values.get("RUN") in (x, names[x])), None)
        others = (run_id for run_id in names if run_id != typed_run)
        again = [f"{each}={shlex.quote(values[each].replace('$', '$$'))}" for each in given]
        for name in missing:
            value = "configs/NAME.yaml" if name == "CONFIG" else next(others, "...")
            again.append(f"{name}={value}")
        hint, more = f"make {target} {' '.join(again)}", ""
        if "CMD" in taken:
            hint, more = f'{hint}, or make {target} CMD="python train.py"', " or CMD=..."
        raise UserError(f"{missing[0]}=...{more} is missing", hint)
    if target == "train":
        train(values, environ)
    command = ["submit", "--dry-run"] if target == "dry-run" else [target]
    return command + [word for name in given for word in words(name, values[name], name in several)]


def make_variables(target: str) -> tuple[str, str]:
    """Return the variables that a target needs, and those that it takes."""
    return TARGETS.get(target) or catalogue.load(target).MAKE


def typed(overrides: str) -> dict[str, str]:
    """Return the variables of make's command line. overrides: MAKEOVERRIDES."""
    texts = (re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL) for text in _WORD.findall(overrides))
    pairs = (text.partition("=") for text in texts)
    return {name.rstrip(":"): value.replace("$$", "$") for name, _, value in pairs}


def words(name: str, value: str, is_several: bool) -> list[str]:
    """Return the words for one variable; is_several: a shell would split it. Raises: UserError."""
    if name in SWITCHES:
        if value not in ("1", "0", "yes", "no", "true", "false"):
            raise UserError(f"{name}={value}: write {name}=1 or {name}=0")
        return [SWITCHES[name]] if value in ("1", "yes", "true") else []
    if name in OPTIONS:
        return [f"{OPTIONS[name]}={value}"]
    if name in ("FLAGS", "CMD") or is_several:
        try:
            parts = ["--"] * (name == "CMD") + shlex.split(value)
        except ValueError as error:
            raise UserError(f"{name}={value}: {error}") from error
    else:
        parts = [value]
    if name not in ("FLAGS", "CMD") and any(part.startswith("-") for part in parts):
        raise UserError(f"{name}={value} begins with `-`\n  hint: options go into FLAGS=...")
    return parts


def train(values: dict[str, str], environ: MutableMapping[str, str]) -> NoReturn:
    """Freeze a spec and become plain torchrun on this machine; CONFIG may be a run directory.

    torchrun would take PET_... variables for its options. Raises: UserError.
    """
    from .freeze import frozen

    config, given = os.path.expanduser(values["CONFIG"]), values.get("SET", "")
    ranks = values.get("NPROC") or "1"
    if not ranks.isdecimal() or int(ranks) < 1:
        raise UserError(f"NPROC={ranks}: write a number of ranks, such as NPROC=2")
    run_dir = Path(config)
    if not run_dir.is_dir():
        run_dir = frozen(run_dir, shlex.split(given)).path
    elif given:
        raise UserError(f"{config} is frozen\n  hint: SET is for a new run, or for make resume")
    torchrun = [sys.executable, "-P", signed_torchrun.__file__, "--standalone"]
    argv = [*torchrun, f"--nproc-per-node={ranks}", "-m", "trainer", str(run_dir)]
    own = {name: value for name, value in environ.items() if not name.startswith("PET_")}
    os.execve(argv[0], argv, own)
