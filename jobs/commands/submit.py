"""The command submit, and what submit and resume print: job, run directory, end of the run."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import hooks, installation
from ..console import display_path, format_metrics, print_line, quantity
from ..errors import UserError
from ..records.queued import Submission
from ..rundir import RunDir
from ..slurm import client
from . import arguments

if TYPE_CHECKING:
    from ..config.load import LoadedSpec
    from ..records.training import Result
    from ..runs.origin import Origin
MAKE = ("CONFIG", "SET FROM YES FLAGS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of submit."""
    arguments.add_config(parser)
    arguments.add_start(parser)
    parser.add_argument("--dry-run", action="store_true", help="show what would be submitted")
    arguments.add_no_check(parser)
    help_of_from = "begin with the whole state of a run, @step-N or @best of its checkpoints"
    parser.add_argument("--from", dest="origin", metavar="RUN[@NAME]", help=help_of_from)
    help_of_yes = "also if the spec differs from that run's"
    parser.add_argument("--yes", action="store_true", help=help_of_yes)


def command(args: argparse.Namespace) -> int:
    """Run submit; returns the exit code."""
    if args.json and args.dry_run:
        hint = "leave out one of --json and --dry-run"
        raise UserError(f"--dry-run prints no JSON\n  hint: {hint}")
    origin = None
    if args.origin is not None:
        from ..runs.origin import find

        origin = find(args.origin, args.yes)
    options = Options(args.cluster, args.json, not args.no_check, args.dry_run, origin)
    return submit(args.config, arguments.overrides_of(args), options)


def choose_cluster(requested: str) -> str:
    """Return `slurm` or `local`; auto is Slurm if sbatch is on PATH and configured for a cluster.

    Raises: UserError where Slurm seems to be installed and not loaded, or requested and missing.
    """
    has_sbatch = client.has_sbatch()
    if requested == "slurm" and not has_sbatch:
        raise UserError("--cluster slurm: no sbatch on PATH\n  hint: module load slurm, perhaps")
    if requested != "auto":
        return requested
    reason = client.unloaded_reason()
    if reason is not None:
        raise UserError(
            f"no sbatch on PATH, but this looks like a cluster: {reason}\n"
            "  hint: load Slurm (module load slurm), or --cluster local to train on this machine"
        )
    if has_sbatch and not client.is_configured():
        print("sbatch is installed, but configured for no cluster", file=sys.stderr)
        return "local"
    return "slurm" if has_sbatch else "local"


@dataclass(frozen=True)
class Options:
    """The options of submit.

    is_checked: whether the parts of the run are built once before it is queued. A run on this
        machine builds them at once anyway.
    origin: the state of another run that the run begins with.
    """

    cluster: str
    as_json: bool
    is_checked: bool
    is_dry: bool = False
    origin: Origin | None = None


def submit(config: Path, overrides: Sequence[str], options: Options) -> int:
    """Freeze a spec, then queue the run or train here; returns the exit code.

    Raises: UserError, FailedError; then there is no run.
    """
    from ..config.load import load
    from ..runs.freeze import planned_run_dir
    from . import packages
    from .queue import queue
    from .submit_claim import hold_claim

    loaded = load(config, overrides)
    if options.origin is not None:
        from ..runs import origin

        for line in origin.check(options.origin, loaded.spec):
            print_line(line)
    if options.is_dry:
        packages.check(loaded.spec, is_on_slurm=False)
        return dry_run(loaded, options.cluster)
    run_dir, cluster, job_id = planned_run_dir(loaded.spec), choose_cluster(options.cluster), None
    with new_runs({run_dir: loaded}, cluster, options, hold_claim(run_dir)):
        if cluster == "slurm":
            job_id = queue(loaded.spec, run_dir, Submission())
    if job_id is None:
        return run_here(run_dir, options.as_json)
    announce(run_dir, job_id, options.as_json)
    return 0


@contextlib.contextmanager
def new_runs(
    runs: Mapping[RunDir, LoadedSpec],
    cluster: str,
    options: Options,
    claim: contextlib.AbstractContextManager[None],
) -> Iterator[None]:
    """Run a block with new runs that can be queued or run here; delete them again if it fails.

    claim: the block in which no other command queues or cancels them.
    Raises: UserError, FailedError.
    """
    from ..runs.freeze import freeze_all
    from ..slurm import executor
    from . import packages
    from .queue import gpu_hours

    for loaded in runs.values():
        packages.check(loaded.spec, is_on_slurm=cluster == "slurm")
        if cluster == "local":
            from . import local

            local.check_machine(loaded.spec, len(local.visible_gpus()))
    if cluster == "slurm":
        print_line(gpu_hours([loaded.spec for loaded in runs.values()]))
        executor.begin_import()
    with freeze_all(runs), claim:
        if options.origin is not None:
            from ..runs import origin

            for run_dir in runs:
                print_line(origin.copy_into(run_dir, options.origin))
        hooks.before_queue(runs, cluster == "slurm", options.is_checked)
        yield


