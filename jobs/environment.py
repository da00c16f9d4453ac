"""What each door of the kit does with the environment that it inherits: one table, `TABLE`.

A door is a place where the kit starts other programs. A variable that no row names is passed on at
each door. docs/environments.md has the table as text; `make schema` writes it. slurm/ddp.sbatch and
slurm/agent.sh remove variables before a Python runs; a test compares their lines with the table.
Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache

from .spec import Spec


class Door(StrEnum):
    """A place where programs get an environment; the text is its name in the docs."""

    CLIENT = "clients"  # squeue, scontrol, sacct, sinfo, scancel
    SBATCH = "job"  # and sbatch
    GIT = "git"
    BATCH = "script"  # and its srun
    AGENT = "agent"  # agent.sh, before it sources the setup lines; of a local run, too
    TORCHRUN = "ranks"  # and torchrun, after the setup lines; the ranks' data workers, too


class Treatment(StrEnum):
    """What a door does with a variable."""

    PASS = "passed on"
    REMOVE = "removed"
    WARN = "removed, with a warning"


P, R, W = Treatment.PASS, Treatment.REMOVE, Treatment.WARN
_ORDER = (Door.CLIENT, Door.SBATCH, Door.GIT, Door.BATCH, Door.AGENT, Door.TORCHRUN)


@dataclass(frozen=True)
class Family:
    """Variables that all doors treat alike.

    names: with `*` at the end, all names that begin so. does: one action for each door, in their
    order. why: for the docs, and for the user in a warning. hint: what to do instead of naming it
    in launch.env; empty where the spec may name it. hints: of single names. is_of_job: counts
    inside of a job only. is_bad: counts for these values only.
    """

    names: tuple[str, ...]
    does: tuple[Treatment, ...]
    why: str
    hint: str = ""
    hints: Mapping[str, str] = field(default_factory=dict)
    is_of_job: bool = False
    is_bad: Callable[[str], bool] | None = None

    def at(self, door: Door) -> Treatment:
        """Return what a door does with these variables."""
        return self.does[_ORDER.index(door)]

    def has(self, name: str) -> bool:
        """Return whether a variable belongs to this family."""
        return any(
            name.startswith(each[:-1]) if each.endswith("*") else name == each
            for each in self.names
        )


_TORCHRUN = "torchrun sets it for each rank"
_SLURM = "Slurm sets these; write the keys below slurm"
_ALL = (P, P, P, P, P, P)


_LEVELS = ("CRITICAL", "FATAL", "ERROR", "WARN", "WARNING", "INFO", "DEBUG", "NOTSET")


# The first row that has a name decides. The order of the actions: Door.
TABLE = (
    Family(
        ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_ROOT", "SLURM_HOME"),
        _ALL,
        "where Slurm is, and who the user is",
        _SLURM,
    ),
    Family(
        ("SLURM_CLUSTERS", "SLURM_WORKING_CLUSTER", "SBATCH_CLUSTERS"),
        (R, W, P, R, P, P),
        "the kit works with the cluster whose Slurm is loaded",
        _SLURM,
    ),
    Family(
        (
            *("SQUEUE_*", "SINFO_*", "SACCT_*", "SCONTROL_*", "SCANCEL_*", "SLURM_TIME_FORMAT"),
            *("SLURM_BITSTR_LEN", "SLURM_TOPO_LEN", "SLURM_CONF_OUT", "SLURM_DEBUG_FLAGS"),
        ),
        (R, R, P, R, P, P),
        "your filters and formats would hide jobs from the kit, or show them in another form",
    ),
    Family(
        (
            *("SRUN_*", "SLURM_CPU_BIND*", "SLURM_ARBITRARY_NODELIST", "SLURM_HOSTFILE"),
            *("SLURM_BCAST*", "SLURM_COMPRESS", "SLURM_SEND_LIBS", "SLURM_CORE_SPEC"),
            *("SLURM_DELAY_BOOT", "SLURM_DISABLE_STATUS", "SLURM_EPILOG", "SLURM_PROLOG"),
            *("SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_EXTERNAL_LAUNCHER", "SLURM_OVERLAP"),
            "SLURM_EXIT_*",
            *("SLURM_IMMEDIATE", "SLURM_LABELIO", "SLURM_STDERRMODE", "SLURM_STDINMODE"),
            *("SLURM_STDOUTMODE", "SLURM_TEST_EXEC", "SLURM_THREADS", "SLURM_TIMELIMIT"),
            *("SLURM_UNBUFFEREDIO", "SLURM_WAIT", "SLURM_SRUN_MULTI"),
        ),
        (R, W, P, R, P, P),
        "options of srun that no job sets; slurm.srun_args has those of a run",
        _SLURM,
    ),
    Family(
        (
            *("SLURM_HINT", "SLURM_DIST*", "SLURM_NTASKS*", "SLURM_NPROCS", "SLURM_MEM_*"),
            *("SLURM_CPUS_PER_*", "SLURM_GPU*", "SLURM_GRES*", "SLURM_THREADS_PER_CORE"),
            *("SLURM_THREAD_SPEC", "SLURM_CPU_FREQ_REQ", "SLURM_NETWORK", "SLURM_EXPORT_ENV"),
            *("SLURM_GET_USER_ENV", "SLURM_UMASK", "SLURM_JOB_NAME", "SLURM_NNODES"),
            *("SLURM_NODELIST", "SLURM_OPEN_MODE", "SLURM_OVERCOMMIT", "SLURM_PROFILE"),
            *("SLURM_CONTAINER", "SLURM_NO_KILL", "SLURM_PRIO_PROCESS", "SLURM_SIGNAL"),
            "SLURM_OOM_KILL_STEP",
        ),
        (R, W, P, P, P, P),
        "options of sbatch and srun that a job sets, too; slurm.sbatch_args has those of a run",
        _SLURM,
    ),
    Family(
        ("SLURM_TRES_PER_TASK", "SLURM_TRES_BIND"),
        (R, W, P, R, P, P),
        "CPUs and GPUs of a task (Slurm 23.11): an agent has all that its job has on a node, and "
        "srun ends where these are of another job, in which sbatch ran",
        _SLURM,
    ),
    Family(
        ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
        (P, R, P, P, P, P),
        "which start of which job it is: a site's wrapper of scontrol may ask",
        _SLURM,
        is_of_job=True,
    ),
    Family(
        ("SLURM*",), (R, R, P, P, P, P), "of an enclosing job or salloc", _SLURM, is_of_job=True
    ),
    Family(
        (
            *("SBATCH_ARRAY_INX", "SBATCH_BATCH", "SBATCH_CONTAINER", "SBATCH_ERROR"),
            *("SBATCH_INPUT", "SBATCH_OUTPUT", "SBATCH_OPEN_MODE", "SBATCH_JOB_NAME"),
            *("SBATCH_NO_KILL", "SBATCH_REQUEUE", "SBATCH_NO_REQUEUE", "SBATCH_SIGNAL"),
            *("SBATCH_TIMELIMIT", "SBATCH_WAIT", "SBATCH_OVERCOMMIT"),
        ),
        (R, W, P, P, P, P),
        "the kit sets this option of sbatch, or cannot work with it",
    ),
    Family(
        ("SBATCH_CPU_BIND*", "SBATCH_MEM_BIND*"),
        (R, R, P, P, P, P),
        "Slurm sets them in a job",
    ),
    Family(
        ("SBATCH_*",),
        (R, P, P, P, P, P),
        "your defaults of sbatch count for each job, a successor too; submit prints them, and "
        "refuses those that ask for other GPUs than the spec",
    ),
    Family(
        (
            *("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES"),
            *("HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
        ),
        (P, R, P, P, P, P),
        "in a job Slurm sets them for its GPUs; another job gets other GPUs",
        is_of_job=True,
    ),
    Family(
        ("PMI_*", "PMIX_*", "PMI2_*", "OMPI_COMM_WORLD_*", "WANDB_SERVICE"),
        (P, R, P, P, P, P),
        "of an enclosing srun, mpirun or training",
    ),
    Family(
        (
            *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE"),
            *("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "TORCHELASTIC_*"),
        ),
        (P, R, P, P, P, R),
        "of an enclosing torchrun; torchrun sets them for each rank",
        _TORCHRUN,
    ),
    Family(
        ("MASTER_ADDR", "MASTER_PORT"),
        (P, R, P, P, P, R),
        "the kit chooses the first node's address and a port for each attempt",
        "the kit chooses it for each attempt",
    ),
    Family(
        (
            *("PET_*", "PYTHON_EXEC", "TORCH_ELASTIC_*", "TORCH_WORKER_SERVER_SOCKET"),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
        ),
        (P, W, P, P, P, W),
        "torchrun takes it for an option: PET_STANDALONE makes each node wait for itself",
        "the kit sets torchrun's options",
    ),
    Family(
        ("LOGLEVEL",),
        (P, P, P, P, P, W),
        "torchrun reads it, and ends where Python's logging has no such level (INFO, DEBUG, ...)",
        is_bad=lambda value: value not in _LEVELS,
    ),
    Family(
        ("TORCH_DISTRIBUTED_DEBUG",),
        (P, P, P, P, P, W),
        "torch takes OFF, INFO and DETAIL only, and with DETAIL ranks of DDP end by SIGSEGV (torch "
        "2.13 over gloo); launch.env may set it all the same",
        is_bad=lambda value: value.upper() not in ("OFF", "INFO"),
    ),
    Family(
        ("NCCL_COMM_ID",),
        (P, P, P, P, P, W),
        "NCCL takes it for the address at which all its communicators meet, in place of torch's",
    ),
    Family(
        (
            *("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"),
            *("KMP_HW_SUBSET", "KMP_PLACE_THREADS", "OMP_DYNAMIC", "OMP_THREAD_LIMIT"),
        ),
        (P, P, P, P, W, P),
        "it binds torchrun, so all ranks and data workers of a node, to the same core; setup or "
        "launch.env may set it all the same",
    ),
    Family(
        (
            *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_DOMAIN_NUM_THREADS"),
            *("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "BLIS_NUM_THREADS"),
        ),
        (P, P, P, P, R, P),
        "launch.threads_per_rank sets OMP_NUM_THREADS, which counts for the others, too",
        hints={"OMP_NUM_THREADS": "write launch.threads_per_rank"},
    ),
    Family(
        ("PYTHONINSPECT", "PYTHONSAFEPATH"),
        (P, P, P, R, R, P),
        "Python would wait at its end and exit with another code, or not find the frozen code",
        hints={"PYTHONINSPECT": "a rank would not end by itself"},
    ),
    Family(
        ("PYTHONHOME", "PYTHONPLATLIBDIR"),
        _ALL,
        "of the interpreter that submits. agent.sh removes them where launch.python names another",
        "write launch.python: its interpreter knows its own folder",
    ),
    Family(
        ("PYTHONPATH",),
        _ALL,
        "comes after the frozen code",
        "the kit adds your repository or script folder; export other paths in setup",
    ),
    Family(
        ("GIT_CONFIG*", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM"),
        _ALL,
        "your configuration, such as safe.directory",
    ),
    Family(
        ("GIT_EXEC_PATH", "GIT_SSH*", "GIT_AUTHOR_*", "GIT_COMMITTER_*"),
        _ALL,
        "do not choose a repository",
    ),
    Family(
        ("GIT_*",),
        (P, R, R, P, P, P),
        "git would read another repository, index or form of diff than that of the frozen code",
    ),
    Family(
        ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MAKE_TERM*"),
        (P, R, P, P, P, R),
        "of the make around the command; a make in the job would take its variables",
    ),
    Family(
        (
            *("KIT_AGENT_PID", "KIT_RUN_DIR", "KIT_CHECKPOINT_DIR", "KIT_ATTEMPT", "KIT_WORK_DIR"),
            *("KIT_STOP_FILE", "KIT_DEADLINE", "KIT_HANG_TIMEOUT_S", "KIT_NUM_GPUS"),
            *("KIT_CONFIG", "KIT_SET", "KIT_RUN", "KIT_KEY"),
            *("KIT_WITH", "KIT_CHECKPOINT", "KIT_FROM", "KIT_BENCH", "KIT_SUCCEEDS"),
            "KIT_BATCH_SCRIPT",
        ),
        (P, R, P, P, P, R),
        "of an enclosing run, or of make; the agent sets those of its own run",
        "the kit sets these",
    ),
    Family(
        ("KIT_LOCAL_AGENTS", "KIT_NODE_RANK"),
        (P, R, P, P, P, P),
        "of a local run",
        "the kit sets these",
    ),
    Family(("KIT_*",), _ALL, "defaults of the kit's own commands", "the kit sets these"),
    Family(
        ("CDPATH", "POSIXLY_CORRECT", "GREP_OPTIONS"),
        (P, P, P, R, R, P),
        "would change what bash does in the kit's scripts",
    ),
    Family(
        ("SHELLOPTS", "BASHOPTS"),
        (P, W, P, P, P, P),
        "would change what bash does in the kit's scripts, where it cannot be unset",
    ),
    Family(
        ("BASH_FUNC_*",),
        _ALL,
        "functions of your shell, such as `module`; the kit's scripts remove those that have the "
        "name of a builtin of bash, such as `cd`",
    ),
    Family(
        ("LD_*", "PYTHON*", "OMP_*", "KMP_*", "GOMP_*", "MKL_*", "OPENBLAS_*"),
        _ALL,
        "your libraries and interpreter",
    ),
    Family(
        ("GLOO_*", "NCCL_*", "UCX_*", "TORCH_*", "PYTORCH_*"),
        _ALL,
        "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME: yours win, but for launch.interface, and on a "
        "node that has no such interface, which warns",
    ),
    Family(
        ("HOME", "XDG_*", "LANG", "LC_*", "TERM", "http_proxy", "https_proxy", "BASH_ENV"),
        _ALL,
        "but git and Slurm's clients get LC_ALL=C where the kit reads what they print",
    ),
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


def that_change_bits(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables on whose values the bits of a result depend."""
    computes = Family(_COMPUTES, _ALL, "")
    names = (name for name in sorted(environ) if computes.has(name))
    return {name: environ[name] for name in names if "_LOG_" not in name}  # these only print


