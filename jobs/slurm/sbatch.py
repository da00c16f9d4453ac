"""sbatch's command line for a run, as data: each option is one argument; and its answer.

Standard library only.
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..base import installation
from ..contract.rundir import JOB_LOG, RunDir
from ..contract.spec import Spec
from . import ask

SCRIPT = Path(installation.NAME, "slurm/ddp.sbatch")  # in the kit's folder
# What sbatch prints; with --parsable, and by wrappers of some sites, a line with the bare id.
# Source: sbatch/sbatch.c, main; sbatch(1), --parsable.
_SUBMITTED = re.compile(r"Submitted\s+batch\s+job\s+(\d+)", re.IGNORECASE)
_BARE_ID = re.compile(r"^\s*(\d+)(?:;\S+)?\s*$", re.MULTILINE)

# Keys of a spec that are options.
_SAME_NAMES = ("time", "partition", "account", "qos", "mem", "constraint", "exclude")


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
        "cpus-per-task": slurm.cpus_per_task,
        # Some sites reject a request for no GPUs.
        "gpus-per-node": slurm.gpus_per_node or None,
        **{name: getattr(slurm, name) for name in _SAME_NAMES},
        "signal": f"USR1@{slurm.signal_lead_s}",
        "requeue": True,
        "open-mode": "append",
        "chdir": str(folder),
        "output": output,
        # One mail for a run: measured on Slurm 22.05, a requeue sends none of these types.
        "mail-type": "END,FAIL" if spec.notify.mail else None,
        "mail-user": spec.notify.mail,
        **{key.replace("_", "-"): value for key, value in slurm.sbatch_args.items()},
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


def submitted_job(text: str) -> str | None:
    """Return the job id in sbatch's answer; None if it has none."""
    found = _SUBMITTED.search(text) or _BARE_ID.search(text)
    return None if found is None else found[1]


def submit(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[str | None, str]:
    """Run an sbatch command line; returns the job id, and why there is none.

    It is not repeated if the answer alone was lost: a second job must not be queued.
    """
    if shutil.which(argv[0]) is None:
        return None, "sbatch is missing"
    answer = ask.call_patiently(argv, environ, is_repeatable=False)
    if answer is None:
        text = "sbatch does not answer"
    else:
        text = f"{answer.stdout}\n{answer.stderr}".strip()
        if ask.NO_ANSWER_IN_TIME.search(answer.stderr) is None:
            return (submitted_job(text) if answer.returncode == 0 else None), text
    return None, f"{text}: the job may be queued, squeue --me shows it"
