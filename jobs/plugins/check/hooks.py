"""Checks a new run before it begins: the trainer builds its parts in a process of its own.

That process has the interpreter, code and variables of the ranks, and no GPU. Its errors are shown
like mistakes in the spec. A warning, a limit or a failure of the check itself refuses nothing.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ... import hooks
from ...base import installation
from ...base.console import print_line
from ...base.environment import Program
from ...base.packages import EXTRAS, TRAINER, missing
from ...config.loaded import LoadedSpec
from ...contract import records
from ...contract.problems import Problem, SpecError
from ...contract.rundir import RunDir
from ...contract.spec import Spec
from . import launch_keys, train_keys

LIMIT_S = 60.0
SKIP_HINT = f"{installation.option('--no-check')} leaves the check out"
DATASETS = {**dict.fromkeys(("digits", "breast_cancer"), "scikit-learn"), "image_folder": "pillow"}


class NotChecked(Exception):
    """The run cannot be checked on this host; the text is the reason."""


def problems(spec: Spec) -> Iterator[Problem]:
    yield from launch_keys.problems(spec)
    yield from train_keys.problems(spec)


def before_queue(runs: Mapping[RunDir, LoadedSpec], is_on_slurm: bool, is_checked: bool) -> None:
    """Check the packages of runs, and the parts of each that differ from those of all before.

    Runs that differ in numbers only, such as train.lr, have the same parts.
    Raises: UserError; SpecError with the mistake of the first run that has one.
    """
    specs = {
        run_dir: Spec.read(run_dir.spec) if run_dir.spec.exists() else loaded.spec
        for run_dir, loaded in runs.items()
    }
    for spec in specs.values():
        check_packages(spec)
    seen = set()
    for run_dir, spec in specs.items() if is_checked else ():
        numbers = (int, float, type(None))
        train = {k: v for k, v in vars(spec.train).items() if not isinstance(v, numbers)}
        if (parts := repr((train, spec.launch))) not in seen:
            seen.add(parts)
            check(runs[run_dir], run_dir, is_on_slurm)


def check_packages(spec: Spec) -> None:
    """Raises: UserError that names every package that the ranks lack, and how to install them.

    Only where they have this interpreter and no other environment.
    """
    names = ["torch"]
    if spec.launch.is_trainer:
        names = [*TRAINER]
        names += [DATASETS[spec.train.dataset]] if spec.train.dataset in DATASETS else []
        names += [name for each in spec.log.trackers for name in EXTRAS.get(each, ())]
    is_here = spec.interpreter == sys.executable and not (spec.setup or spec.runs_inside)
    if is_here and (error := missing(names)):
        raise error


def check(loaded: LoadedSpec, run_dir: RunDir, is_on_slurm: bool = True) -> None:
    """Check the parts of a frozen run, and print what was checked.

    loaded: the user's input, for the places of keys. is_on_slurm: the nodes may have other files.
    Raises: SpecError with a mistake that every rank would fail of.
    """
    spec, began = Spec.read(run_dir.spec), time.monotonic()
    try:
        python = ranks_python(spec)
        if spec.launch.is_trainer:
            what = "model, data and objective"
            found = build_parts(run_dir, spec, python, is_on_slurm)
        else:
            what, found = "the syntax of your code", own_code(run_dir, spec, python)
    except (NotChecked, records.RecordError, OSError) as reason:
        print_line(f"not checked: {reason}")
        return
    if found is not None:
        found = replace(found, place=loaded.document.place(found.path))
        if found.is_error:
            raise SpecError([found])
        print_line(f"warning: {found}")
    print_line(f"checked {what} in {time.monotonic() - began:.1f} s")


def ranks_python(spec: Spec) -> str:
    """Return the ranks' interpreter. Raises: NotChecked where only a compute node can find it."""
    if spec.runs_inside or any("container" in each for each in spec.slurm.sbatch_args):
        raise NotChecked("launch.command_prefix or a container has the ranks' environment")
    if spec.setup and not os.path.isabs(spec.interpreter):
        raise NotChecked(f"the setup lines of a node decide what {spec.interpreter} is")
    return spec.interpreter


def build_parts(run_dir: RunDir, spec: Spec, python: str, is_on_slurm: bool) -> Problem | None:
    """Run `trainer.plugins.check`; return the first error that it met. Raises: NotChecked."""
    with tempfile.TemporaryDirectory(prefix="kit-check-") as folder:
        report, output = Path(folder, "report.json"), Path(folder, "output")
        words = ["-m", "slurm_job_kit.trainer.plugins.check", str(run_dir.path), str(report)]
        words += [] if is_on_slurm else ["here"]
        env = rank_environment(run_dir, spec)
        status = run_limited([python, *words], run_dir.code, env, output)
        found = records.read(Problem, report)
        if found is None:
            printed = output.read_text(encoding="utf-8", errors="replace").strip()
            last = printed.rpartition("\n")[2]
            raise NotChecked(f"the check ended with status {status}: {last}\n  hint: {SKIP_HINT}")
    return found if found.what else None


def rank_environment(run_dir: RunDir, spec: Spec) -> dict[str, str]:
    """Return rank 0's variables, without those by which it would meet other ranks, and no GPU."""
    from ...node.torchrun import variables_of_spec  # not every run is checked

    folders = (str(run_dir.code), str(run_dir.kit), os.environ.get("PYTHONPATH"))
    return {
        **hooks.launch_command(Program.SBATCH, (), os.environ, spec)[1],
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        "KIT_RUN_DIR": str(run_dir.path),
        "KIT_RUN_ID": run_dir.run_id,
        "KIT_CHECKPOINT_DIR": str(run_dir.checkpoints),
        **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), "0"),
        "WORLD_SIZE": str(spec.num_ranks),
        "LOCAL_WORLD_SIZE": str(spec.nproc_per_node),
        **variables_of_spec(spec),
        "CUDA_VISIBLE_DEVICES": "",
    }


def run_limited(command: Sequence[str], folder: Path, env: dict[str, str], output: Path) -> int:
    """Run a command for LIMIT_S at most; return its exit status.

    Whatever happens, no process of its group survives. Raises: NotChecked at the limit.
    """
    with open(output, "wb") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        return process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        hint = f"your model or data set takes long to create on this host; {SKIP_HINT}"
        raise NotChecked(f"the check was ended after {LIMIT_S:.0f} s\n  hint: {hint}") from None
    finally:
        with contextlib.suppress(OSError):  # none is left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def own_code(run_dir: RunDir, spec: Spec, python: str) -> Problem | None:
    """Return a missing module or a syntax error of a user's code, if any; nothing is executed.

    Raises: OSError where its file is not in the frozen code; NotChecked.
    """
    key = "module" if spec.launch.script is None else "script"
    path = run_dir.code / (spec.launch.script or str(spec.launch.module).replace(".", "/") + ".py")
    if key == "module" and not path.is_file():
        find = "import importlib.util as u, sys; sys.exit(u.find_spec(sys.argv[1]) is None)"
        words, env = [python, "-c", find, str(spec.launch.module)], rank_environment(run_dir, spec)
        if not run_limited(words, run_dir.code, env, Path(os.devnull)):
            return None
        what = f"{python} and the frozen code have no module {spec.launch.module}"
        hint = "name one that git tracks or that is installed there, such as package.train"
        return Problem(("launch", key), what, hint, is_error=not spec.setup)
    try:
        compile(path.read_bytes(), path.name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # ValueError: a NUL byte
        # Setup lines may choose a newer Python for the ranks.
        return Problem(("launch", key), f"{path.name}: {error}", is_error=not spec.setup)
    return None