@cache
def family_of(name: str) -> Family | None:
    """Return the row of a variable; None if no row has it."""
    return next((family for family in TABLE if family.has(name)), None)


def is_inside_job(environ: Mapping[str, str]) -> bool:
    """Return whether this is the environment of a Slurm job, by sbatch, salloc or srun."""
    return "SLURM_JOB_ID" in environ


def treatment(name: str, environ: Mapping[str, str], door: Door) -> Treatment:
    """Return what a door does with a variable of an environment."""
    family = family_of(name)
    if family is None or (family.is_of_job and not is_inside_job(environ)):
        return Treatment.PASS
    if family.is_bad is not None and not family.is_bad(environ[name]):
        return Treatment.PASS
    return family.at(door)


def variables_for(environ: Mapping[str, str], door: Door) -> dict[str, str]:
    """Return the environment without what the door removes."""
    return {
        name: value
        for name, value in environ.items()
        if treatment(name, environ, door) is Treatment.PASS
    }


# What a job has in its environment if its record in `scontrol -d show job` has the sign.
_OF_OWN_JOB = (
    (r" HetJobId=", ("SLURM_HET_*",)),
    (r" Restarts=(?!0 )", ("SLURM_RESTART_COUNT",)),
    (r"GRES=\S*gpu", ("SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS")),
    (r"TresPerNode=", ("SLURM_GPUS_PER_NODE",)),
    (r"TresPerTask=\S*gpu", ("SLURM_GPUS_PER_TASK",)),
    (r"TresPerSocket=", ("SLURM_GPUS_PER_SOCKET",)),
    (r"TresPerJob=", ("SLURM_GPUS",)),
    (r"CpusPerTres=", ("SLURM_CPUS_PER_GPU",)),
)


