"""The hooks of this plugin: GPUs in a spec, those of a step, and those that the ranks of a node
see.

Source: gres.conf(5); sbatch(1), OUTPUT ENVIRONMENT VARIABLES; srun(1), --exact.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from ...base import gpus
from ...base.environment import Program
from ...contract.problems import Problem, format_value
from ...contract.spec import Spec
from ...slurm.job import field_of, job_id_from, show_job

# slurm.gpus_per_node: 2, a100:2, 3090:2, 1g.5gb:2 (a part of a GPU).
PER_NODE = re.compile(r"(?:(?!gpu:)[^\s:,=/]+:)?[0-9]+")
# Options whose value lists resources: GPUs may be among them.
WITH_RESOURCES = ("gres", "tres-per-node", "tres-per-task")
# Variables of a job whose GPUs each step asks for, too.
ASKED = ("SLURM_GPUS", *(f"SLURM_GPUS_PER_{each}" for each in ("NODE", "TASK", "SOCKET")))
# Resources of --gres and its like with a GPU, or a share of one: `gpu:2`, `gres/gpu:a100=2`.
OF_GPU = re.compile(r"(?:^|[,/:])\s*(?:gpu|mps|shard)(?=[:=,]|$)", re.IGNORECASE)


def problems(spec: Spec) -> Iterator[Problem]:
    """Yield GPUs that a spec asks for in another spelling, or by another key."""
    if not PER_NODE.fullmatch(str(spec.slurm.gpus_per_node)):
        what = f"{format_value(spec.slurm.gpus_per_node)} is no number of GPUs"
        hint = "write a number, or a type and a number: 2 or a100:2"
        yield Problem(("slurm", "gpus_per_node"), what, hint)
    for written, value in spec.slurm.sbatch_args.items():
        if written.replace("_", "-") in WITH_RESOURCES and OF_GPU.search(str(value)):
            path = ("slurm", "sbatch_args", written)
            hint = "write slurm.gpus_per_node: 2 or a100:2, the GPUs of each node"
            yield Problem(path, f"{format_value(value)} asks for GPUs", hint)


def launch_command(
    program: Program, argv: Sequence[str], environ: Mapping[str, str], spec: Spec | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return srun's command with the GPUs of the job; check those of a node before torchrun starts.

    Raises: UserError, FailedError where the ranks would see fewer than the job asked for.
    """
    words, num_gpus = [*argv], 0 if spec is None else spec.slurm.num_gpus
    given, is_asked = gpus.allocated_gpus(environ), any(environ.get(name) for name in ASKED)
    if program is Program.SRUN and num_gpus and given and not is_asked:
        # By --gres or --exclusive; a step has none of the latter, unless it asks for them.
        job = show_job(job_id_from(environ) or "")
        if job is not None and not field_of(job.text, r"TresPerNode=(\S+)"):
            words.insert(1, f"--gres=gpu:{given}")
    if program is Program.TORCHRUN and spec is not None:
        from . import node_check

        node_check.check(spec, environ)
    return words, {**environ}
