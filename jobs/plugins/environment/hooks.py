"""The hooks of this plugin: the variables that it removes, or refuses, and the ranks' Python.

A name may have `*`, which stands for any text. A variable that no list names is passed on.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ...base.environment import Program, pattern, without
from ...contract.problems import Problem
from ...contract.spec import Spec

# Filters and formats that hide jobs from the kit, or show them in another form.
_FILTERS = (
    *("SQUEUE_*", "SINFO_*", "SACCT_*", "SCONTROL_*", "SCANCEL_*", "SLURM_TIME_FORMAT"),
    *("SLURM_BITSTR_LEN", "SLURM_TOPO_LEN", "SLURM_CONF_OUT", "SLURM_DEBUG_FLAGS"),
)
# git would read another repository, index or form of diff than that of the frozen code.
_GIT = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_NAMESPACE"),
    *("GIT_*OBJECT_DIR*", "GIT_EXTERNAL_DIFF", "GIT_DIFF_OPTS", "GIT_*PATHSPECS", "GIT_TRACE*"),
)
# Of an enclosing torchrun; torchrun sets them for each rank.
_OF_RANKS = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE"),
    *("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "TORCHELASTIC_*"),
)
# The kit chooses the address; torchrun takes the others for options: with PET_STANDALONE each node
# waits for itself.
_OF_TORCHRUN = (
    *("MASTER_ADDR", "MASTER_PORT", "PET_*", "PYTHON_EXEC", "TORCH_ELASTIC_*"),
    *("TORCH_WORKER_SERVER_SOCKET", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"),
)
# Of an enclosing run; the agent sets those of its own run, last.
_OF_RUN = (
    *("KIT_AGENT_PID", "KIT_RUN_DIR", "KIT_CHECKPOINT_DIR", "KIT_ATTEMPT", "KIT_WORK_DIR"),
    *("KIT_RANKS_DIR", "KIT_STOP_FILE", "KIT_DEADLINE", "KIT_HANG_TIMEOUT_S", "KIT_NUM_GPUS"),
    *("KIT_RUN_ID", "KIT_NODE_RANK"),  # the second one of a local run
)
# Of the make around the command.
_OF_MAKE = (*("KIT_BENCH", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MAKE_TERM*"),)
# Of the user's session on the host that submits, or of a notebook there.
_OF_SESSION = (
    *("MPLBACKEND", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY"),
    *("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"),
)

REMOVED = {
    Program.GIT: _GIT,
    Program.SBATCH: (
        # Options that the kit sets, or cannot work with; your other defaults of sbatch count.
        *("SBATCH_CLUSTERS", "SBATCH_ARRAY_INX", "SBATCH_BATCH", "SBATCH_CONTAINER"),
        *("SBATCH_ERROR", "SBATCH_INPUT", "SBATCH_OUTPUT", "SBATCH_OPEN_MODE", "SBATCH_WAIT"),
        *("SBATCH_JOB_NAME", "SBATCH_NO_KILL", "SBATCH_REQUEUE", "SBATCH_NO_REQUEUE"),
        *("SBATCH_SIGNAL", "SBATCH_TIMELIMIT", "SBATCH_OVERCOMMIT"),
        *("SBATCH_GRES", "SBATCH_GPUS*", "SBATCH_TRES_PER_TASK"),  # slurm.gpus_per_node has them
        *("SBATCH_CPU_BIND*", "SBATCH_MEM_BIND*"),  # Slurm sets them in a job
        # In a job Slurm sets them for its GPUs; another job gets other GPUs.
        *("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES"),
        *("HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
        # Of an enclosing srun, mpirun or training.
        *("PMI_*", "PMIX_*", "PMI2_*", "OMPI_COMM_WORLD_*", "WANDB_SERVICE"),
        *_OF_RANKS,
        *_OF_TORCHRUN,
        *_OF_RUN,
        *_OF_MAKE,
        *_OF_SESSION,
        *("SHELLOPTS", "BASHOPTS"),  # they change what bash does in the kit's scripts
        *_GIT,
    ),
    Program.LOCAL: _OF_SESSION,
    Program.SRUN: (
        *_OF_SESSION,  # for `sbatch slurm/ddp.sbatch`; those of a TaskProlog come later
        *("SLURM_CLUSTERS", "SLURM_WORKING_CLUSTER"),  # the kit works with the one that is loaded
        *_FILTERS,
        # Options of srun that no job sets; slurm.srun_args has those of a run.
        *("SLURM_CPU_BIND*", "SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_EXIT_*", "SLURM_HOSTFILE"),
        *("SLURM_IMMEDIATE", "SLURM_OVERLAP", "SLURM_STD*MODE", "SLURM_TIMELIMIT", "SLURM_WAIT"),
        # An agent has all that its job has on a node. srun ends where the first are of another job,
        # in which sbatch ran, and takes one alone of the others.
        *("SLURM_TRES_PER_TASK", "SLURM_TRES_BIND", "SLURM_MEM_PER_*"),
    ),
    Program.TORCHRUN: (
        *_OF_RANKS,
        *_OF_TORCHRUN,
        *_OF_MAKE,
        "LOGLEVEL",  # torchrun reads it, and ends where Python's logging has no such level
        "TORCH_DISTRIBUTED_DEBUG",  # with DETAIL ranks of DDP end by SIGSEGV (torch 2.13, gloo)
        "NCCL_COMM_ID",  # NCCL takes it for the address at which all its communicators meet
    ),
}

# What launch.env may not set, and what to do instead.
REFUSED = (
    (("SLURM*", "SRUN_*"), "Slurm sets these; write the keys below slurm"),
    (_OF_RANKS, "torchrun sets it for each rank"),
    ((*_OF_TORCHRUN, "KIT_*"), "the kit sets it"),
    (("OMP_NUM_THREADS",), "write launch.threads_per_rank"),
    (("PYTHONINSPECT",), "a rank would not end by itself"),
    (("PYTHONHOME", "PYTHONPLATLIBDIR"), "write launch.python: it knows its own folder"),
    (("PYTHONPATH",), "the kit adds the frozen code; export other paths in setup"),
)

_CAN_TRAIN = "import importlib.util as u, tomllib; raise SystemExit(not u.find_spec('torch'))"


def prepare_code(spec: Spec, repository: Path) -> tuple[Spec, Path, Sequence[str]]:
    """Return the spec of a new run with the Python of its ranks, if this one cannot train."""
    if spec.launch.python is None and not spec.runs_inside and (python := _other_python()):
        spec = replace(spec, launch=replace(spec.launch, python=python))
    return spec, repository, ()


@cache
def _other_python() -> str | None:
    """Return the first python3 on PATH with torch, if this Python has none."""
    if find_spec("torch") is not None:
        return None
    for python in filter(None, (shutil.which("python3", path=x) for x in os.get_exec_path())):
        if subprocess.run([python, "-c", _CAN_TRAIN], capture_output=True).returncode == 0:
            return os.path.abspath(python)
    return None


def launch_command(
    program: Program, argv: Sequence[str], environ: Mapping[str, str], spec: Spec | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return the environment without what would break the program, but for that of launch.env."""
    own = spec.launch.env.keys() if spec is not None and program is Program.TORCHRUN else ()
    kept = {name: environ[name] for name in own if name in environ}
    return [*argv], without(environ, REMOVED.get(program, ())) | kept


def problems(spec: Spec) -> Iterator[Problem]:
    """Yield the variables of launch.env that belong to others."""
    for name in spec.launch.env:
        hints = (hint for names, hint in REFUSED if pattern(names).fullmatch(name))
        if hint := next(hints, None):
            yield Problem(("launch", "env", name), f"{name} belongs to the kit", hint)
        elif name == "PYTHONHASHSEED" and not spec.launch.env[name].isdecimal():
            what = f"{spec.launch.env[name]!r} orders sets of texts otherwise in each process"
            hint = "write a number, or leave it out: the kit sets 0"
            yield Problem(("launch", "env", name), what, hint)
