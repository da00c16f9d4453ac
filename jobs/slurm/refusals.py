"""The key of a spec that a refusal of sbatch may be about; Slurm's own words come before it."""

import re

# Slurm's messages, the key, and what shows what the site has. The first that fits decides: the name
# of one resource stands before a second message about the whole configuration. Source:
# slurm_errno.c and the strings of slurmctld, of Slurm 22.05 and 26.05.
_MINE = "sacctmgr show associations user=$USER"
_HINTS = {
    "accounting/QOS policy|[Ii]nvalid qos": "qos: sacctmgr show qos lists the limits, "
    f"{_MINE} yours",
    "[Mm]emory (specification|required)": "mem: sinfo -o '%P %m' lists the MiB of a node",
    "CPU count|[Mm]ore processors": "cpus_per_task: sinfo -o '%P %c' lists cores of a node",
    "generic resource|GRES|TRES": "gpus_per_node: sinfo -o '%P %G' lists the GPUs of a node",
    "[Tt]ime limit": "time: sinfo -o '%P %l' lists the time limits of the partitions",
    "[Ii]nvalid account": f"account: {_MINE} format=Account,Partition,QOS lists yours",
    "[Pp]artition": "partition: sinfo -s lists the partitions",
    "[Nn]ode (count|configuration)|[Ff]eature": "nodes or slurm.constraint: sinfo -o '%P %D %f' "
    "lists nodes and features",
}


def hint(message: str) -> str:
    """Return `slurm.KEY: COMMAND lists what the site has`; "" for a message without a row."""
    rows = (f"slurm.{shows}" for text, shows in _HINTS.items() if re.search(text, message))
    return next(rows, "")
