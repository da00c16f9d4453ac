"""The kit's commands: python -m jobs COMMAND ... (each has a make target)."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from jobs import commands, runs, status
from jobs.errors import FailedError, UserError
from jobs.talk import hang_up

EXIT_USER = 2
EXIT_FAILED = 1


def build_parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    parser = argparse.ArgumentParser(prog="python -m jobs", description=__doc__)
    add = parser.add_subparsers(dest="command", required=True, metavar="COMMAND").add_parser
    submit = add("submit", help="freeze a spec and run it: on Slurm, or here without")
    _config_arguments(submit)
    submit.add_argument("--cluster", choices=["auto", "slurm", "local"], default="auto")
    submit.add_argument("--dry-run", action="store_true", help="show what would be submitted")
    submit.add_argument("--json", action="store_true", help="machine-readable output")
    freeze = add("freeze", help="only make the run directory; prints it as JSON")
    _config_arguments(freeze)
    adopt = add("adopt", help="make the run directory of this Slurm job (slurm/ddp.sbatch)")
    _config_arguments(adopt)
    status = add("status", help="what the runs are doing")
    status.add_argument("run", nargs="?", help="run directory, run id, job id or name")
    status.add_argument("--json", action="store_true", help="machine-readable output")
    logs = add("logs", help="show a rank's log, rank 0 by default")
    logs.add_argument("run", nargs="?", help="run directory, run id, job id or name")
    logs.add_argument("--rank", type=int, default=0, help="global rank")
    logs.add_argument("-f", "--follow", action="store_true", help="keep following, as tail -F")
    cancel = add("cancel", help="stop a run for good; resume can still go on with it")
    cancel.add_argument("run", help="run directory, run id, job id or name")
    resume = add("resume", help="go on with a run that stopped before its end")
    resume.add_argument("run", nargs="?", help="run directory, run id, job id or name")
    resume.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="such as slurm.time=8:0:0"
    )
    resume.add_argument("--set", default="", metavar="TEXT", help="overrides as one text")
    resume.add_argument("--yes", action="store_true", help="change what results depend on, too")
    resume.add_argument("--cluster", choices=["auto", "slurm", "local"], default="auto")
    resume.add_argument("--json", action="store_true", help="machine-readable output")
    compare = add("compare", help="is a run bit for bit like one that nobody interrupted?")
    compare.add_argument("run", help="run directory, run id, job id or name")
    compare.add_argument("untouched", help="the run to compare it with")
    export = add("export", help="write a checkpoint's weights into one file, for other programs")
    export.add_argument("run", nargs="?", help="run directory, run id, job id or name")
    export.add_argument("--checkpoint", metavar="NAME", help="best, latest or step-XXXXXXXX")
    export.add_argument("--out", type=Path, metavar="FILE", help="where to; in the run if unset")
    return parser


def _config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a spec, in YAML")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="such as train.lr=0.05")
    parser.add_argument("--set", default="", metavar="TEXT", help="overrides as one text")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, with overrides anywhere: argparse takes them only in one place."""
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)
    if rest and ("overrides" not in args or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.overrides = [*args.overrides, *rest]
    return args


def overrides_of(args: argparse.Namespace) -> list[str]:
    """The overrides given as arguments and those in --set, which is split as a shell would."""
    try:
        return [*args.overrides, *shlex.split(args.set)]
    except ValueError as error:
        raise UserError(f"--set {args.set}: {error}") from error


def cmd_submit(args: argparse.Namespace) -> int:
    return commands.submit(args.config, overrides_of(args), args)


def cmd_freeze(args: argparse.Namespace) -> int:
    from jobs.freeze import freeze
    from jobs.load import load

    with freeze(load(args.config, overrides_of(args))) as run_dir:
        print(json.dumps({"run_dir": str(run_dir.path)}))
    return 0


def cmd_adopt(args: argparse.Namespace) -> int:
    from jobs.adopt import adopt

    print(adopt(args.config, overrides_of(args)).path)
    return 0


def cmd_status(args: argparse.Namespace) -> int:
    return status.status([runs.find(args.run)] if args.run else runs.all_runs(), args.json)


def cmd_logs(args: argparse.Namespace) -> int:
    return commands.logs(runs.find(args.run), args.rank, args.follow)


def cmd_cancel(args: argparse.Namespace) -> int:
    return commands.cancel(runs.find(args.run))


def cmd_resume(args: argparse.Namespace) -> int:
    overrides = overrides_of(args)
    if args.run is not None and "=" in args.run:  # no run named, the newest is meant
        overrides, args.run = [args.run, *overrides], None
    return commands.resume(runs.find(args.run), overrides, args)


def cmd_compare(args: argparse.Namespace) -> int:
    return commands.compare(runs.find(args.run), runs.find(args.untouched))


def cmd_export(args: argparse.Namespace) -> int:
    return commands.export(runs.find(args.run), args.checkpoint, args.out)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "submit": cmd_submit,
    "freeze": cmd_freeze,
    "adopt": cmd_adopt,
    "status": cmd_status,
    "logs": cmd_logs,
    "cancel": cmd_cancel,
    "resume": cmd_resume,
    "compare": cmd_compare,
    "export": cmd_export,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 2 for a user's mistake, 1 for a failed action."""
    args = parse(argv)
    try:
        status = COMMANDS[args.command](args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `| head`: what is left in the buffer goes nowhere, in silence
        hang_up()
        return 0 if args.command in ("status", "logs") else EXIT_FAILED
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        if error.name not in ("pydantic", "yaml", "submitit"):
            raise
        print(f"error: {sys.executable} has no {error.name}", file=sys.stderr)
        print("  hint: start through make, or pip install -r requirements.lock", file=sys.stderr)
        return EXIT_USER
    except (UserError, FailedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER if isinstance(error, UserError) else EXIT_FAILED
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        print(f"error: {place}{error.strerror or error}", file=sys.stderr)
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
