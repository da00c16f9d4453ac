"""The Slurm of this host: whether it is there, its settings, partitions and nodes.

If it does not answer, its defaults count. Standard library only.
"""

import contextlib
import os
import re
import shutil
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..contract import records
from ..contract.records.queued import SlurmSite
from ..contract.rundir import RunDir
from . import ask

ANSWER_TIMEOUT_S = 3.0
# Of a host that belongs to a cluster; the last with a fetched configuration (sackd, Slurm 23.11).
CLUSTER_PATHS = tuple(map(Path, ("/etc/slurm", "/etc/slurm-llnl", "/run/munge", "/run/slurm")))


def is_installed() -> bool:
    """Return whether this host has Slurm's commands."""
    return shutil.which("sbatch") is not None


def unloaded_reason(
    environ: Mapping[str, str] = os.environ, paths: Sequence[Path] = CLUSTER_PATHS
) -> str | None:
    """Return why this looks like a login node whose Slurm is not loaded; None if it does not.

    On many sites `module load` puts sbatch on PATH. Users must not train on such a login node.
    """
    folders = filter(None, environ.get("MODULEPATH", "").split(":"))
    reasons = (
        *(f"{name} is set" for name in ("SLURM_CONF", "SLURM_CONF_SERVER") if name in environ),
        *(f"{path} exists" for path in paths if path.exists()),
        *(f"{folder} has a slurm module" for folder in folders if Path(folder, "slurm").exists()),
    )
    return next(iter(reasons), None)


def settings(limit_s: float | None = None) -> Mapping[str, str]:
    """Return the values of `scontrol show config` by name; none if Slurm does not answer in time.

    Time: when slurmctld answered, in seconds since the epoch, by its clock.
    """
    text = ask.output(["scontrol", "show", "config"], limit_s).replace(" data as of ", "\nTime=", 1)
    lines = (line.partition("=") for line in text.splitlines())
    values = {name.strip(): value.strip() for name, equals, value in lines if equals}
    return values if "PreemptType" in values else {}


def record_settings(run_dir: RunDir) -> SlurmSite:
    """Return the settings for the jobs of a run; writes site.json if Slurm answered."""
    values, usual = settings(), SlurmSite()
    if not values:
        return usual
    known = SlurmSite(
        kill_wait_s=number(values.get("KillWait", ""), usual.kill_wait_s),
        slurmd_port=number(values.get("SlurmdPort", ""), usual.slurmd_port),
        cluster=values.get("ClusterName") or None,
    )
    records.write(run_dir.site, known)
    return known


def requeued_codes() -> frozenset[int]:
    """Return the exit codes of jobs that this Slurm requeues or holds: `1,5-9` are 1 and 5 to 9.

    Source: slurm.conf(5), RequeueExit, RequeueExitHold.
    """
    values = settings()
    text = ",".join(values.get(name, "") for name in ("RequeueExit", "RequeueExitHold"))
    return frozenset(
        code
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", text)
        for code in range(int(first), int(last or first) + 1)
    )


def show_partitions(*names: str) -> list[dict[str, str]]:
    """Return what scontrol shows of one partition or of all; none if it does not answer."""
    blocks = ask.output(["scontrol", "--all", "show", "partition", *names]).split("PartitionName=")
    return [dict(re.findall(r"(\w+)=(\S+)", f"PartitionName={each}")) for each in blocks[1:]]


def show_accounting(*words: str) -> str:
    """Return what `sacctmgr show` prints, with a bar between two fields; "" without an answer."""
    return ask.output(["sacctmgr", "--noheader", "--parsable2", "show", *words])


def number(text: str, default: int = 0) -> int:
    """Return the number at the start of a value, such as 30 of `30 sec`."""
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else default


def cluster_name() -> str:
    """Return the cluster's name inside a job; `slurm` if Slurm does not set it."""
    return os.environ.get("SLURM_CLUSTER_NAME") or "slurm"


def node_addresses(nodes: Iterable[str]) -> dict[str, str]:
    """Return the address, or the host name, at which Slurm reaches each node; see `of_nodes`.

    It is the node's own name where the site has set none. Source: slurm.conf(5), NodeAddr.
    """
    return of_nodes(nodes, r"(?:.* )?NodeAddr=(\S+)")


def of_nodes(nodes: Iterable[str], pattern: str) -> dict[str, str]:
    """Return what a pattern at the start of a line of `scontrol show node` finds of each node.

    Empty if Slurm does not answer.
    """
    text = ask.output(["scontrol", "show", "node", ",".join(nodes)])
    blocks = re.split(r"^NodeName=(\S+)", text, flags=re.MULTILINE)
    values = {
        name: re.search(rf"^   {pattern}", block, re.MULTILINE)
        for name, block in zip(blocks[1::2], blocks[2::2], strict=True)
    }
    return {name: value[1] for name, value in values.items() if value is not None}


def expand_hostlist(listed: str) -> list[str]:
    """Return the node names in Slurm's host list, such as n[1-3,07] or r[1-2]n[1-4].

    Source: scontrol(1), show hostnames, which asks no daemon.
    """
    names = ask.output(["scontrol", "show", "hostnames", listed]).split() if "[" in listed else []
    return names or (listed.split(",") if listed else [])


def is_answering(node: str, port: int, is_refusal_enough: bool = False) -> bool:
    """Return whether a node's slurmd accepts connections; True if the name is not resolved here.

    is_refusal_enough: a refused connection counts, too: it shows that the node is up.
    """
    try:
        with socket.create_connection((node, port), ANSWER_TIMEOUT_S):
            return True
    except socket.gaierror:
        return True
    except ConnectionRefusedError:
        # slurmd listens on IPv4 only (measured: 22.05), unless the site has set EnableIPv6. Source:
        # slurm.conf(5), CommunicationParameters.
        with contextlib.suppress(socket.gaierror):  # without an address of IPv4
            return is_refusal_enough or not socket.getaddrinfo(node, None, socket.AF_INET)
        return True
    except OSError:
        return False
