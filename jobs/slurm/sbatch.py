"""sbatch's command line and environment for a run, as data: each option is one argument.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jobs.rundir import RunDir
from jobs.spec import Spec

SCRIPT = Path("slurm/ddp.sbatch")
# They name the cluster and the user; all other SLURM_* variables describe the enclosing job.
_CLIENT_VARIABLES = ("SLURM_CONF", "SLURM_JWT")
_OF_A_JOB = ("SLURM", "SBATCH_", "SRUN_")
# Slurm sets them for a job with GPUs; another job gets other GPUs.
_DEVICES = (
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)


def sbatch_options(spec: Spec, run_dir: RunDir) -> list[str]:
    """Return sbatch's options for a run, one argument each. Source: sbatch(1)."""
    values: dict[str, str | int | float | bool | None] = {
        "job-name": spec.name,
        "nodes": spec.slurm.nodes,
        "ntasks-per-node": 1,
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
        "chdir": str(run_dir.path),
        "output": run_dir.job_log.name,
        **{key.replace("_", "-"): value for key, value in spec.slurm.sbatch_args.items()},
    }
    # By identity: 0 is a value, as in --nice=0, and equals False.
    chosen = {k: value for k, value in values.items() if value is not None and value is not False}
    return [f"--{key}" if value is True else f"--{key}={value}" for key, value in chosen.items()]


def sbatch_argv(spec: Spec, run_dir: RunDir) -> list[str]:
    """Return the command line that queues a run directory."""
    script = run_dir.code / SCRIPT
    return ["sbatch", *sbatch_options(spec, run_dir), str(script), str(run_dir.path)]


def without_job(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process in a job without the job, for a job that it submits.

    sbatch takes SLURM_* and SBATCH_* for options, and gives all other variables to the new job.
    """
    return {
        name: value
        for name, value in environ.items()
        if name in _CLIENT_VARIABLES or not (name.startswith(_OF_A_JOB) or name in _DEVICES)
    }


def outside_of(environ: Mapping[str, str], run_dir: RunDir) -> dict[str, str]:
    """Return `without_job` of a batch script's environment, without the run's code on PYTHONPATH.

    This batch script put the code there, and the batch script of the new job does so again.
    """
    kept = without_job(environ)
    own = f"{run_dir.code}"
    paths = [path for path in kept.pop("PYTHONPATH", "").split(":") if path not in ("", own)]
    return kept | ({"PYTHONPATH": ":".join(paths)} if paths else {})
