"""Every harm of the campaign by its name: what it does to a run in its present state.

Rows of the fault table that are not drawn: 6 (the grace is shorter than the site's saves), 8 (the
proctrack of every draw), 21 (its disk is mounted before the nodes start), 23 (the port is taken
before the run starts), 24 and 36 (end held), 26 and 27 (other worlds have other weights), 28 (what
users edit), 29 (its model eats memory), 31 (nothing may run at all), 32 (samples are counted), 42
to 44 (the model or the stub of GPUs is chosen at submit), 47 (a script).
Rows 19 and 33 are drawn in part: one requeue, and whatever the old attempt tries in a short run.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from ..faults import harm_nodes, harm_processes, harm_slurm, harm_storage
from ..faults.scenario import STEPS
from ..kit import JOB_TIMEOUT_S
from .sites import SITES
from .victim import Victim

SUSPENDED_S = 15
_IN_FLIGHT_S = 60
_BRISK_S = 0.25
_START_UP_S = 8  # about as long as it takes


def _scancel(victim: Victim) -> None:
    # A job that is still queued has no process that could record the cancel.
    harm_processes.wait_for_role(victim.run, "agent")
    harm_slurm.scancel(victim.run)


def _warn_a_rank(victim: Victim) -> None:
    rank, stop = victim.some_rank(), victim.dice.choice(harm_processes.STOPS)
    listens = f"{rank} listens to {stop.name}"
    victim.run.wait_for(lambda: harm_processes.catches(rank, stop), listens)
    harm_processes.send([rank], stop)


def _warn_an_agent(victim: Victim) -> None:
    harm_processes.wait_for_role(victim.run, "agent")
    stop = victim.dice.choice(harm_processes.STOPS)
    assert harm_processes.warn_an_agent(victim.run, stop, victim.dice)


def _kill(role: str) -> Callable[[Victim], object]:
    return lambda victim: harm_processes.kill(victim.trains(), role)


def _kill_the_shell(victim: Victim) -> None:
    harm_processes.kill(victim.trains(), "batch")
    victim.run.wait("FAILED")
    victim.resume()


@contextmanager
def _save_in_flight(victim: Victim) -> Iterator[None]:
    """A block in which the disk stands still at one file of a save; state.json is the last one."""
    run = victim.trains()
    # A first save is complete, so that the disk does not block in the middle of its pointer file.
    victim.pace(_BRISK_S)
    run.wait_for_events("save")
    newest = run.dir.checkpoints / harm_storage.committed(run.dir)[0]
    file = victim.dice.choice([*harm_storage.shards(newest), "state.json"])
    older = set(run.dir.checkpoints.glob(f".tmp-step-*/{file}"))
    victim.disk.write_text(file)
    try:
        run.wait_for(
            lambda: set(run.dir.checkpoints.glob(f".tmp-step-*/{file}")) - older,
            f"a save at {file}",
            _IN_FLIGHT_S,
        )
        yield
    finally:
        victim.disk.unlink(missing_ok=True)


def _kill_in_a_save(victim: Victim) -> None:
    with _save_in_flight(victim):
        number = victim.dice.randrange(victim.num_ranks())
        harm_processes.send([harm_processes.rank(victim.run, number)], signal.SIGKILL)


def _preempt_in_a_save(victim: Victim) -> None:
    with _save_in_flight(victim):
        _warn_by_preemption(victim)


def _warn_by_preemption(victim: Victim) -> None:
    stop = victim.run.dir.attempt(victim.attempt()).stop_requested
    harm_slurm.begin_preemption(victim.run)
    victim.run.wait_for(stop.exists, "the warning of an agent")


def _stop_a_rank(victim: Victim) -> None:
    """SIGSTOP a rank; every second time between its import of torch and its first steps.

    That is in the start-up of a further attempt.
    """
    rank = victim.some_rank()
    if victim.dice.random() < 0.5:
        with victim.another_attempt():
            harm_processes.send([rank], signal.SIGKILL)
        rank = victim.some_rank()
        time.sleep(victim.dice.uniform(0, _START_UP_S))
    with victim.another_attempt():
        harm_processes.send([rank], signal.SIGSTOP)


def _loop(victim: Victim) -> None:
    victim.trains()
    (victim.trouble / str(victim.dice.randrange(victim.num_ranks()))).touch()


def _suspend(victim: Victim) -> None:
    harm_processes.suspend(victim.trains())
    time.sleep(SUSPENDED_S)
    harm_processes.resume(victim.run)


def _pause(victim: Victim) -> None:
    """Hold the run in the queue, with an older checkpoint than the newest to fall back on."""
    run, committed = victim.run, harm_storage.committed
    victim.pace(_BRISK_S)
    run.wait_for(lambda: len(committed(run.dir)) > 1, "two checkpoints")
    harm_storage.pause(run)


def _damage(victim: Victim) -> None:
    _pause(victim)
    run_dir, damage = victim.run.dir, victim.dice.choice(harm_storage.DAMAGES)
    newest = run_dir.checkpoints / harm_storage.committed(run_dir)[0]
    file = victim.dice.choice([*harm_storage.shards(newest), "state.json", "manifest.json"])
    victim.put_aside += harm_storage.damage_newest(run_dir, damage, file=file)
    harm_storage.release(victim.run)


def _purge(victim: Victim) -> None:
    _pause(victim)
    victim.put_aside.append(harm_storage.purge(victim.run.dir))
    harm_storage.release(victim.run)


def _power_off(victim: Victim) -> None:
    run = victim.trains()
    with victim.another_attempt():
        node = harm_nodes.lose_power(run, victim.dice.randrange(victim.num_ranks()))
    run.cluster.power_on(node)


def _unplug(victim: Victim) -> None:
    run = victim.trains()
    with victim.another_attempt():
        node = harm_nodes.cut_off(run, victim.dice.randrange(victim.num_ranks()))
    harm_nodes.reconnect(run, node)


def _controller_away(victim: Victim) -> None:
    victim.trains()
    _warn_by_preemption(victim)
    with harm_nodes.controller_away(victim.run):
        pass


def _second_job(victim: Victim) -> None:
    """Start a second job: it must be refused while the first one runs, without harm to the run."""
    second = harm_slurm.submit_again(victim.kit, victim.trains())
    victim.run.cluster.wait_job(second, "FAILED", JOB_TIMEOUT_S)


@dataclass(frozen=True)
class Harm:
    """One harm.

    `causes`: possible causes of the end of an attempt with this harm; empty if none ends. `saves`:
    no step is done twice. `stays`: it needs neither another start of the job nor another node.
    """

    do: Callable[[Victim], object]
    rows: tuple[int, ...]
    causes: tuple[str, ...] = ()
    saves: bool = False
    stays: bool = False

    def strike(self, victim: Victim) -> None:
        """Do the harm, and wait for the next attempt if one ends by it."""
        with victim.another_attempt() if self.causes else nullcontext():
            self.do(victim)


_WARNED = ("manual_stop", "time_limit")
# Slurm kills the batch shell KillWait after the warning, perhaps before it recorded the attempt.
_REQUEUED = ("requeued", "lost")
_NODE = ("node", *_REQUEUED)

HARMS: dict[str, Harm] = {
    "preempt": Harm(
        lambda v: harm_slurm.begin_preemption(v.run), (2,), ("preemption",), saves=True
    ),
    "preempt_in_save": Harm(_preempt_in_a_save, (46,), ("preemption",)),
    "time_limit": Harm(
        lambda v: harm_slurm.reach_time_limit(v.run), (1,), ("time_limit",), saves=True
    ),
    "requeue": Harm(lambda v: harm_slurm.requeue(v.run), (12,), _REQUEUED),
    "warn_a_rank": Harm(_warn_a_rank, (7,), _WARNED, saves=True),
    "warn_an_agent": Harm(_warn_an_agent, (10,), _WARNED, saves=True),
    "storm": Harm(
        lambda v: harm_processes.storm(v.trains(), seed=v.dice.randrange(2**32)), (9,), _WARNED
    ),
    "kill_rank": Harm(_kill("rank"), (14,), ("crash",), stays=True),
    "kill_torchrun": Harm(_kill("torchrun"), (15,), ("crash",), stays=True),
    "kill_agent": Harm(_kill("agent"), (15,), ("crash",), stays=True),
    "kill_srun": Harm(_kill("srun"), (15,), ("crash",), stays=True),
    "kill_shell": Harm(_kill_the_shell, (15,), ("lost",)),
    "kill_in_save": Harm(_kill_in_a_save, (16,), ("crash",), stays=True),
    "stop_rank": Harm(_stop_a_rank, (22, 41), ("hang", "crash"), stays=True),
    "loop": Harm(_loop, (22, 41), ("hang",), stays=True),
    "suspend": Harm(_suspend, (34,), saves=True, stays=True),
    "damage": Harm(_damage, (20,), _WARNED),
    "purge": Harm(_purge, (35,), (*_WARNED, "lost")),
    # Slurm repeats its request to end the job's start on a node that was down. It may come when a
    # later start of the job runs there, whose agents then get SIGTERM (seen on 22.05).
    "power_off": Harm(_power_off, (17,), (*_NODE, "manual_stop")),
    "unplug": Harm(_unplug, (18, 33), _NODE),
    "controller_away": Harm(_controller_away, (19,), ("preemption", "manual_stop", *_REQUEUED)),
    "second_job": Harm(_second_job, (30,), saves=True, stays=True),
    "scancel": Harm(_scancel, (11,)),
}
# No harm can follow these.
FINAL = ("scancel",)
# The sites that rows of the table need; every harm is drawn on the plain one.
LEADS = [(name, "plain") for name in HARMS]
LEADS += [(site.lead, name) for name, site in SITES.items() if name != "plain"]
# By site, the harms that may be added.
OTHERS = {
    name: [h for h in HARMS if h not in FINAL and (HARMS[h].stays or not site.is_narrow)]
    for name, site in SITES.items()
}
# After later steps the run may already be complete.
LAST_STEP = STEPS - 10
