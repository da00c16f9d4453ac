"""sbatch's command line for a run, as data: each option is one argument.

Standard library only.
"""

from collections.abc import Sequence
from pathlib import Path

from ..base import installation
from ..contract.rundir import JOB_LOG, RunDir
from ..contract.spec import Spec

SCRIPT = Path(installation.NAME, "slurm/ddp.sbatch")  # in the kit's folder


def sbatch_options(spec: Spec, folder: Path, output: str = JOB_LOG) -> list[str]:
    """Return sbatch's options for a run, one argument each. Source: sbatch(1).

    folder: the working directory of the job, to which `output` is relative.
    """
    slurm = spec.slurm
    nodes = f"{slurm.fewest_job_nodes}-{slurm.job_nodes}"
    values: dict[str, str | int | float | bool | None] = {
        "job-name": spec.name,
        "nodes": nodes if slurm.is_range else slurm.job_nodes,
        # With it Slurm 22.05 gives a job the fewest nodes of a range only (measured).
        "ntasks-per-node": None if slurm.is_range else 1,
        "cpus-per-task": spec.slurm.cpus_per_task,
        # Some sites reject a request for no GPUs.
        "gpus-per-node": spec.slurm.gpus_per_node or None,
        "time": spec.slurm.time,
        "partition": spec.slurm.partition,
        "account": spec.slurm.account,
        "qos": spec.slurm.qos,
        "mem": spec.slurm.mem,
        "constraint": spec.slurm.constraint,
        "exclude": spec.slurm.exclude,
        "signal": f"USR1@{spec.slurm.signal_lead_s}",
        "requeue": True,
        "open-mode": "append",
        "chdir": str(folder),
        "output": output,
        # One mail for a run: measured on Slurm 22.05, a requeue sends none of these types.
        "mail-type": "END,FAIL" if spec.notify.mail else None,
        "mail-user": spec.notify.mail,
        **{key.replace("_", "-"): value for key, value in spec.slurm.sbatch_args.items()},
    }
    # By identity: 0 is a value, as in --nice=0, and equals False.
    chosen = {k: value for k, value in values.items() if value is not None and value is not False}
    return [f"--{key}" if value is True else f"--{key}={value}" for key, value in chosen.items()]


def sbatch_argv(spec: Spec, run_dir: RunDir, script: Path | None = None) -> list[str]:
    """Return the command line that queues a run directory.

    script: the batch script; by default the run directory's frozen one.
    """
    options = sbatch_options(spec, run_dir.path)
    return argv_of(options, script or run_dir.kit / SCRIPT, run_dir.path)


def argv_of(options: Sequence[str], script: Path, target: Path) -> list[str]:
    """Return the command line that queues the batch script for a run, or for a group of runs."""
    return ["sbatch", *options, str(script), str(target)]
