"""The command shell: a shell, a command or py-spy's stacks on the node of a running rank.

It starts in the job of the run, as an srun step that shares the resources of the ranks, or here for
a run on this machine. It has the variables of the setup lines and the working directory of the
ranks, but runs outside of launch.command_prefix and of a container.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from .. import environment, installation, records, shared_files
from ..console import print_line, quantity
from ..environment import Door
from ..errors import FailedError, UserError
from ..node.stacks import py_spy
from ..records.nodes import AgentRecord, AttemptPlan
from ..records.training import Event, read_events
from ..rundir import RunDir, code_folders
from ..runs import lookup, run_lock, state
from ..slurm import client
from .arguments import RUN

ENDED = 9  # exit code of _BESIDE where the rank's process is gone
# Arguments: setup.sh, the working directory, PYTHONPATH, the rank's pid, and the command. The exit
# codes of the setup lines do not count: the ranks have started with them.
_BESIDE = f"""
[[ -d /proc/$4 ]] || {{ echo "process $4 of the rank has ended" >&2; exit {ENDED}; }}
setup=$1 folder=$2 code=$3
shift 4
source "$setup" </dev/null >&2
cd "$folder" && export PYTHONPATH="$code${{PYTHONPATH:+:$PYTHONPATH}}" && exec "$@"
"""


@dataclass(frozen=True)
class Whereabouts:
    """Where a rank runs. job_id, node: of Slurm; None for a run on this machine."""

    rank: int
    pid: int
    host: str
    job_id: str | None
    node: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of shell."""
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.usage = f"{parser.prog} RUN [--rank N] [--stack] [-- COMMAND ...]"
    parser.set_defaults(words=[])
    parser.add_argument("--rank", type=int, default=0, help="global rank, 0 by default")
    parser.add_argument("--stack", action="store_true", help="print what the rank does: py-spy")


def command(args: argparse.Namespace) -> int:
    """Run shell; returns the exit code."""
    if args.stack and args.words:
        raise UserError("shell --stack takes no command\n  hint: leave one of the two out")
    run_dir = lookup.find(args.run)
    place = find_place(run_dir, args.rank)
    if args.stack:
        return print_stack(run_dir, place)
    return become(argv_beside(run_dir, place, args.words or ["bash"]))


def find_place(run_dir: RunDir, rank: int) -> Whereabouts:
    """Return where a rank of a running run is. Raises: UserError, FailedError."""
    owner, attempt = running_owner(run_dir)
    logs = shared_files.files_in(run_dir.timeline("").parent, "rank-*.jsonl")
    spawned = {path.stem: event for path in logs if (event := _spawn(path, attempt))}
    event = spawned.get(run_dir.timeline(f"rank-{rank:05d}").stem)
    logs_hint = f"hint: {installation.command('logs', run_dir.run_id)}"
    if event is None or event.pid is None or event.host is None:
        what = f"{run_dir.run_id} has no rank {rank} in attempt {attempt}"
        started = f"{quantity(len(spawned), 'rank')} of it started"
        raise UserError(f"{what}: {started}\n  {logs_hint}")
    if not owner.is_local:
        node = node_of(run_dir, attempt, event.host)
        return Whereabouts(rank, event.pid, event.host, client.plain_job_id(owner.job_id), node)
    if owner.host != socket.gethostname():
        raise UserError(f"{run_dir.run_id} runs on {owner.host}\n  hint: use shell there")
    return Whereabouts(rank, event.pid, event.host, None, None)


def running_owner(run_dir: RunDir) -> tuple[run_lock.Owner, int]:
    """Return the job or process that runs a run, and its attempt.

    Raises: UserError for a run that does not run now; FailedError if Slurm does not answer.
    """
    claim, run = run_lock.read_claim(run_dir), state.read(run_dir)
    how = f"hint: {installation.command('status', run_dir.run_id)} shows its state"
    owner = run.files.owner
    is_elsewhere = owner is not None and owner.is_local and owner.host != socket.gethostname()
    if not is_elsewhere:
        run.refuse_unknown()
    if claim is None or owner is None or not (is_elsewhere or run.word == "running"):
        raise UserError(f"{run_dir.run_id} does not run now\n  {how}")
    return owner, claim.attempt


def _spawn(timeline: Path, attempt: int) -> Event | None:
    """Return the start of a rank's process in an attempt, from the rank's timeline."""
    events = read_events(timeline)
    spawns = [each for each in events if (each.event, each.attempt) == ("spawn", attempt)]
    return spawns[-1] if spawns else None


def node_of(run_dir: RunDir, attempt: int, host: str) -> str:
    """Return Slurm's name of the node with this host name, which may be another one."""
    attempt_dir = run_dir.attempt(attempt)
    plan = records.read(AttemptPlan, attempt_dir.plan)
    for rank, node in enumerate(() if plan is None else plan.nodes):
        agent = records.read(AgentRecord, attempt_dir.agent(rank))
        if agent is not None and agent.host == host:
            return node
    return host.partition(".")[0]


def argv_beside(run_dir: RunDir, place: Whereabouts, words: list[str]) -> list[str]:
    """Return the command line that runs `words` on the rank's node in the run's environment."""
    folder = run_dir.work if shared_files.is_dir(run_dir.work) else run_dir.code
    code = os.pathsep.join(code_folders(run_dir))
    inner = [str(run_dir.setup), str(folder), code, str(place.pid), *words]
    beside = ["bash", "-c", _BESIDE, "bash", *inner]
    if place.job_id is None or place.node is None:
        return beside
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return client.step_argv(place.job_id, place.node, beside, has_terminal)


def become(argv: list[str]) -> NoReturn:
    """Become a command, without the variables of an enclosing job."""
    sys.stdout.flush()
    try:
        os.execvpe(argv[0], argv, environment.variables_for(os.environ, Door.SBATCH))
    except FileNotFoundError:
        raise UserError(f"{argv[0]} is not on PATH\n  hint: use a host with Slurm") from None


def print_stack(run_dir: RunDir, place: Whereabouts) -> int:
    """Print the stacks of a rank's threads by py-spy; returns 0.

    Raises: UserError without py-spy; FailedError where it may not look into the process.
    """
    if (program := py_spy()) is None:
        raise UserError(f"there is no py-spy beside {sys.executable}\n  hint: pip install py-spy")
    argv = argv_beside(run_dir, place, [program, "dump", "--pid", str(place.pid)])
    try:
        done = subprocess.run(
            argv,
            env=environment.variables_for(os.environ, Door.SBATCH),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise UserError(f"{argv[0]} is not on PATH\n  hint: use a host with Slurm") from None
    if done.returncode == 0:
        return 0
    where = f"rank {place.rank}, process {place.pid} on {place.host}"
    if done.returncode == ENDED:
        raise UserError(
            f"{where}, has ended\n  hint: {installation.command('logs', run_dir.run_id)}"
        )
    print_line(done.stderr.strip())
    if "ermission" in done.stderr:
        hint = "ask the site for ptrace of your own processes (sysctl kernel.yama.ptrace_scope=0)"
        raise FailedError(f"py-spy may not look into {where}\n  hint: {hint}")
    raise FailedError(f"py-spy failed for {where}, see above")
