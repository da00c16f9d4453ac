"""The sites of the campaign: the settings of Slurm, and how a run is submitted there."""

from dataclasses import dataclass

from ..conf import Preemption
from ..faults import harm_nodes, harm_slurm

# Slurm's default: a save and a decision must fit into it, also on a busy machine.
PATIENCE = "KillWait=30"


@dataclass(frozen=True)
class Site:
    """One site. It adds `causes` and `step_loss` to those of the harms."""

    rows: tuple[int, ...] = ()
    extra_conf: str = ""
    preemption: Preemption = Preemption()
    overrides: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # of plain sbatch; if empty, `jobs submit` submits the run
    has_successor: bool = False
    is_narrow: bool = False  # other harms must stay in the allocation
    is_range: bool = False  # the number of nodes may change, and then the bits
    lead: str = "preempt"  # the harm that the row of the site is about
    causes: tuple[str, ...] = ()


SITES: dict[str, Site] = {
    "plain": Site(),
    # Without an answer of Slurm the signal looks like the time limit's.
    "own_signal": Site(rows=(3,), extra_conf=harm_slurm.OWN_SIGNAL, causes=("time_limit",)),
    # Slurm has requeued the job by then, and no longer shows the preemption. The batch shell may
    # die before it records the attempt.
    "no_grace": Site(
        rows=(4,), overrides=("slurm.partition=nograce",), causes=("requeued", "lost")
    ),
    "cancels": Site(
        rows=(5,), preemption=Preemption("CANCEL", 0), has_successor=True, is_narrow=True
    ),
    "no_requeue": Site(
        rows=(13,),
        extra_conf="JobRequeue=0",
        options=("--no-requeue", "--nodes=3", "--time=10"),
        has_successor=True,
        is_narrow=True,
    ),
    # All four nodes: a requeue waits for one that is away.
    "spares": Site(
        rows=(45,), overrides=("slurm.spare_nodes=1",), is_narrow=True, lead="power_off"
    ),
    "range": Site(
        rows=(48,),
        overrides=("slurm.nodes=2-3", "train.global_batch_size=48"),
        lead="power_off",
        is_range=True,
    ),
    # One node is excluded, so that no spare node is left.
    "bad_node": Site(
        rows=(25,), overrides=harm_nodes.faulty("wrong"), is_narrow=True, causes=("node",)
    ),
}
