"""The parameters of the simulation, each with its source."""

from dataclasses import dataclass

from slurm_job_kit.jobs.attempt.srun_step import END_LIMIT_S

DAY_S = 86400.0


@dataclass(frozen=True)
class Costs:
    """What each part of an attempt takes, in seconds.

    Those up to `save_commit_s` depend on the machine and the model; the defaults are round numbers
    of the order measured for two ranks on two cores. docs/scaling.md has the measurement.
    """

    start_s: float = 10.0  # opening of an attempt in a new start of the job -> first step
    retry_s: float = 4.0  # the same in the allocation of the attempt before
    crash_s: float = 1.0  # a rank dies -> the attempt is closed
    stop_s: float = 2.0  # a warning -> the checkpoint is committed and the attempt closed
    preflight_s: float = 10.0  # opening -> a bad node failed the preflight, the attempt is closed
    save_every_s: float = 60.0  # time between two checkpoints; README.md, "loses at most"
    save_stall_s: float = 0.1  # the ranks wait for each save
    save_commit_s: float = 1.0  # a checkpoint counts so long after its step
    # `watch` ends srun so long after the first agent failed; a lost node sends no end.
    # Source: jobs/attempt/srun_step.py.
    node_s: float = float(END_LIMIT_S)
    # A requeued job waits until its credential has expired, and one second more.
    # Source: slurm.conf(5), AuthInfo cred_expire (120 s); slurmctld/job_mgr.c.
    requeue_s: float = 121.0
    slurmd_timeout_s: float = 300.0  # Slurm marks a silent node DOWN. Source: slurm.conf(5)


@dataclass(frozen=True)
class Rates:
    """How often what fails.

    `per_node_day`: Llama 3's 419 unexpected interruptions in 54 days on 16,384 GPUs, 8 per node,
    are 3.79 per 1,000 node-days. Source: "The Llama 3 Herd of Models" (arXiv 2407.21783). Meta's
    two research clusters had 6.50 and 2.34. Source: "Revisiting Reliability in Large-Scale Machine
    Learning Research Clusters" (arXiv 2410.21680). The figures of both were read in texts that
    quote them, not in the papers.

    The shares are those of the Llama 3 report: 58.7 % GPUs with their memory, 8.4 % network
    switches and cables; 78 % were hardware, so 22 % are taken for crashes of the program. What is
    left of the hardware is taken for lost nodes.

    Everything below `share_crash` is an assumption without a published source.
    """

    per_node_day: float = 419 / (54 * 2048)
    share_gpu: float = 0.587
    share_network: float = 0.084
    share_crash: float = 0.22
    stays_bad: float = 0.5  # of the nodes with a failed GPU: it fails again until it is repaired
    is_hidden: float = 0.1  # of these: the preflight does not find it
    again_s: float = 600.0  # mean time until a hidden bad node fails again
    repair_s: float = DAY_S  # a lost or bad node returns
    cut_nodes: int = 32  # nodes behind one switch
    cut_s: float = 600.0  # mean time until the switch works again
    preempted_s: float = 3600.0  # how long the other job keeps the nodes
    human_s: float = 4 * 3600.0  # a user sees that a run was held, and resumes it

    @property
    def share_node(self) -> float:
        return 1 - self.share_gpu - self.share_network - self.share_crash


# Of Meta's two research clusters, for `per_node_day`.
RSC_1 = 6.50e-3
RSC_2 = 2.34e-3