def of_enclosing_job(environ: Mapping[str, str], records: str) -> list[str]:
    """Return the variables that sbatch left in a job's environment of the job in which it ran.

    records: what `scontrol -d show job` prints. With the last task of an array it shows the other
    tasks, too. Without the job's own record those that only the record shows are not found.
    """
    own = f"JobId={environ.get('SLURM_JOB_ID')}"
    record = next((each for each in records.split("\n\n") if own in each.split()[:1]), None)
    found = [
        name
        for sign, names in _OF_OWN_JOB
        if record is not None and not re.search(sign, record)
        for name in filter(Family(names, _ALL, "").has, environ)
    ]
    # srun takes one of these and no second one; without them a step has the job's memory.
    memory = [name for name in environ if name.startswith("SLURM_MEM_PER_")]
    found += memory if len(memory) > 1 else []
    cpus = [environ.get(f"SLURM_CPUS_{which}", "") for which in ("PER_TASK", "ON_NODE")]
    if all(map(str.isdecimal, cpus)) and int(cpus[0]) > int(cpus[1]):
        found.append("SLURM_CPUS_PER_TASK")
    return found


def for_reading(environ: Mapping[str, str], door: Door) -> dict[str, str]:
    """Return `variables_for` for a program whose output the kit reads: in English."""
    return variables_for(environ, door) | {"LC_ALL": "C"}


