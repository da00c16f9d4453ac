"""Reads the settings of this Slurm that each run needs, and records them in site.json.

If Slurm does not answer, its defaults count. Standard library only.
"""

import re
from collections.abc import Mapping

from ..contract import records
from ..contract.records.queued import SlurmSite
from ..contract.rundir import RunDir
from . import client


def settings() -> Mapping[str, str]:
    """Return the values of `scontrol show config` by name; none if Slurm does not answer."""
    text = client.output(["scontrol", "show", "config"])
    lines = (line.partition("=") for line in text.splitlines())
    values = {name.strip(): value.strip() for name, equals, value in lines if equals}
    return values if "PreemptType" in values else {}


def record(run_dir: RunDir) -> SlurmSite:
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


def show_partitions(*names: str) -> str:
    """Return what scontrol shows of one partition or of all; "" if it does not answer."""
    return client.output(["scontrol", "--all", "show", "partition", *names])


def show_accounting(*words: str) -> str:
    """Return what `sacctmgr show` prints, with a bar between two fields; "" as above."""
    return client.output(["sacctmgr", "--noheader", "--parsable2", "show", *words])


def number(text: str, default: int = 0) -> int:
    """Return the number at the start of a value, such as 30 of `30 sec`."""
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else default
