"""Explains why Slurm lets a job wait: each reason of squeue in one plain line.

Source: https://slurm.schedmd.com/job_reason_codes.html; slurm_protocol_defs.c,
job_state_reason_string.
"""

from __future__ import annotations

import re
from enum import Enum, auto

_REASONS = {
    "None": "Slurm has not looked at the job yet, or has given no reason",
    "Priority": "jobs with a higher priority are before it",
    "Resources": "the nodes that it asks for are in use by other jobs",
    "Dependency": "it waits for the end of another job",
    "DependencyNeverSatisfied": "the job that it depends on ended in another way than asked for: "
    "it never starts, cancel it",
    "BeginTime": "its earliest start time has not come: the site lets a requeued job wait",
    "SchedDefer": "the site lets the scheduler decide later, and it has not yet",
    "Licenses": "licenses that it asks for are in use",
    "Reservation": "its reservation has not begun, or has no free nodes",
    "ReservationDeleted": "its reservation was deleted: it never starts, submit it without",
    "JobHeldUser": "it is held by Slurm at a user's request: `scontrol release` frees it",
    "JobHeldAdmin": "an administrator holds it in Slurm: ask the site",
    "JobHoldMaxRequeue": "Slurm has requeued it too often and holds it: "
    "`scontrol release` frees it",
    "JobArrayTaskLimit": "as many tasks of its job array run as the array allows at a time",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "NodeDown": "a node that it needs is down",
    "FrontEndDown": "no front-end node is up that could run it",
    "PowerNotAvail": "there is not enough electric power for it now",
    "PowerReserved": "the electric power that it needs is reserved for other jobs",
    "Prolog": "the prolog, a script of the site, is still running on its nodes",
    "Cleaning": "Slurm still cleans up after its last start",
    "BurstBufferResources": "the burst buffer that it asks for is in use",
    "BurstBufferStageIn": "its files are being copied into the burst buffer",
    "BurstBufferOperation": "an operation of its burst buffer failed",
    "PartitionDown": "its partition takes jobs but starts none now (state DOWN)",
    "PartitionInactive": "its partition neither takes nor starts jobs now (state INACTIVE)",
    "PartitionNodeLimit": "it asks for more or fewer nodes than its partition allows, or than are "
    "up there",
    "PartitionTimeLimit": "its time limit is longer than its partition allows",
    "PartitionConfig": "it asks for something that its partition does not allow",
    "BadConstraints": "no node has what it asks for: it never starts as it is",
    "MaxMemPerLimit": "it asks for more memory per CPU or per node than the site allows",
    "InvalidAccount": "its account does not exist or is not allowed",
    "InvalidQOS": "its QOS does not exist or is not allowed",
    "AccountNotAllowed": "its account may not use this partition",
    "QOSNotAllowed": "its QOS may not be used with this partition or account",
    "AccountingPolicy": "a limit of its account or QOS holds it back",
    "QOSUsageThreshold": "its account has used too much for this QOS",
    "AssociationJobLimit": "as many jobs of your account run as it may have",
    "AssociationResourceLimit": "your account uses as many resources as it may",
    "AssociationTimeLimit": "your account has used up its time",
    "QOSJobLimit": "as many jobs of its QOS run as are allowed",
    "QOSResourceLimit": "its QOS uses as many resources as it may",
    "QOSTimeLimit": "its QOS has used up its time",
    "FedJobLock": "the clusters of the federation still agree on which one starts it",
    "BlockMaxError": "too many parts of the IBM Blue Gene system are in error",
    "BlockFreeAction": "parts of the IBM Blue Gene system are being freed",
    "DeadLine": "it can no longer end before its deadline",
    "TimeLimit": "it reached its time limit",
    "InactiveLimit": "it was inactive for longer than the site allows",
    "NonZeroExitCode": "it ended with an exit code other than 0",
    "OutOfMemory": "it ran out of memory",
    "SystemFailure": "Slurm or its file system failed at its start",
    "JobLaunchFailure": "Slurm could not start it on a node",
}
# With these, too, it waits for ever, unless the site changes its settings.
_NEVER = {
    *("PartitionNodeLimit", "PartitionTimeLimit", "PartitionConfig", "MaxMemPerLimit", "DeadLine"),
    *("InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed"),
}
# What squeue prints in place of a reason's name. Source: slurmctld/job_mgr.c, job_scheduler.c.
_TEXTS = {
    "launch failed requeued held": "Slurm could not start it on a node and holds it: "
    "`scontrol release` frees it",
    "job requeued in held state": "it was requeued and is held by Slurm: "
    "`scontrol release` frees it",
    "nodes required for job are down, drained or reserved for jobs in higher priority partitions": (
        _REASONS["ReqNodeNotAvail"]
    ),
}
# The names of the limits of accounts and QOS are made of parts, such as QOSMaxGRESMinutesPerJob.
_LIMIT = re.compile(
    r"(?P<owner>Assoc|QOS|)(?P<bound>Grp|Max|Min)"
    r"(?P<what>Cpu|CPU|Memory|Mem|Node|GRES|License|Energy|Billing|BB|Unknown"
    r"|Jobs|SubmitJobs?|WallDuration|Wall)"
    r"(?P<time>RunMinutes|Minutes|)(?:Per(?P<each>Job|Node|User|Account))?(?:Limit|NotSatisfied)?"
)
_RESOURCES = {
    "Cpu": "CPUs",
    "CPU": "CPUs",
    "Memory": "memory",
    "Mem": "memory",
    "Node": "nodes",
    "GRES": "GPUs or other GRES",
    "License": "licenses",
    "Energy": "energy",
    "Billing": "billing units",
    "BB": "burst buffer",
    "Unknown": "a resource",
    "WallDuration": "time",
    "Wall": "time",
}
_JOBS = {"User": "jobs of yours", "Account": "jobs of your account"}
_WITH_DETAIL = re.compile(r"(\w+)(?:, |: |\()(.+?)\)?")