def warnings(environ: Mapping[str, str], *doors: Door) -> list[str]:
    """Return one line for each reason why doors remove variables that the user may have set.

    Inside of a job all SLURM_* may be the job's own.
    """
    reasons: dict[str, list[str]] = {}
    for name, value in sorted(environ.items()):
        family, is_of_job = family_of(name), name.startswith("SLURM") and is_inside_job(environ)
        actions = {treatment(name, environ, door) for door in doors}
        if family is not None and Treatment.WARN in actions and not is_of_job:
            reasons.setdefault(family.why, []).append(f"{name}={value}")
    return [
        f"warning: {', '.join(names)} of the environment is not passed on: {why}"
        for why, names in reasons.items()
    ]


def sbatch_defaults(environ: Mapping[str, str], argv: Iterable[str]) -> list[str]:
    """Return the variables that add options to an sbatch command line, as NAME=VALUE."""
    given = {option.removeprefix("--").partition("=")[0] for option in argv}
    settings = []
    for name, value in sorted(variables_for(environ, Door.SBATCH).items()):
        option = name.removeprefix("SBATCH_").lower().replace("_", "-")
        option = "mem" if option == "mem-per-node" else option
        if name.startswith("SBATCH_") and option not in given:
            settings.append(f"{name}={value}")
    return settings


