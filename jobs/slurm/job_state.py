"""Slurm's job states: which of them wait, hold nodes, are ending, or have ended.

Slurm prints one word for a job: the first of its flags, such as COMPLETING, else its base state. A
word in none of these sets is of a later Slurm: such a job counts neither as ended nor as running.
Source: slurm_protocol_defs.c, job_state_string, of Slurm 22.05, 24.11 and 26.05. Standard library
only.
"""

# It has no nodes. EXPEDITING: of --requeue=expedite, it starts again before all other jobs. The
# last three wait until `scontrol release`.
WAITING = frozenset(
    {"EXPEDITING", "PENDING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
ON_NODES = frozenset({"CONFIGURING", "RUNNING", "SUSPENDED"})
# Slurm has taken the allocation away: the job ends for good, or waits after that.
ENDING = frozenset({"COMPLETING", "STAGE_OUT"})
ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"),
    }
)
# Flags of a job that runs or waits all the same.
_SAME_AS = {
    "REQUEUE_FED": "REQUEUED",
    "RESIZING": "RUNNING",
    "SIGNALING": "RUNNING",
    "STOPPED": "SUSPENDED",  # by SIGSTOP
}


def read(word: str) -> str:
    """Return the state that a word of squeue, scontrol or sacct stands for; an unknown one as is.

    Sacct also prints `CANCELLED by 1000`.
    """
    first = (word.split() or [""])[0].upper()
    return _SAME_AS.get(first, first)


def has_no_allocation(state: str) -> bool:
    """Return whether a job has no nodes: it waits, has ended, or Slurm is taking them away."""
    return state in ENDING | WAITING | ENDED


def is_cancelled(state: str, reason: str) -> bool:
    """Return whether a job that was not requeued was cancelled.

    While a cancelled job ends it is COMPLETING with Reason None; a time limit has its own reason.
    """
    return state == "CANCELLED" or (state, reason) == ("COMPLETING", "None")
