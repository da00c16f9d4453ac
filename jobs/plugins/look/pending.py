"""Explains why Slurm lets a job wait, for the reasons that people meet most.

Source: https://slurm.schedmd.com/job_reason_codes.html; slurm_protocol_defs.c,
job_state_reason_string.
"""

import re

_REASONS = {
    "None": "Slurm has not looked at the job yet, or has given no reason",
    "Priority": "jobs with a higher priority are before it",
    "Resources": "the nodes that it asks for are in use by other jobs",
    "Dependency": "it waits for the end of another job",
    "BeginTime": "its earliest start time has not come: the site lets a requeued job wait",
    "JobArrayTaskLimit": "as many tasks of its job array run as the array allows at a time",
    "Licenses": "licenses that it asks for are in use",
    "Reservation": "its reservation has not begun, or has no free nodes",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "PartitionNodeLimit": "it asks for more or fewer nodes than its partition allows or has up",
    "PartitionDown": "its partition starts no jobs now: ask the site",
    "JobHeldAdmin": "an administrator holds it in Slurm: ask the site",
    "JobHeldUser": "a user holds it in Slurm: `scontrol release` frees it",
    "JobHoldMaxRequeue": "Slurm has requeued it too often and holds it: `scontrol release` frees "
    "it",
    "DependencyNeverSatisfied": "the job that it depends on ended otherwise: it never starts",
    "BadConstraints": "no node has what it asks for: it never starts",
    "PartitionTimeLimit": "its time limit is longer than its partition allows: it never starts",
    "InvalidAccount": "its account does not exist or is not allowed: it never starts",
    "InvalidQOS": "its QOS does not exist or is not allowed: it never starts",
    "ReservationDeleted": "its reservation was deleted: it never starts",
}
# A detail may follow: `ReqNodeNotAvail, UnavailableNodes:n1`.
_NAME = re.compile(r"\(?(\w+)(?:[,:] ?(.+?))?\)?")
# scontrol prints underscores for the blanks of a text such as `launch failed requeued held`.
_IS_HELD = re.compile(r"requeued[ _]held|held[ _]state")


def explain(reason: str) -> str:
    """Return the sentence of a pending reason, without a full stop; "" for one that has none.

    reason: as squeue prints it for %r, also with a detail, which is kept.
    """
    if _IS_HELD.search(reason):
        return "Slurm holds it: `scontrol release` frees it"
    name = _NAME.fullmatch(reason.strip())
    if name is None or name[1] not in _REASONS:
        return ""
    return _REASONS[name[1]] + (f" ({name[2]})" if name[2] else "")
