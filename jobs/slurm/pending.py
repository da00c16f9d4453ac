"""Explains why Slurm lets a job wait: each reason of squeue in one plain line.

Source: https://slurm.schedmd.com/job_reason_codes.html; slurm_protocol_defs.c,
job_state_reason_string.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from . import duration

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
    # Since 22.05.
    "Constraints": "the nodes that have what it asks for are not available now",
    "ReservationInvalid": "its reservation does not exist or is not for you: it never starts, "
    "submit it without",
    "MaxPoweredUpNodes": "as many nodes are powered up as the site allows",
    "MpiPortsBusy": "the network ports that it needs are in use",
    "NvidiaImexChannels": "no IMEX channel (NVLink between nodes) is free",
    "RaisedSignal": "it ended by a signal",
    # Of texts that stand in place of a name: see _TEXTS.
    "LaunchFailed": "Slurm could not start it on a node and holds it: `scontrol release` frees it",
    "UserEnvFailed": "Slurm could not read the environment of your login shell on the node and "
    "holds it: `scontrol release` frees it",
    "RequeuedHeld": "it was requeued and is held by Slurm: `scontrol release` frees it",
    "GroupNotAllowed": "none of your groups may use its partition: it never starts as it is",
    "Topology": "no free nodes lie in the network as it needs them",
}
# The keys of the section slurm that a reason is about; sbatch_args.X: an option.
_KEYS: dict[str, tuple[str, ...]] = {
    "PartitionNodeLimit": ("nodes", "partition"),
    "PartitionTimeLimit": ("time", "partition"),
    "PartitionConfig": ("partition",),
    "PartitionDown": ("partition",),
    "PartitionInactive": ("partition",),
    "GroupNotAllowed": ("partition",),
    "Topology": ("nodes", "constraint"),
    "ReqNodeNotAvail": ("exclude", "partition"),
    "BadConstraints": ("constraint", "nodes", "gpus_per_node", "cpus_per_task", "mem"),
    "Constraints": ("constraint",),
    "MaxMemPerLimit": ("mem", "cpus_per_task"),
    "InvalidAccount": ("account",),
    "InvalidQOS": ("qos",),
    "AccountNotAllowed": ("account", "partition"),
    "QOSNotAllowed": ("qos", "partition", "account"),
    "QOSUsageThreshold": ("qos", "account"),
    "AccountingPolicy": ("account", "qos"),
    "AssociationJobLimit": ("account",),
    "AssociationResourceLimit": ("account",),
    "AssociationTimeLimit": ("account",),
    "QOSJobLimit": ("qos",),
    "QOSResourceLimit": ("qos",),
    "QOSTimeLimit": ("qos",),
    "DependencyNeverSatisfied": ("sbatch_args.dependency",),
    "Licenses": ("sbatch_args.licenses",),
    "Reservation": ("sbatch_args.reservation",),
    "ReservationDeleted": ("sbatch_args.reservation",),
    "ReservationInvalid": ("sbatch_args.reservation",),
    "BeginTime": ("sbatch_args.begin",),
    "DeadLine": ("time", "sbatch_args.deadline"),
    "TimeLimit": ("time",),
    "OutOfMemory": ("mem",),
}
_LIMIT_KEYS: dict[str, tuple[str, ...]] = {
    "Cpu": ("cpus_per_task", "nodes"),
    "Mem": ("mem", "nodes"),
    "Node": ("nodes",),
    "GRES": ("gpus_per_node", "nodes"),
    "Billing": ("cpus_per_task", "mem", "gpus_per_node", "nodes"),
    "License": ("sbatch_args.licenses",),
    "Wall": ("time",),
}
# With these, too, it waits for ever, unless the site changes its settings.
_NEVER = {
    *("PartitionTimeLimit", "PartitionConfig", "MaxMemPerLimit", "DeadLine"),
    *("InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed"),
}
# Until an administrator changes something.
_OF_THE_SITE = {"JobHeldAdmin", "PartitionDown", "PartitionInactive"}
# What squeue prints in place of a reason's name, and the name whose line fits; scontrol prints
# underscores for blanks. Source: the strings of slurmctld in state_desc, of Slurm 22.05 and 26.05.
_TEXTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (r"launch failed requeued held", "LaunchFailed"),
        (r"launch failure limit exceeded requeued held", "JobHoldMaxRequeue"),
        (r"user env retrieval failed requeued held", "UserEnvFailed"),
        (r"job requeued in (held|special exit) state", "RequeuedHeld"),
        (r"nodes required for job are down, drained.* or reserved for jobs", "ReqNodeNotAvail"),
        (r"reservation .+ is invalid", "ReservationInvalid"),
        (r"reservation .+ was deleted", "ReservationDeleted"),
        (r"uid \d+ not in group permitted to use this partition", "GroupNotAllowed"),
        # Of the network's topology, since 26.05. Source: slurm_errno.c, ESLURM_TOPO_...
        (r"required nodes (lack available resources|do not fit topology)", "Topology"),
        (r"no suitable topology unit|insufficient resources in topology unit", "Topology"),
        (r"weight-based selection could not satisfy|no available nodes in topology", "Topology"),
        (r"exceeded maximum node limit during topology allocation", "Topology"),
    )
)
# The names of the limits of accounts and QOS are made of parts, such as QOSMaxGRESMinutesPerJob.
_LIMIT = re.compile(
    r"(?P<owner>Assoc|QOS|)(?P<bound>Grp|Max|Min)"
    r"(?P<what>Cpu|CPU|Memory|Mem|Node|GRES|License|Energy|Billing|BB|Unknown"
    r"|Jobs|SubmitJobs?|WallDuration|Wall)"
    r"(?P<time>RunMinutes|RunMins|Minutes|)(?:Per(?P<each>Job|Node|User|Account))?"
    r"(?:Limit|NotSatisfied)?"
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
_TRES = {
    "Cpu": "cpu",
    "CPU": "cpu",
    "Mem": "mem",
    "Memory": "mem",
    "Node": "node",
    "GRES": "gres/",
    "License": "license/",
    "Billing": "billing",
    "Energy": "energy",
}
_JOBS = {"User": "jobs of yours", "Account": "jobs of your account"}
_WITH_DETAIL = re.compile(r"(\w+)(?:[,:][ _]?(.+)|\((.+)\))")


class Wait(Enum):
    """Whether the wait of a pending job ends by itself."""

    WILL_END = auto()
    UNTIL_RELEASED = auto()  # by the user, with `scontrol release`
    UNTIL_SITE_ACTS = auto()
    NEVER_ENDS = auto()


def wait_of(reason: str) -> Wait:
    """Return whether the wait for this reason ends by itself; reasons that are unknown may."""
    reason = _name_of(reason)
    text, name = explain(reason), re.match(r"\(?(\w*)", reason)
    if "`scontrol release`" in text:
        return Wait.UNTIL_RELEASED
    if name is not None and name[1] in _OF_THE_SITE:
        return Wait.UNTIL_SITE_ACTS
    limit = _limit_of(reason)
    is_budget = limit is not None and (limit["time"] == "Minutes" or limit["what"] == "Wall")
    if limit is not None and limit["bound"] == "Grp" and is_budget:
        return Wait.UNTIL_SITE_ACTS  # it is used up
    is_hopeless = "never starts" in text or (name is not None and name[1] in _NEVER)
    is_hopeless = is_hopeless or (limit is not None and limit["bound"] == "Min")
    return Wait.NEVER_ENDS if is_hopeless else Wait.WILL_END


def keys_of(reason: str) -> tuple[str, ...]:
    """Return the keys of the section slurm that a pending reason is about; () where it has none.

    A limit is also about whose it is: `account`, or `qos`.
    """
    name = re.match(r"\(?(\w*)", _name_of(reason.strip()))
    if name is None:
        return ()
    if name[1] in _KEYS:
        return _KEYS[name[1]]
    limit = _LIMIT.fullmatch(name[1])
    if limit is None:
        return ()
    owner = "account" if limit["owner"] == "Assoc" else "qos"
    if "Job" in limit["what"]:
        return (owner,)
    what = limit["what"].replace("CPU", "Cpu").replace("Memory", "Mem").removesuffix("Duration")
    time = ("time",) if limit["time"] else ()
    return tuple(dict.fromkeys((*_LIMIT_KEYS.get(what, ()), *time, owner)))


@dataclass(frozen=True)
class SharedLimits:
    """What the jobs of an account, of a QOS or of a user may use together, as sacctmgr prints it.

    tres: `cpu=4,gres/gpu=2`; minutes: the same times minutes; jobs: how many; wall: a duration.
    """

    tres: tuple[str, ...] = ()
    minutes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    wall: tuple[str, ...] = ()


def is_node_limit(reason: str) -> bool:
    """Return whether a reason is about the number of nodes that a job asks its partition for.

    Slurm gives it also where too many nodes of the partition are down. Source: squeue(1),
    PartitionNodeLimit.
    """
    return re.match(r"\(?PartitionNodeLimit\b", reason.strip()) is not None


def nodes_in(tres: str) -> int:
    """Return the number of nodes in `cpu=2,mem=100M,node=1`; 0 where it has none."""
    return int(_amounts(tres).get("node", 0))


def is_shared(reason: str) -> bool:
    """Return whether a reason is a limit of several jobs: a job waits for the others.

    But if it exceeds the limit alone, it never starts: see `exceeds_alone`.
    """
    limit = _limit_of(reason)
    return limit is not None and limit["bound"] != "Min" and limit["each"] not in ("Job", "Node")


def exceeds_alone(reason: str, requested: str, time_s: int, limits: SharedLimits) -> bool:
    """Return whether a job exceeds the limit that its reason names by itself.

    requested: its TRES, as scontrol prints them, `cpu=2,mem=100M,node=1`; time_s: its time limit.
    limits: of its account or QOS; one that sets another resource does not matter.
    """
    limit = _limit_of(reason)
    if limit is None or not is_shared(reason):
        return False
    if "Job" in limit["what"]:
        return "0" in limits.jobs
    if limit["what"].startswith("Wall"):
        return any(0 < duration.parse_or_zero(most) < time_s for most in limits.wall)
    kind, minutes = _TRES.get(limit["what"], "?"), time_s / 60 if limit["time"] else 1.0
    wanted = _amounts(requested)
    return any(
        wanted.get(name, 0.0) * minutes > most
        for each in (limits.minutes if limit["time"] else limits.tres)
        for name, most in _amounts(each).items()
        if name == kind or (kind.endswith("/") and name.startswith(kind))
    )


def _limit_of(reason: str) -> re.Match[str] | None:
    name = re.match(r"\(?(\w*)", reason.strip())
    return None if name is None else _LIMIT.fullmatch(name[1])


def _amounts(tres: str) -> dict[str, float]:
    """Return the amount of each resource in `cpu=2,mem=7.5G`; memory in MiB."""
    pairs = re.findall(r"([\w/:.-]+)=(\d+(?:\.\d+)?)([KMGTP]?)", tres)
    units = {"K": 1 / 1024, "M": 1, "": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
    return {name: float(number) * units[unit] for name, number, unit in pairs}


def explain(reason: str) -> str:
    """Return a pending reason as one line that begins in lower case and has no full stop.

    `reason`: as squeue prints it for %r, also with a detail (`ReqNodeNotAvail,
    UnavailableNodes:n1`), which is kept. An unknown one is quoted.
    """
    stripped = " ".join(reason.split())
    if stripped.startswith("(") and stripped.endswith(")"):  # as %R has it
        stripped = stripped[1:-1]
    if known := _explanation(stripped):
        return known
    parts = _WITH_DETAIL.fullmatch(stripped)
    if parts and (known := _explanation(parts[1])):
        return f"{known} ({parts[2] or parts[3]})"
    return f'Slurm gives the reason "{stripped}"' if stripped else _REASONS["None"]


def _name_of(reason: str) -> str:
    """Return the name that a text in place of a name stands for; any other reason as it is."""
    text = reason.removeprefix("(").replace("_", " ")
    return next((name for pattern, name in _TEXTS if pattern.match(text)), reason)


def _explanation(reason: str) -> str | None:
    """Return the line of a reason without a detail; None for an unknown one."""
    reason = _name_of(reason)
    if reason in _REASONS:
        return _REASONS[reason]
    limit = _LIMIT.fullmatch(reason)
    return None if limit is None else _over_limit(**limit.groupdict())


def _over_limit(owner: str, bound: str, what: str, time: str, each: str | None) -> str:
    """Return the line of a limit from its name's parts; `each` is for whom or what it holds."""
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