def dry_run(loaded: LoadedSpec, cluster: str) -> int:
    """Print sbatch command, script and resolved spec; queue and write nothing.

    Returns 1 if the job could never run, or sbatch --test-only refuses it or does not answer.
    Raises: UserError where `choose_cluster` does.
    """
    from .. import hooks
    from ..environment import Door
    from ..node.torchrun import placeholder_options, torchrun_command
    from ..runs.code_snapshot import repository
    from ..runs.freeze import planned_run_dir
    from ..runs.own_script import check_inputs, locate
    from ..slurm import refusals
    from ..slurm.sbatch import sbatch_argv
    from .queue import gpu_hours, show_site, test_only

    run_dir, (spec, top) = planned_run_dir(loaded.spec), locate(loaded.spec, repository())
    check_inputs(spec.launch, top)
    script = installation.HOME / "slurm/ddp.sbatch"
    argv = sbatch_argv(spec, run_dir)
    print(f"# command\n{shlex.join(argv)}")
    command = torchrun_command(spec, run_dir, placeholder_options(spec))
    command, _ = hooks.start(Door.TORCHRUN, command, {}, spec)
    # The agents start torchrun by their own interpreter.
    torchrun = [spec.interpreter if word == sys.executable else word for word in command]
    print(f"\n# torchrun, as the first node's agent starts it\n{shlex.join(torchrun)}")
    print(f"\n# script: slurm/{script.name}\n{script.read_text(encoding='utf-8')}")
    print(f"# resolved spec\n{spec.to_json()}", end="", flush=True)
    print_line(gpu_hours([spec]))
    is_local = choose_cluster(cluster) == "local"
    if is_local:
        print("sbatch was not asked: submit would run the spec on this machine", file=sys.stderr)
        return 0
    verdict = test_only(spec, run_dir, script)
    if verdict is None:
        print("sbatch did not answer: whether it accepts the job is unknown", file=sys.stderr)
        return 1
    show_site(spec)
    print(verdict.text, file=sys.stderr)
    if not verdict.is_accepted and (hint := refusals.hint(verdict.text)):
        print(f"  hint: {hint}", file=sys.stderr)
    return 0 if verdict.is_accepted else 1


def announce(run_dir: RunDir, job_id: str | None, as_json: bool) -> None:
    """Print the run directory, the job and how to follow the log; as JSON their four keys."""
    if as_json:
        cluster = "local" if job_id is None else "slurm"
        ids = {"job_id": job_id, "run_id": run_dir.run_id}
        print(json.dumps(ids | {"run_dir": str(run_dir.path), "cluster": cluster}), flush=True)
        return
    print(f"job {job_id}")
    print(f"run directory {display_path(run_dir.path)}")
    print(f"tail -F {shlex.quote(display_path(run_dir.rank_log(0)))}")


def format_held_out(result: Result) -> str:
    """Return `held-out accuracy 98.89%`: the last evaluation's metric, or the loss; "" without."""
    metrics = {e.name: e.value for e in result.metrics or () if e.name.startswith("eval_")}
    without_loss = {name: value for name, value in metrics.items() if name != "eval_loss"}
    return format_metrics(without_loss or metrics)


def run_here(run_dir: RunDir, as_json: bool) -> int:
    """Run on this machine in the foreground and print how it ended; returns the exit code."""
    from .. import records
    from ..attempt.execute import hold_hint
    from ..records.ended import Action, Cause
    from ..records.training import Result
    from ..runs import fact_reader
    from . import local

    if as_json:
        announce(run_dir, None, True)
    stream = sys.stderr if as_json else sys.stdout
    print(f"run directory {display_path(run_dir.path)}", file=sys.stderr, flush=True)
    decision = local.run(run_dir)
    result = records.read(Result, run_dir.result)
    if decision is None or decision.action is Action.DONE:
        if result is not None and (metrics := format_held_out(result)):
            steps = quantity(result.global_step or 0, "step")
            print(f"{metrics} after {steps}", file=stream)
        print(f"run directory {display_path(run_dir.path)}", file=stream)
        print(f"next: {installation.command('logs', run_dir.run_id)}", file=stream)
        return 0
    step = None if result is None else result.global_step
    where = "" if step is None else f" after step {step}"
    # The reason of a failure stands in the attempt's own line, just above.
    why = decision.reason if decision.cause is Cause.INTERRUPTED else f"{decision.cause}, see above"
    print(f"stopped{where}: {why}", file=sys.stderr)
    last = fact_reader.last_record(run_dir)
    if last is not None:
        print(f"next: {hold_hint(run_dir, last)}", file=sys.stderr)
    if client.is_configured():
        here = f"with {installation.CLUSTER_LOCAL} it continues here"
        print(f"note: this queues the run on Slurm; {here}", file=sys.stderr)
    return 130 if decision.cause is Cause.INTERRUPTED else 1
