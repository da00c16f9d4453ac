"""The environment variables that the kit removes at each door, where it starts other programs.

A name may have `*`, which stands for any text. A variable that no list names is passed on.
slurm/ddp.sbatch and slurm/agent.sh remove others before a Python runs. Standard library only.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Mapping
from enum import Enum
from functools import cache

# Where Slurm is, and who the user is.
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_ROOT", "SLURM_HOME")
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
# Of an enclosing run or of the make around the command; the agent sets those of its own run.
_OF_RUN = (
    *("KIT_AGENT_PID", "KIT_RUN_DIR", "KIT_CHECKPOINT_DIR", "KIT_ATTEMPT", "KIT_WORK_DIR"),
    *("KIT_STOP_FILE", "KIT_DEADLINE", "KIT_HANG_TIMEOUT_S", "KIT_NUM_GPUS", "KIT_CONFIG"),
    *("KIT_SET", "KIT_RUN", "KIT_KEY", "KIT_WITH", "KIT_CHECKPOINT", "KIT_FROM", "KIT_BENCH"),
    *("KIT_SUCCEEDS", "KIT_BATCH_SCRIPT"),
    *("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MAKE_TERM*"),
)


class Door(Enum):
    """A place where programs get an environment; the value: the names that it removes."""

    # Slurm's clients and git, whose output the kit reads. What a job's own variables ask for is
    # nothing that a client should ask for, too.
    READ = (*_FILTERS, "SLURM_*", "SRUN_*", "SBATCH_*", *_GIT)
    # sbatch, and so the job.
    SBATCH = (
        *("SLURM*", "SRUN_*"),  # of an enclosing job or salloc, and options of srun
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
        "KIT_NODE_RANK",  # of a local run
        *("SHELLOPTS", "BASHOPTS"),  # they change what bash does in the kit's scripts
        *_GIT,
    )
    # srun in the batch script.
    SRUN = (
        *("SLURM_CLUSTERS", "SLURM_WORKING_CLUSTER"),  # the kit works with the one that is loaded
        *_FILTERS,
        # Options of srun that no job sets; slurm.srun_args has those of a run.
        *("SRUN_*", "SLURM_CPU_BIND*", "SLURM_ARBITRARY_NODELIST", "SLURM_HOSTFILE"),
        *("SLURM_BCAST*", "SLURM_COMPRESS", "SLURM_SEND_LIBS", "SLURM_CORE_SPEC"),
        *("SLURM_DELAY_BOOT", "SLURM_DISABLE_STATUS", "SLURM_EPILOG", "SLURM_PROLOG"),
        *("SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_EXTERNAL_LAUNCHER", "SLURM_OVERLAP"),
        *("SLURM_EXIT_*", "SLURM_IMMEDIATE", "SLURM_LABELIO", "SLURM_STD*MODE"),
        *("SLURM_TEST_EXEC", "SLURM_THREADS", "SLURM_TIMELIMIT", "SLURM_UNBUFFEREDIO"),
        *("SLURM_WAIT", "SLURM_SRUN_MULTI"),
        # An agent has all that its job has on a node. srun ends where the first are of another job,
        # in which sbatch ran, and takes one alone of the others.
        *("SLURM_TRES_PER_TASK", "SLURM_TRES_BIND", "SLURM_MEM_PER_*"),
    )
    # torchrun and the ranks, after the setup lines. launch.env comes after this.
    TORCHRUN = (
        *_OF_RANKS,
        *_OF_TORCHRUN,
        *_OF_RUN,
        "LOGLEVEL",  # torchrun reads it, and ends where Python's logging has no such level
        "TORCH_DISTRIBUTED_DEBUG",  # with DETAIL ranks of DDP end by SIGSEGV (torch 2.13, gloo)
        "NCCL_COMM_ID",  # NCCL takes it for the address at which all its communicators meet
    )


# What launch.env may not set, and what to do instead.
_REFUSED = (
    (("SLURM*", "SRUN_*"), "Slurm sets these; write the keys below slurm"),
    (_OF_RANKS, "torchrun sets it for each rank"),
    ((*_OF_TORCHRUN, "KIT_*"), "the kit sets it"),
    (("OMP_NUM_THREADS",), "write launch.threads_per_rank"),
    (("PYTHONINSPECT",), "a rank would not end by itself"),
    (("PYTHONHOME", "PYTHONPLATLIBDIR"), "write launch.python: it knows its own folder"),
    (("PYTHONPATH",), "the kit adds the frozen code; export other paths in setup"),
)
# What libraries compute with: other values give other bits. CUBLAS_WORKSPACE_CONFIG is left out, as
# the trainer sets it; ATEN_CPU_CAPABILITY shows in the instruction set. Source: the documentation
# of oneMKL, oneDNN, OpenBLAS, cuBLAS, cuDNN, NCCL, MIOpen, rocBLAS and torch.
_COMPUTES = (
    *("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "ONEDNN_MAX_CPU_ISA"),
    *("DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"),
    *("OPENBLAS_CORETYPE", "KMP_DETERMINISTIC_REDUCTION", "NVIDIA_TF32_OVERRIDE"),
    *("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_*", "DISABLE_ADDMM_CUDA_LT"),
    *("CUBLAS_EMULAT*", "CUBLASLT_*", "CUDNN_CONV_*", "TORCH_CUDNN_*", "NCCL_ALGO", "NCCL_PROTO"),
    *("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
    *("NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_NVLS_ENABLE", "NCCL_COLLNET_ENABLE"),
    *("MIOPEN_DEBUG_*", "MIOPEN_FIND_*", "ROCBLAS_*", "HIPBLASLT_*", "HSA_OVERRIDE_GFX_VERSION"),
    *("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "TORCHINDUCTOR_EMULATE_PRECISION_CASTS"),
)
# The name of a socket has 107 bytes, and Python's multiprocessing adds 32 to that of the folder.
# Source: unix(7); multiprocessing.connection.arbitrary_address.
MAX_TMPDIR = 60


@cache
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(name) for name in names))


def variables_for(environ: Mapping[str, str], door: Door) -> dict[str, str]:
    """Return the environment without what the door removes."""
    removed = _pattern(door.value)
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT or not removed.fullmatch(name)
    }


def for_reading(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program whose output the kit reads: in English.

    With the job's id and its number of starts, for which a site's wrapper of scontrol may ask.
    """
    names = {"SLURM_JOB_ID", "SLURM_RESTART_COUNT"} & environ.keys()
    kept = {name: environ[name] for name in names}
    return variables_for(environ, Door.READ) | kept | {"LC_ALL": "C"}


def that_change_bits(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables on whose values the bits of a result depend."""
    computes = _pattern(_COMPUTES)
    names = (name for name in sorted(environ) if computes.fullmatch(name))
    return {name: environ[name] for name in names if "_LOG_" not in name}  # these only print


def refusal(name: str) -> str | None:
    """Return what to do instead of setting a variable in launch.env; None if it is free."""
    hints = (hint for names, hint in _REFUSED if _pattern(names).fullmatch(name))
    return next(hints, None)


def temporary_folder(environ: Mapping[str, str]) -> str:
    """Return TMPDIR; /tmp where it is unset, too long for sockets, or cannot be written here."""
    folder = environ.get("TMPDIR", "")
    is_usable = os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)
    return folder if is_usable and len(os.fsencode(folder)) <= MAX_TMPDIR else "/tmp"
