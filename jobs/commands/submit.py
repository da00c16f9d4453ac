"""The command submit, and what submit and resume do in the same way."""

import argparse
import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from .. import hooks
from ..base import answer, installation
from ..base.console import display_path
from ..base.errors import UserError
from ..config.load import load
from ..config.loaded import LoadedSpec
from ..contract.records.queued import Submission
from ..contract.rundir import RunDir
from ..contract.spec import OF_TRAINER, Spec
from ..runs.freeze import freeze_all, planned_run_dir
from ..slurm.cluster import is_installed, unloaded_reason
from . import arguments
from .queue import LOCAL, queue, test_only
from .submit_claim import hold_claim

Claim = Callable[[RunDir], contextlib.AbstractContextManager[None]]
MAKE = ("CONFIG", "SET FLAGS CMD")
TAKES_A_COMMAND = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_source(parser, "train.lr=0.05")
    arguments.add_start(parser)
    parser.add_argument("--dry-run", action="store_true", help="show what would be submitted")
    help_of_full = "with --dry-run: also the batch script, torchrun and keys that nothing reads"
    parser.add_argument("--full", action="store_true", help=help_of_full)
    arguments.add_no_check(parser)


def command(args: argparse.Namespace) -> int:
    """Freeze a spec, then queue the run or train here; returns the exit code.

    Raises: UserError, FailedError; then there is no run.
    """
    return run(load(*arguments.source_of(args)), args)


def run(loaded: LoadedSpec, args: argparse.Namespace, claim: Claim = hold_claim) -> int:
    """Do what `command` does with a loaded spec; `claim`: for the time until the job is queued."""
    if args.dry_run:
        if args.words is not None:
            print(f"# spec, to keep as a file\n{loaded.text}")
        return dry_run(loaded, args.cluster, args.full)
    run_dir, cluster = planned_run_dir(loaded.spec), choose_cluster(args.cluster)
    with new_runs({run_dir: loaded}, cluster, claim(run_dir), not args.no_check):
        job_id = queue(loaded.spec, run_dir, Submission()) if cluster == "slurm" else None
    return show_job_or_train(run_dir, job_id)


def choose_cluster(requested: str) -> str:
    """Return `slurm` or `local`; auto is local only without sbatch.

    Raises: UserError where Slurm seems to be installed and not loaded, or requested and missing.
    """
    if requested == "local":
        return requested
    if is_installed():
        return "slurm"
    if requested == "slurm":
        raise UserError("--cluster slurm: no sbatch on PATH\n  hint: load Slurm (module load)")
    if reason := unloaded_reason():
        what = f"no sbatch on PATH, but this looks like a cluster: {reason}"
        raise UserError(what, f"load Slurm (module load slurm); or {LOCAL}")
    return "local"


@contextlib.contextmanager
def new_runs(
    runs: Mapping[RunDir, LoadedSpec],
    cluster: str,
    claim: contextlib.AbstractContextManager[None],
    is_checked: bool,
) -> Iterator[None]:
    """Run a block with new runs that can be queued or run here; delete them again if it fails.

    claim: in which no other command queues or cancels them. is_checked: build their parts before.
    Raises: UserError, FailedError.
    """
    if cluster == "local":
        from . import local

        for loaded in runs.values():
            local.check_machine(loaded.spec, len(local.visible_gpus()))
    with freeze_all(runs), claim:
        hooks.before_queue(runs, cluster == "slurm", is_checked)
        yield


def dry_run(loaded: LoadedSpec, cluster: str, is_full: bool) -> int:
    """Print sbatch command and resolved spec; queue and write nothing.

    is_full: also torchrun's command, the batch script and, of a script, keys of the trainer.
    Returns 1 if the job could never run, or sbatch --test-only refuses it or does not answer.
    Raises: UserError where `choose_cluster` does.
    """
    from ..runs.code_snapshot import repository
    from ..slurm import refusals
    from ..slurm.sbatch import sbatch_argv

    run_dir = planned_run_dir(loaded.spec)
    spec, *_ = hooks.prepare_code(loaded.spec, repository())
    script = installation.HOME / "slurm/ddp.sbatch"
    argv = sbatch_argv(spec, run_dir)
    print(f"# command\n{shlex.join(argv)}\n")
    if is_full:
        print_start(spec, run_dir, script)
    values = json.loads(spec.to_json())
    unread = () if is_full or spec.launch.is_trainer else OF_TRAINER
    for section, _, name in (key.partition(".") for key in unread):
        (values[section] if name else values).pop(name or section)
    print(f"# resolved spec\n{json.dumps(values, indent=2, ensure_ascii=False)}", flush=True)
    where = choose_cluster(cluster)
    is_accepted, words = test_only(spec, run_dir, script) if where == "slurm" else (None, "")
    if is_accepted is not None:
        runs = {run_dir: replace(loaded, spec=spec)}
        hooks.before_queue(runs, is_on_slurm=True, is_checked=False)
    elif where == "local":
        words = "sbatch was not asked: submit would run the spec on this machine"
    else:
        words = "sbatch did not answer: whether it accepts the job is unknown"
    answer.give(sbatch=argv, spec=values, cluster=where, accepted=is_accepted, said=words)
    print(words, file=sys.stderr)
    if is_accepted is False and (hint := refusals.hint(words)):
        print(f"  hint: {hint}", file=sys.stderr)
    return 0 if is_accepted or where == "local" else 1


def print_start(spec: Spec, run_dir: RunDir, script: Path) -> None:
    """Print torchrun's command, as the first node's agent starts it, and the batch script."""
    from ..base.environment import Program
    from ..node.torchrun import NodeOptions, torchrun_command

    options = NodeOptions(spec.slurm.most_nodes, spec.nproc_per_node)
    command = torchrun_command(spec, run_dir, options)
    command, _ = hooks.launch_command(Program.TORCHRUN, command, {}, spec)
    # The agents start torchrun by their own interpreter.
    torchrun = [spec.interpreter if word == sys.executable else word for word in command]
    print(f"# torchrun, as the first node's agent starts it\n{shlex.join(torchrun)}\n")
    print(f"# script: slurm/{script.name}\n{script.read_text(encoding='utf-8')}")


def show_job_or_train(run_dir: RunDir, job_id: str | None) -> int:
    """Print job and run directory, and train here where there is no job; returns the exit code."""
    cluster = "local" if job_id is None else "slurm"
    answer.give(job_id=job_id, cluster=cluster, **run_dir.names())
    if job_id is None:
        from . import local

        return local.run_here(run_dir)
    print(f"job {job_id}")
    print(f"run directory {display_path(run_dir.path)}")
    print(f"tail -F {shlex.quote(display_path(run_dir.rank_log(0)))}")
    return 0
