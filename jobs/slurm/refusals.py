"""Names the keys of a spec that a message of Slurm is about: of a refused job, and of a limit.

Slurm names neither the key nor always the option: "Requested node configuration is not available".
A message without a row is shown in Slurm's own words alone, such as one of the site's own plugin.
Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..problems import Problem, format_value
from ..spec import Slurm
from . import pending

_SIZE = ("nodes", "gpus_per_node", "cpus_per_task", "mem")
# Slurm's messages, and the keys that can cause each. The first that fits decides: a message about
# one resource comes before a second one about the whole configuration. Source: slurm_errno.c and
# the strings of slurmctld, of Slurm 22.05 and 26.05.
_CAUSES: tuple[tuple[str, tuple[str, ...]], ...] = (
    # slurmctld has too many jobs, or the user has: no key of the job.
    (r"MaxJobCount limit reached", ()),
    (
        r"(?<!Setting )CPU count (per node|specification)|Socket, core|More processors"
        r"|threads per core|more tasks than available processors|Task count specification",
        ("cpus_per_task",),
    ),
    (r"[Mm]emory (specification|required)|--mem(?![-\w])|SLURM_MEM_PER_", ("mem", "cpus_per_task")),
    (r"[Ff]eature (requirements|specification)|--constraint", ("constraint",)),
    (r"[Gg]eneric resource|GRES|TRES|--gpus-per-node|RestrictedCoresPerGPU", ("gpus_per_node",)),
    (r"Invalid node name", ("exclude",)),
    (r"Requested nodes not in this partition", ("exclude", "partition")),
    (r"[Nn]ode count|[Jj]ob size specification", ("nodes",)),
    (r"account/partition combination", ("account", "partition")),
    (r"[Ii]nvalid account\b|unknown association|[Aa]ccount has breached", ("account", "qos")),
    (r"[Ii]nvalid (qos|QOS)|relative QOS", ("qos",)),
    (
        r"[Ii]nvalid partition|[Pp]artition (in DOWN|not available)|system default partition"
        r"|permitted to use this partition|[Rr]equired partition|partition configuration"
        r"|partition is set in the association",
        ("partition",),
    ),
    (r"[Rr]equested time limit|[Tt]ime limit specification|Invalid time specified", ("time",)),
    # It names every kind of limit, whichever was exceeded.
    (r"accounting/QOS policy", ("account", "qos", *_SIZE, "time")),
    (
        r"node configuration is not available|[Tt]opology|[Rr]equired node",
        (*_SIZE, "constraint", "exclude", "partition"),
    ),
)
# Slurm's own verdict, behind all that a site's plugins and wrappers print: of sbatch, and of
# sbatch --test-only.
_VERDICT = re.compile(r"(?:Batch job submission failed|allocation failure): (.+)")
# Verdicts that leave open what the cause is: a line before them may name it.
_OPEN = re.compile(r"node configuration is not available|accounting/QOS policy")
# Options that choose resources: a message about the whole configuration may be about each.
_RESOURCES = {
    *("gres", "gpus", "gpus_per_task", "gpus_per_socket", "cpus_per_gpu", "mem_per_gpu", "tmp"),
    *("mem_per_cpu", "mincpus", "nodelist", "nodefile", "sockets_per_node", "cores_per_socket"),
    *("threads_per_core", "extra_node_info", "ntasks", "ntasks_per_core", "core_spec", "switches"),
    *("contiguous", "exclusive", "gres_flags"),
}
# Options whose message has another word than their name.
_WORDS = {"nodelist": "node name", "tmp": "temporary disk"}
# Words that are options, too: before most messages, and of options that sbatch takes one of.
_NO_OPTIONS = re.compile("Batch job submission failed|mutually exclusive")
# The command that shows what a site has for a key.
HINTS = {
    "nodes": "sinfo --summarize lists the number of nodes",
    "cpus_per_task": "sinfo --format='%P %c' lists the cores of a node",
    "mem": "sinfo --format='%P %m' lists the memory of a node in MiB; without slurm.mem it is "
    "DefMemPerCPU of scontrol show config for each core",
    "gpus_per_node": "sinfo --format='%P %G' lists the GPUs of a node",
    "exclude": "sinfo --Node lists the names of the nodes",
    "constraint": "sinfo --format='%P %f' lists the features of nodes",
    "time": "sinfo --format='%P %l' lists the time limits of the partitions",
    "partition": "scontrol show partition lists the partitions, and who may use each",
    "account": "sacctmgr show associations user=$USER format=Account,Partition,QOS,GrpTRES,MaxJobs "
    "lists your accounts",
    "qos": "sacctmgr show qos format=Name,MaxWall,MaxTRESPU,MaxJobsPU,MaxSubmitPU,GrpTRES lists "
    "the limits",
}
# Keys that a job has even where the spec does not set them: the site's defaults.
_WITH_DEFAULTS = ("mem", "partition", "account", "qos")


def problems(message: str, requested: Slurm) -> list[Problem]:
    """Return a problem for each key of the spec that may be the cause of Slurm's message.

    message: what sbatch printed, without its command line, in which options stand, too.
    Empty for a message that is not known here.
    """
    message = _verdict(message)
    return [*_keys(message, requested), *_options(message, requested)]


def keys_of(message: str) -> tuple[str, ...]:
    """Return the keys of the section slurm that a message is about; () for one without a row.

    The name of a limit, which sbatch prints on a line of its own, comes before all else.
    """
    message = _verdict(message)
    for name in re.findall(r"\b(?:Assoc|QOS|Max)[A-Z]\w+", message):
        if keys := pending.keys_of(name):
            return keys
    return next((names for pattern, names in _CAUSES if re.search(pattern, message)), ())


def _verdict(message: str) -> str:
    """Return Slurm's verdict where it has a cause of its own, else the whole message.

    The lines of a site around it may be about anything: "--gpus-per-node is not set".
    """
    verdicts = _VERDICT.findall(message)
    is_known = verdicts and any(re.search(pattern, verdicts[-1]) for pattern, _ in _CAUSES)
    return verdicts[-1] if is_known and not _OPEN.search(verdicts[-1]) else message


def _keys(message: str, requested: Slurm) -> Iterator[Problem]:
    """Keys that have their default value are left out, unless the site fills them in alone."""
    names = keys_of(message)
    is_set = {name for name in names if getattr(requested, name) != getattr(Slurm(), name)}
    for name in names:
        value = getattr(requested, name)
        if name in is_set:
            yield Problem(("slurm", name), _perhaps(message, format_value(value)), HINTS[name])
        elif name in _WITH_DEFAULTS and (
            not is_set or name == names[0] or (name == "mem" and "cpus_per_task" in is_set)
        ):
            what = _perhaps(message, "the site's default: the spec does not set it")
            yield Problem(("slurm", name), what, HINTS[name])


def _perhaps(message: str, value: str) -> str:
    limits = re.findall(r"\b(?:Assoc|QOS|Max)[A-Z]\w+", message)
    known = next((name for name in limits if pending.keys_of(name)), None)
    because = "" if known is None else f" ({pending.explain(known)})"
    return f"Slurm refuses the job{because}, perhaps for {value}"


def _options(message: str, requested: Slurm) -> Iterator[Problem]:
    """Yield options that the message names: `--licenses`, or as a word, such as "license"."""
    is_whole, others = {*_SIZE} <= {*keys_of(message)}, _NO_OPTIONS.sub("", message)
    for name in requested.sbatch_args:
        word = _WORDS.get(name, name.removesuffix("s"))
        is_resource = is_whole and name.replace("-", "_") in _RESOURCES
        if is_resource or re.search(rf"(?i)\b{re.escape(word)}", others):
            what = f"Slurm refuses the job, perhaps for {format_value(requested.sbatch_args[name])}"
            yield Problem(("slurm", "sbatch_args", name), what, "man sbatch lists the options")
