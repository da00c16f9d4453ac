"""Harms to a run's processes: signals to one of them or to all, kills, stops.

A job's processes are those below its slurmstepds, as Slurm started them: the batch shell, srun, on
each node the agent, torchrun, the ranks, and what ranks start to read data.
"""

import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from slurm_job_kit.jobs.plugins import PLUGINS

from .. import network
from ..kit import Run

STOPS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
FORK_SERVER = ("fork-server",) if "fast_start" in PLUGINS else ()
ROLES = ("batch", "srun", "agent", "torchrun", *FORK_SERVER, "rank", "reader")
_MARKS = {  # text in the command line; the first match counts
    "slurm_script": "batch",
    "-m slurm_job_kit.jobs.attempt run": "batch",
    "srun --": "srun",
    "signed_torchrun": "torchrun",
    "-m slurm_job_kit.jobs.node ": "agent",
    "-m slurm_job_kit.trainer": "rank",
    "multiprocessing": "reader",
}
_LOOK_AGAIN_S = 0.1
_TIMEOUT_S = 240


class Process(NamedTuple):
    """One process of a job. `role`: one of ROLES, or empty."""

    node: str
    pid: int
    role: str


def tree(run: Run) -> list[Process]:
    """All processes of the run's job but Slurm's own, parents first."""
    process_list: list[Process] = []
    for node in run.cluster.nodes:
        pids = network.processes(run.cluster.site.tag, node)
        parents = {pid: _parent_of(pid) for pid in pids}
        inside = {pid for pid in pids if f"[{run.job_id}." in _command_line(pid)}
        while new := {pid for pid, parent in parents.items() if parent in inside} - inside:
            inside |= new
            process_list += [Process(node, pid, _role_of(pid)) for pid in sorted(new)]
    return process_list


def of_role(run: Run, role: str, node: str | None = None) -> list[Process]:
    """The processes of a role, on one node or on all."""
    return [p for p in tree(run) if p.role == role and node in (None, p.node)]


def wait_for_role(run: Run, role: str) -> list[Process]:
    return run.cluster.wait_for(lambda: of_role(run, role), f"a {role} of {run.job_id}", _TIMEOUT_S)


def rank(run: Run, number: int) -> Process:
    """The process of a global rank in the newest attempt: torchrun assigns the ranks."""
    ranks = of_role(run, "rank")
    for process in ranks:
        if _rank_of(process.pid) == number:
            return process
    raise LookupError(f"rank {number} is not among {ranks}")


def kill(run: Run, role: str, node: str | None = None) -> list[Process]:
    """SIGKILL one process of a role (both of srun's), by default on the second node.

    Returns the process that it killed.
    """
    first = {"batch", "srun"}
    victims = of_role(run, role, node or (None if role in first else _second_node(run)))
    assert victims, f"no {role} of job {run.job_id} in {tree(run)}"
    victims = victims if role == "srun" else victims[:1]
    send(victims, signal.SIGKILL)
    return victims


def kill_slurmstepd(run: Run) -> None:
    """SIGKILL the slurmstepd of the newest srun step on the second node; its tasks live on."""
    node = _second_node(run)
    mark = f"[{run.job_id}."
    named = {pid: _command_line(pid) for pid in network.processes(run.cluster.site.tag, node)}
    victims = [
        pid for pid, line in named.items() if line.startswith("slurmstepd:") and mark in line
    ]
    assert victims, f"no slurmstepd of job {run.job_id} on {node}: {named}"
    for pid in victims:
        os.kill(pid, signal.SIGKILL)


def storm(run: Run, seconds: float = 1.0, count: int = 50, seed: int = 0) -> int:
    """Send `count` stop signals to each process of the whole tree; returns how many arrived."""
    chance, arrived, looked, processes = random.Random(seed), 0, 0.0, tree(run)
    for _ in range(count):
        if time.monotonic() - looked > _LOOK_AGAIN_S:
            processes, looked = tree(run), time.monotonic()
        arrived += sum(send([process], chance.choice(STOPS)) for process in processes)
        time.sleep(seconds / count)
    return arrived


def warn_rank(run: Run, number: int, stop: signal.Signals) -> Process:
    process = rank(run, number)
    send([process], stop)
    return process


def warn_an_agent(run: Run, stop: signal.Signals, chance: random.Random) -> Process | None:
    """Send one stop signal to one of the agents; returns None if all have ended."""
    agents = of_role(run, "agent")
    if not agents:
        return None
    agent = chance.choice(agents)
    send([agent], stop)
    return agent


def stop_rank(run: Run, number: int) -> Process:
    process = rank(run, number)
    send([process], signal.SIGSTOP)
    return process


def suspend(run: Run) -> None:
    run.cluster.run("scontrol", "suspend", run.job_id)


def resume(run: Run) -> None:
    run.cluster.run("scontrol", "resume", run.job_id)


def send(processes: Sequence[Process], number: signal.Signals) -> int:
    """Signal processes; returns how many of them still existed."""
    arrived = 0
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
            arrived += 1
    return arrived


def state_of(pid: int) -> str:
    """The kernel's letter for a process's state: T stopped, D perhaps frozen; X: it has ended."""
    return next(iter(_stat(pid)), "X")


def catches(process: Process, number: signal.Signals) -> bool:
    """Whether a process handles a signal; a rank ignores it at first. Source: proc(5), SigCgt."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (number - 1) & 1)


def is_gone(process: Process) -> bool:
    """Whether a process has ended; checked by its pid, as an orphan leaves the tree alive."""
    return state_of(process.pid) in "XZ"


def _second_node(run: Run) -> str:
    return sorted({p.node for p in tree(run) if p.role == "agent"})[1]


def _role_of(pid: int) -> str:
    # A fork has torchrun's command line.
    if (name := _name(pid)).startswith(("rank-", "fork-server")):
        return "fork-server" if name == "fork-server" else "rank"
    head = _command_line(pid).partition(" -- ")[0]
    return next((role for mark, role in _MARKS.items() if mark in head), "")


def _rank_of(pid: int) -> int | None:
    """The number of a rank; the environment of a forked one is still that of torchrun's start."""
    if (name := _name(pid)).startswith("rank-"):
        return int(name.removeprefix("rank-"))
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(b"RANK="):
                return int(entry.partition(b"=")[2])
    return None


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return ""


def _parent_of(pid: int) -> int:
    return int(next(iter(_stat(pid)[1:]), "0"))


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; [] if the process has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""
