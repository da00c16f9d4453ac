"""The kit's commands: `python -m jobs COMMAND` in a clone, `kit COMMAND` where pip installed them.

In a clone most of them have a make target.
"""

from __future__ import annotations

import argparse
import gc
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_job_kit.jobs import installation
from slurm_job_kit.jobs.console import discard_output, with_time
from slurm_job_kit.jobs.errors import FailedError, UserError

if TYPE_CHECKING:
    from slurm_job_kit.jobs.rundir import RunDir

RUN = "run directory, run id, job id or name"
EXIT_USER = 2
EXIT_FAILED = 1


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; `args.act(args)` runs the chosen one, returns its exit code."""
    prog = "python -m jobs" if installation.IS_BY_MAKE else "kit"
    parser = argparse.ArgumentParser(prog=prog, description="Run PyTorch training on Slurm.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, about: str, act: Callable[[argparse.Namespace], int]
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=about)
        command.set_defaults(act=act)
        return command

    command = add("submit", "freeze a spec and run it, on Slurm if there is one", _submit)
    _config_arguments(command)
    _start_arguments(command)
    _submit_arguments(command)
    add("init", "write a first spec, kit.mk and .gitignore lines into this folder", _init)
    command = add("freeze", "make the run directory only, and print it as JSON", _freeze)
    _config_arguments(command)
    command = add("adopt", "make the run directory of this Slurm job (slurm/ddp.sbatch)", _adopt)
    _config_arguments(command)
    command = add("status", "list the runs and their states", _status)
    _run_argument(command)
    command.add_argument("--json", action="store_true", help="machine-readable output")
    command.add_argument("--all", action="store_true", help="list all runs (--json always does)")
    command = add("logs", "show a rank's log, rank 0 by default", _logs)
    _run_argument(command)
    command.add_argument("--rank", type=int, default=0, help="global rank")
    command.add_argument("-f", "--follow", action="store_true", help="follow it as tail -F does")
    command = add("cancel", "stop a run; only resume continues it", _cancel)
    command.add_argument("run", help=RUN)
    command = add("resume", "continue a run that stopped before its end", _resume)
    _run_argument(command)
    _override_arguments(command, "slurm.time=8:0:0")
    _start_arguments(command)
    command.add_argument("--yes", action="store_true", help="also change what results depend on")
    command.add_argument("--code", action="store_true", help="freeze the checkout anew first")
    command.add_argument("--checkpoint", metavar="NAME", help="go on from best, step-N or N")
    _no_check_argument(command)
    command = add("compare", "compare a run bit for bit with a reference run", _compare)
    command.add_argument("run", help=RUN)
    command.add_argument("reference", help="the reference: a run without interruption")
    command = add("export", "write a checkpoint's weights as safetensors", _export)
    _run_argument(command)
    _export_arguments(command)
    return parser


def _run_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", help=RUN)


def _config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a spec, in YAML")
    _override_arguments(parser, "train.lr=0.05")


def _override_arguments(parser: argparse.ArgumentParser, example: str) -> None:
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=f"such as {example}")
    parser.add_argument("--set", default="", metavar="TEXT", help="overrides as one text")


def _submit_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dry-run", action="store_true", help="show what would be submitted")
    _no_check_argument(parser)
    help_of_from = "begin with the whole state of a run, @step-N or @best of its checkpoints"
    add("--from", dest="origin", metavar="RUN[@NAME]", help=help_of_from)
    add("--yes", action="store_true", help="also with another spec than that run")


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", metavar="NAME", help="best, latest or step-XXXXXXXX")
    help_of_out = "a file or directory, by default in the run directory"
    parser.add_argument("--out", type=Path, metavar="PATH", help=help_of_out)
    help_of_dcp = "weights and optimizer for torch.distributed.checkpoint, as a directory"
    parser.add_argument("--dcp", action="store_true", help=help_of_dcp)


def _no_check_argument(parser: argparse.ArgumentParser) -> None:
    help_of_it = "queue without building model and data once"
    parser.add_argument("--no-check", action="store_true", help=help_of_it)


def _start_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cluster", choices=["auto", "slurm", "local"], default="auto")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The parsed command line. Overrides may stand anywhere; argparse takes them in one place."""
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)
    if rest and ("overrides" not in args or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.overrides = [*args.overrides, *rest]
    return args


def overrides_of(args: argparse.Namespace) -> list[str]:
    """The overrides from arguments and from --set, which is split as a shell does."""
    try:
        return [*args.overrides, *shlex.split(args.set)]
    except ValueError as error:
        raise UserError(f"--set {args.set}: {error}") from error


def _submit(args: argparse.Namespace) -> int:
    from slurm_job_kit.jobs.commands import submit

    origin = None
    if args.origin is not None:
        from slurm_job_kit.jobs.runs.origin import find

        origin = find(args.origin, args.yes)
    options = submit.Options(args.cluster, args.dry_run, args.json, not args.no_check, origin)
    return submit.submit(args.config, overrides_of(args), options)


def _init(_: argparse.Namespace) -> int:
    from slurm_job_kit.jobs.commands import init

    return init.init(Path.cwd())


def _freeze(args: argparse.Namespace) -> int:
    from slurm_job_kit.jobs.config.load import load
    from slurm_job_kit.jobs.runs.freeze import freeze

    with freeze(load(args.config, overrides_of(args))) as run_dir:
        print(json.dumps({"run_dir": str(run_dir.path)}))
    return 0


def _adopt(args: argparse.Namespace) -> int:
    from slurm_job_kit.jobs.commands.adopt import adopt

    print(adopt(args.config, overrides_of(args)).path)
    return 0


def _status(args: argparse.Namespace) -> int:
    from slurm_job_kit.jobs.commands import status
    from slurm_job_kit.jobs.runs import lookup

    run_dirs = [lookup.find(args.run)] if args.run else lookup.all_runs()
    return status.status(run_dirs, args.json, args.all)


def _find(run: str | None) -> RunDir:
    """The run directory of RUN, with the result.json of a run that is complete."""
    from slurm_job_kit.jobs.attempt.close import write_missing_result
    from slurm_job_kit.jobs.runs import lookup

    run_dir = lookup.find(run)
    write_missing_result(run_dir)
    return run_dir


def _logs(args: argparse.Namespace) -> int:
    from slurm_job_kit.jobs.commands import logs

    return logs.logs(_find(args.run), args.rank, args.follow)


def _cancel(args: argparse.Namespace) -> int:
    from slurm_job_kit.jobs.commands import cancel
    from slurm_job_kit.jobs.runs import lookup

    run_dir = _find(args.run)
    if args.run == run_dir.path.parent.name and (newer := lookup.newer_not_begun(run_dir)):
        raise UserError(
            f"{newer.run_id} is newer, but the kit did not queue it: which run is meant?\n"
            f"  hint: {installation.command('cancel', run_dir.run_id)}, or {newer.run_id}"
        )
    return cancel.cancel(run_dir)


def _resume(args: argparse.Namespace) -> int:
    from slurm_job_kit.jobs.commands import resume

    overrides = overrides_of(args)
    if args.run is not None and "=" in args.run:  # RUN is left out: the newest run
        overrides, args.run = [args.run, *overrides], None
    run_dir = _find(args.run)
    request = resume.Request(
        overrides, args.cluster, args.yes, args.code, args.checkpoint, not args.no_check
    )
    return resume.resume(run_dir, request, args.json)


def _compare(args: argparse.Namespace) -> int:
    from slurm_job_kit.jobs.runs import compare

    run_dir = _find(args.run)
    found = compare.compare(run_dir, _find(args.reference))
    print("\n".join(found) or compare.summary(run_dir))
    return EXIT_FAILED if found else 0


def _export(args: argparse.Namespace) -> int:
    from slurm_job_kit.jobs.commands import export

    return export.export(_find(args.run), args.checkpoint, args.out, args.dcp)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code: 2 for a user's mistake, 1 for a failed action."""
    args = parse(argv)
    try:
        code: int = args.act(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `| head` has ended: drop the rest of the output
        discard_output()
        return 0 if args.command in ("status", "logs") else EXIT_FAILED
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        from slurm_job_kit.jobs.commands import packages

        names = [*packages.COMMANDS, "submitit", *packages.TRAINER]
        absent = packages.missing(names)
        if not absent or error.name not in ("pydantic_core", "yaml", "submitit"):
            raise
        print(with_time(f"error: {packages.message(absent)}"), file=sys.stderr)
        return EXIT_USER
    except (UserError, FailedError) as error:
        print(with_time(f"error: {error}"), file=sys.stderr)
        return EXIT_USER if isinstance(error, UserError) else EXIT_FAILED
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        print(with_time(f"error: {place}{error.strerror or error}"), file=sys.stderr)
        return EXIT_FAILED


def command() -> int:
    """Run one command as the whole process; returns its exit code.

    Submit makes 55,000 objects, most of them in imports, and few are garbage. To look for it took
    a seventh of its CPU time. A run on this machine takes hours: there the collector still works.
    """
    gc.set_threshold(100_000)
    code = main()
    gc.freeze()  # the interpreter collects once more at its end
    return code


if __name__ == "__main__":
    sys.exit(command())
