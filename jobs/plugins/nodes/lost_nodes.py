"""The loss of a node in an attempt: srun ends where a node is lost."""

import math
import time

from ...attempt import srun_step
from ...contract.rundir import RunDir
from ...runs import fact_reader
from ...runs.facts import AttemptFacts

# How often the nodes are looked at, and in how many looks in a row a lost one must be silent.
LOOK_INTERVAL_S = 5.0
SILENT_LOOKS = 3


class SilentNodes:
    """The nodes of an attempt that do not answer, where the run can go on without one here.

    Slurm marks a lost node DOWN after SlurmdTimeout (300 s by default), and a watchdog of the ranks
    needs longer. A refused connection does not count: only slurmd is away.
    """

    def __init__(self, run_dir: RunDir, attempt: int, can_lose: int) -> None:
        self._run_dir, self._attempt, self._can_lose = run_dir, attempt, can_lose
        self._next_look = time.monotonic() + LOOK_INTERVAL_S if can_lose else math.inf
        self._silent_looks: dict[str, int] = {}
        self._facts: AttemptFacts | None = None

    def look(self) -> list[str]:
        """Return the nodes that were silent in the last SILENT_LOOKS looks. Raises: OSError.

        None where too few others are left: a network that is cut for a moment may come back.
        """
        now = time.monotonic()
        if now < self._next_look:
            return []
        self._next_look = now + LOOK_INTERVAL_S
        if self._facts is None or None in self._facts.of_nodes.agents:  # it has their addresses
            self._facts = fact_reader.read(self._run_dir, self._attempt)
        nodes = self._facts.nodes
        silent = srun_step.unreachable_nodes(self._facts, nodes, is_refusal_enough=True)
        self._silent_looks = {node: self._silent_looks.get(node, 0) + 1 for node in silent}
        lost = [node for node, looks in self._silent_looks.items() if looks >= SILENT_LOOKS]
        return lost if len(lost) <= self._can_lose else []