class Wait(Enum):
    """Whether the wait of a pending job ends by itself."""

    WILL_END = auto()
    UNTIL_RELEASED = auto()
    NEVER_ENDS = auto()


def wait_of(reason: str) -> Wait:
    """Return whether the wait for this reason ends by itself; reasons that are unknown may."""
    text, name = explain(reason), re.match(r"\(?(\w*)", reason)
    if "`scontrol release`" in text:
        return Wait.UNTIL_RELEASED
    is_hopeless = "never starts" in text or (name is not None and name[1] in _NEVER)
    return Wait.NEVER_ENDS if is_hopeless else Wait.WILL_END


def explain(reason: str) -> str:
    """Return a pending reason as one line that begins in lower case and has no full stop.

    `reason`: as squeue prints it for %r, also with a detail (`ReqNodeNotAvail,
    UnavailableNodes:n1`), which is kept. An unknown one is quoted.
    """
    stripped = " ".join(reason.split())
    if stripped.startswith("(") and stripped.endswith(")"):  # as %R has it
        stripped = stripped[1:-1]
    if known := _explained(stripped):
        return known
    parts = _WITH_DETAIL.fullmatch(stripped)
    if parts and (known := _explained(parts[1])):
        return f"{known} ({parts[2]})"
    return f'Slurm gives the reason "{stripped}"' if stripped else _REASONS["None"]


def _explained(reason: str) -> str | None:
    """The line of a reason without a detail; None for an unknown one."""
    if reason in _REASONS:
        return _REASONS[reason]
    # scontrol prints underscores where squeue prints blanks.
    if text := _TEXTS.get(reason.lower().replace("_", " ")):
        return text
    limit = _LIMIT.fullmatch(reason)
    return None if limit is None else _over_limit(**limit.groupdict())


def _over_limit(owner: str, bound: str, what: str, time: str, each: str | None) -> str:
    """The line of a limit, from the parts of its name; `each` is for whom or what it holds."""
    setter = "your account" if owner == "Assoc" else "its QOS"
    jobs = _JOBS.get(each or "", f"jobs of {setter}" if bound == "Grp" else "jobs of yours")
    if "Job" in what:
        verb = "are queued or run" if "Submit" in what else "run"
        return f"as many {jobs} {verb} as {setter} allows"
    thing = _RESOURCES[what] + (" x minutes" if time else "")
    if bound == "Min":
        return f"it asks for less than {setter} requires: {thing}"
    if each in ("Job", "Node"):
        limit = f"more than {setter} allows for one {each.lower()}: {thing}"
        return f"it asks for {limit}; it never starts as it is"
    if time == "Minutes" or what == "Wall":
        return f"the {jobs} have used up what {setter} allows: {thing}"
    return f"together with the running {jobs} it would use more than {setter} allows: {thing}"
