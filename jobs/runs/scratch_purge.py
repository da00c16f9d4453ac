"""Names what a scratch purge deleted from a run directory. Standard library only."""

import os
from pathlib import Path

from ..base import files, installation
from ..base.errors import RecordError, UserError
from ..contract.rundir import RunDir
from ..contract.spec import Spec
from ..plugins import PLUGINS
from . import code_snapshot

HINT = (
    f"restore it, then {installation.command('resume')} continues; or submit a new run with "
    "train.init_from"
)


def check(run_dir: RunDir) -> None:
    """Raises UserError for a missing or changed file that only the user can restore."""
    if (error := read_spec(run_dir)[1]) is not None:
        raise error
    check_code(run_dir)


def read_spec(run_dir: RunDir) -> tuple[Spec, UserError | None]:
    """Return the frozen spec and None; the defaults and the error where it cannot be read."""
    try:
        return Spec.read(run_dir.spec), None
    except FileNotFoundError:
        return Spec(), UserError(f"{run_dir.spec} is gone\n  hint: {HINT}")
    except RecordError as error:
        return Spec(), UserError(f"{error}\n  hint: {HINT}")
    except UserError as error:
        return Spec(), error


def check_code(run_dir: RunDir) -> tuple[Path, Path]:
    """Return the folders of the frozen code, and of the kit.

    Raises: UserError where one of them is gone or altered.
    """
    for link in (run_dir.code, run_dir.kit):
        files.ask_again(link)  # a resume on another host may have replaced it
    code, kit = (Path(os.path.realpath(x)) for x in (run_dir.code, run_dir.kit))
    for folder in dict.fromkeys((code, kit)):
        is_copy = code_snapshot.NAME.fullmatch(folder.name)
        if is_copy and (what := code_snapshot.damage(folder)) is not None:
            way = "a submit of the same checkout makes an equal copy there: put it in this place"
            if "changes" in PLUGINS:
                command = installation.command("resume", run_dir.run_id, "", "code")
                way = f"{command} takes the code of its checkout"
            raise UserError(f"the frozen code has lost or changed files: {what}\n  hint: {way}")
    return code, kit