def notes(environ: Mapping[str, str], spec: Spec, argv: Iterable[str] | None) -> list[str]:
    """Return what a user should know of her environment before a run starts, one line each.

    argv: of sbatch; None for a run on this machine.
    """
    doors = [Door.AGENT, Door.TORCHRUN, *([] if argv is None else [Door.SBATCH])]
    lines = warnings(environ, *doors) + bound(spec.launch.env) + umask_problem(spec.dir_mode)
    if argv is None:
        return lines + low_limits()
    if defaults := sbatch_defaults(environ, argv):
        lines.append(f"note: sbatch takes options from the environment, too: {', '.join(defaults)}")
    return lines


def bound(environ: Mapping[str, str]) -> list[str]:
    """Return a warning of variables of setup or launch.env that bind all ranks to one core."""
    binding = family_of("OMP_PROC_BIND")
    names = [f"{name}={value}" for name, value in environ.items() if family_of(name) is binding]
    what = "of setup or launch.env may bind all ranks and data workers of a node to one core"
    return [f"warning: {', '.join(names)} {what}"] if names else []


def umask_problem(dir_mode: str) -> list[str]:
    """Return a warning where this process's umask and the mode of the run directory disagree."""
    umask = os.umask(0o077)
    os.umask(umask)
    granted, place = int(dir_mode, 8) & 0o077, f"umask {umask:04o} and dir_mode {dir_mode}"
    hint = f"\n  hint: umask {0o777 & ~int(dir_mode, 8):04o} before you submit"
    if granted & 0o055 & umask:
        return [f"warning: {place}: others who may enter the run directory cannot read it{hint}"]
    if granted and ~granted & ~umask & 0o022:
        return [f"warning: {place}: others who may enter the run directory may change it{hint}"]
    return []


