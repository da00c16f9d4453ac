"""Every harm of the campaign by its name: what it does to a run, wherever that stands just now."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from jobs.history import newest_attempt

from ..faults import harm_nodes, harm_processes, harm_slurm, harm_storage
from ..faults.scenario import Paced
from ..kit import Kit, Run

# What the campaign's runs need so that each harm can be met: a warning of the time limit while
# they crawl, checkpoints to fall back on, a hang found soon, no end of patience with crashes.
SPEC = (
    "slurm.signal_lead_s=110",
    "checkpoint.every_steps=5",
    "launch.hang_timeout_s=10",
    "launch.max_crashes=9",
)
RANKS = 3
SUSPENDED_S = 15
AWAY_S = 20.0
_TIMEOUT_S = 240


@dataclass
class Victim:
    """A run of the campaign; after a resume it has another job."""

    kit: Kit
    paced: Paced
    dice: random.Random

    @property
    def run(self) -> Run:
        return self.paced.run

    def resume(self) -> None:
        """Go on as a user does."""
        self.paced = Paced(self.kit.resume(self.run), self.paced.pace)

    def pace(self, seconds_per_step: float) -> None:
        """Have the run crawl at this pace from now on."""
        self.paced.pace.write_text(str(seconds_per_step))

    def attempt(self) -> int:
        """The number of the newest attempt."""
        return newest_attempt(self.run.dir)

    def wait_for_another(self, attempt: int) -> None:
        """Wait until there is a newer attempt."""
        reached = f"an attempt after {attempt} of {self.run.dir.path}"
        self.run.cluster.wait_for(lambda: self.attempt() > attempt, reached, _TIMEOUT_S)


Harm = Callable[[Victim], None]


def _preempt(victim: Victim) -> None:
    harm_slurm.preempt(victim.run)


def _time_limit(victim: Victim) -> None:
    harm_slurm.reach_time_limit(victim.run)


def _requeue(victim: Victim) -> None:
    before = harm_slurm.restarts(victim.run)
    harm_slurm.requeue(victim.run)
    harm_slurm.wait_for_restarts(victim.run, before + 1)


def _scancel(victim: Victim) -> None:
    harm_slurm.scancel(victim.run)


def _warn_a_rank(victim: Victim) -> None:
    rank, before = _some_rank(victim), harm_slurm.restarts(victim.run)
    harm_processes.send([rank], victim.dice.choice(harm_processes.STOPS))
    harm_slurm.wait_for_restarts(victim.run, before + 1)


def _storm(victim: Victim) -> None:
    _some_rank(victim)
    before = victim.attempt()
    harm_processes.storm(victim.run, seed=victim.dice.randrange(2**32))
    victim.wait_for_another(before)


def _kill(role: str) -> Harm:
    def kill(victim: Victim) -> None:
        _some_rank(victim)
        before = victim.attempt()
        harm_processes.kill(victim.run, role)
        victim.wait_for_another(before)

    return kill


def _kill_the_shell(victim: Victim) -> None:
    _some_rank(victim)
    harm_processes.kill(victim.run, "shell")
    victim.run.wait("FAILED")
    victim.resume()


def _stop_a_rank(victim: Victim) -> None:
    rank, before = _some_rank(victim), victim.attempt()
    harm_processes.send([rank], signal.SIGSTOP)
    victim.wait_for_another(before)


def _suspend(victim: Victim) -> None:
    _some_rank(victim)
    harm_processes.suspend(victim.run)
    time.sleep(SUSPENDED_S)
    harm_processes.resume(victim.run)


def _damage(victim: Victim) -> None:
    harm_storage.pause(victim.run)
    harm_storage.damage_newest(victim.run.dir, victim.dice.choice(harm_storage.DAMAGES))
    harm_storage.release(victim.run)


def _power_off(victim: Victim) -> None:
    _some_rank(victim)
    before = victim.attempt()
    node = harm_nodes.lose_power(victim.run, victim.dice.randrange(RANKS))
    victim.wait_for_another(before)
    victim.run.cluster.plug(node)
    victim.run.cluster.power_on(node)


def _unplug(victim: Victim) -> None:
    _some_rank(victim)
    before = victim.attempt()
    node = harm_nodes.cut_off(victim.run, victim.dice.randrange(RANKS))
    victim.wait_for_another(before)
    harm_nodes.reconnect(victim.run, node)


def _controller_away(victim: Victim) -> None:
    _some_rank(victim)
    before = victim.attempt()
    harm_slurm.begin_preemption(victim.run)
    warned = victim.run.dir.attempt(before).stop.exists
    victim.run.cluster.wait_for(warned, "an agent was warned", _TIMEOUT_S)
    with harm_nodes.controller_away(victim.run, AWAY_S):
        pass
    victim.wait_for_another(before)


def _some_rank(victim: Victim) -> harm_processes.Process:
    """A rank that trains; waits until all do."""

    def all_ranks() -> list[harm_processes.Process]:
        ranks = harm_processes.of_role(victim.run, "rank")
        return ranks if len(ranks) == RANKS else []

    ranks = victim.run.cluster.wait_for(all_ranks, "all ranks", _TIMEOUT_S)
    return victim.dice.choice(ranks)


HARMS: dict[str, Harm] = {
    "preempt": _preempt,
    "time_limit": _time_limit,
    "requeue": _requeue,
    "warn_a_rank": _warn_a_rank,
    "storm": _storm,
    "kill_rank": _kill("rank"),
    "kill_torchrun": _kill("torchrun"),
    "kill_agent": _kill("agent"),
    "kill_srun": _kill("srun"),
    "kill_shell": _kill_the_shell,
    "stop_rank": _stop_a_rank,
    "suspend": _suspend,
    "damage": _damage,
    "power_off": _power_off,
    "unplug": _unplug,
    "controller_away": _controller_away,
    "scancel": _scancel,
}
# After these nothing more can come.
FINAL = ("scancel",)