# Fewer than this many are not enough for ranks, their data workers and checkpoints.
_LIMITS = (
    ("RLIMIT_NOFILE", "open files (ulimit -n)", 1024),
    ("RLIMIT_NPROC", "processes and threads (ulimit -u)", 1024),
    ("RLIMIT_FSIZE", "bytes in a file (ulimit -f)", 100 * 2**30),
    ("RLIMIT_AS", "bytes of address space (ulimit -v)", 64 * 2**30),
    ("RLIMIT_DATA", "bytes of data (ulimit -d)", 16 * 2**30),
    ("RLIMIT_CPU", "seconds of processor time (ulimit -t)", 10**9),
)


def low_limits() -> list[str]:
    """Return a warning of each hard limit of this process under which a training may fail.

    agent.sh raises the soft limits to the hard ones: Slurm gives a job the soft limits of the shell
    that submits. Source: slurm.conf(5), PropagateResourceLimits.
    """
    import resource  # no command but a start needs it

    lines = []
    for name, what, least in _LIMITS:
        hard = resource.getrlimit(getattr(resource, name))[1]
        if hard != resource.RLIM_INFINITY and hard < least:
            lines.append(f"warning: this process may have {hard} {what} at most")
    return lines


# The name of a socket has 107 bytes, and Python's multiprocessing adds 32 to that of the folder.
# Source: unix(7); multiprocessing.connection.arbitrary_address.
MAX_TMPDIR = 60


def unusable_tmpdir(environ: Mapping[str, str]) -> str | None:
    """Return why TMPDIR cannot be used on this host; None if it can, or is not set."""
    folder = environ.get("TMPDIR")
    if not folder or (os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)):
        return None
    return f"warning: TMPDIR={folder} is no folder that can be written here: /tmp is used instead"


def refusal(name: str) -> str | None:
    """Return what to do instead of setting a variable in launch.env; None if it is free."""
    family = family_of(name)
    return None if family is None else family.hints.get(name) or family.hint or None


def markdown() -> str:
    """Return the table in Markdown, for docs/environments.md."""
    rows = ["| variables | removed at | why |", "|---|---|---|"]
    for family in TABLE:
        names = ", ".join(f"`{name}`" for name in family.names)
        rows.append(f"| {names} | {_summary(family)} | {family.why} |")
    return "\n".join(rows)


def _summary(family: Family) -> str:
    """Return the doors that remove these variables, `!` where they warn, and launch.env."""
    marks = {Treatment.REMOVE: "", Treatment.WARN: "!"}
    doors = [(door, family.at(door)) for door in _ORDER]
    parts = [f"{door}{marks[does]}" for door, does in doors if does in marks]
    if family.hint:
        parts.append("launch.env")
    if family.hints:
        parts.append(f"launch.env ({', '.join(f'`{name}`' for name in family.hints)})")
    return ", ".join(parts) or "–"
