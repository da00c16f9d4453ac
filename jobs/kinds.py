"""What ends or delays a run: the names, and one table with what each means and what to do."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Cause(StrEnum):
    """What ended an attempt."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time_limit"
    PREEMPTION = "preemption"
    MANUAL_STOP = "manual_stop"  # a stop signal sent by hand: scancel --signal=TERM
    INTERRUPTED = "interrupted"  # Ctrl-C or cancel of a local run
    REQUEUED = "requeued"  # by an administrator, or by Slurm itself
    CRASH = "crash"
    HANG = "hang"  # no rank made progress, and a watchdog ended the attempt
    OUT_OF_MEMORY = "out_of_memory"  # a crash that the next attempt may well repeat
    NODE = "node"  # a node was lost, or failed its preflight
    LOST = "lost"  # the batch script was killed before it recorded the attempt


class Kind(StrEnum):
    """What ended or delays a run. `why --json` has these names, so they stay."""

    COMPLETED = "completed"
    RUNNING = "running"
    PENDING = "pending"
    NEVER_STARTED = "never_started"
    SUSPENDED = "suspended"
    # A stop from outside.
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    TIME_LIMIT = "time_limit"
    PREEMPTION = "preemption"
    REQUEUED = "requeued"
    MANUAL_STOP = "manual_stop"
    NOT_SAVED = "not_saved"  # the warning came too late for a save
    NOT_REQUEUED = "not_requeued"
    SLURMCTLD_AWAY = "slurmctld_away"
    NODE_FAILURE = "node_failure"
    BAD_NODE = "bad_node"
    SLOW_START_UP = "slow_start_up"  # longer than the time until each stop
    BATCH_SCRIPT_KILLED = "batch_script_killed"
    REFUSED = "refused"  # the job ended before it began an attempt
    # A rank was asked to stop before it reached its training loop.
    STOPPED_IN_START_UP = "stopped_in_start_up"
    # A failure of a rank.
    HANG = "hang"
    COLLECTIVE = "collective"
    NETWORK = "network"
    PROCESS_KILLED = "process_killed"
    OUT_OF_MEMORY = "out_of_memory"
    GPU_OUT_OF_MEMORY = "gpu_out_of_memory"
    GPU_ERROR = "gpu_error"
    GPU_FAULT = "gpu_fault"  # of the hardware, whatever the program does
    GPU_MISSING = "gpu_missing"  # fewer GPUs than the job asked for
    IMPORT_ERROR = "import_error"
    USER_CODE = "user_code"
    SPEC_MISTAKE = "spec_mistake"
    USAGE = "usage"  # of the script's command line
    SYNTAX_ERROR = "syntax_error"
    INTERPRETER = "interpreter"
    COMMAND_MISSING = "command_missing"
    LIBRARY = "library"
    INSTRUCTION = "instruction"
    INTERFACE = "interface"
    PORT = "port"
    NOT_FINITE = "not_finite"
    SUPERSEDED = "superseded"
    # A limit of the process or of the node.
    OPEN_FILES = "open_files"
    FILE_SIZE = "file_size"
    PROCESSES = "processes"
    CPU_TIME = "cpu_time"
    SHARED_MEMORY = "shared_memory"
    TEMPORARY_DIRECTORY = "temporary_directory"
    # The disk.
    PERMISSION = "permission"
    STALE_FILE = "stale_file"
    DISK_FULL = "disk_full"
    QUOTA = "quota"
    READ_ONLY = "read_only"
    DISK_ERROR = "disk_error"
    RUN_DIRECTORY_GONE = "run_directory_gone"
    FILES_MISSING = "files_missing"
    DAMAGED_CHECKPOINT = "damaged_checkpoint"
    # A budget that turned a retry into a hold.
    MAX_CRASHES = "max_crashes"
    MAX_RESTARTS = "max_restarts"
    NO_PROGRESS = "no_progress"
    SHORT_TIME_LIMIT = "short_time_limit"
    UNKNOWN = "unknown"


# A lack of memory, which the next attempt may well meet again.
OF_MEMORY = (Kind.OUT_OF_MEMORY, Kind.GPU_OUT_OF_MEMORY)
# What a person corrects, where nothing shows more. The keys: jobs.errors.Mistake.
KIND_OF_MISTAKE: dict[str | None, Kind] = {"code": Kind.USER_CODE, "spec": Kind.SPEC_MISTAKE}


class Row(NamedTuple):
    """A line of the table of kinds.

    cause: the class that the decision and the budgets count; None: it ends no attempt by itself.
    what: the beginning of the sentence about it. advice: what a person does; command, flags: with
    which command, as for `installation.command`. change: the `KEY=VALUE` for it, where `...` is
    what the person chooses, or in angle brackets how jobs.commands finds the value in the spec.
    """

    cause: Cause | None
    what: str
    advice: str = "resume continues from what was saved"
    command: str = "resume"
    change: str = ""
    flags: tuple[str, ...] = ()


_NOTHING = "nothing is wrong: resume continues from what was saved"
_CODE = "correct the code, then resume with it"
_SITE = "resume; if it repeats, ask the site about that file system"
_CRASH = Cause.CRASH
KINDS: dict[Kind, Row] = {
    Kind.COMPLETED: Row(Cause.COMPLETED, "the run is complete", "nothing", "status"),
    Kind.RUNNING: Row(None, "the run trains", "nothing; the log shows more", "logs"),
    Kind.PENDING: Row(None, "its job waits in the queue", "wait", "status"),
    Kind.NEVER_STARTED: Row(None, "the run was frozen and never started", "start it"),
    Kind.SUSPENDED: Row(None, "Slurm has suspended the job", "wait", "status"),
    # A stop from outside.
    Kind.CANCELLED: Row(Cause.CANCELLED, "the job was cancelled", _NOTHING),
    Kind.INTERRUPTED: Row(
        Cause.INTERRUPTED, "Ctrl-C, a closed terminal or cancel stopped the run", _NOTHING
    ),
    Kind.TIME_LIMIT: Row(
        *(Cause.TIME_LIMIT, "the time limit was reached, or its warning came"),
        *("give the job more time", "resume", "<more time>"),
    ),
    Kind.PREEMPTION: Row(Cause.PREEMPTION, "Slurm preempted the job"),
    Kind.REQUEUED: Row(
        Cause.REQUEUED,
        "Slurm started the job again: a preemption without grace, or an administrator's requeue "
        "(Slurm does not show which)",
    ),
    Kind.MANUAL_STOP: Row(
        Cause.MANUAL_STOP, "a stop signal was sent by hand; Slurm did not preempt"
    ),
    Kind.NOT_SAVED: Row(
        None, "the job was warned and ended before it could save: raise slurm.signal_lead_s"
    ),
    Kind.NOT_REQUEUED: Row(
        *(None, "Slurm did not start the job again"),
        "let a successor job wait where Slurm refuses a requeue",
        change="slurm.restart=auto",
    ),
    Kind.SLURMCTLD_AWAY: Row(None, "slurmctld did not answer"),
    Kind.NODE_FAILURE: Row(
        Cause.NODE, "a node failed", "report the node to the site if it repeats, then resume"
    ),
    Kind.BAD_NODE: Row(
        Cause.NODE, "a node failed the preflight", "report the node to the site, then resume"
    ),
    Kind.SLOW_START_UP: Row(None, "the start-up is longer than the time until each stop"),
    Kind.BATCH_SCRIPT_KILLED: Row(
        Cause.LOST, "the batch script was killed before it could record the attempt"
    ),
    Kind.REFUSED: Row(
        *(None, "the job ended before it began an attempt"),
        "remove what the line names; if no other job runs the run, resume",
    ),
    Kind.STOPPED_IN_START_UP: Row(None, "a rank was asked to stop before its training loop"),
    # A failure of a rank.
    Kind.HANG: Row(
        *(Cause.HANG, "a hang"),
        *("look at the place where the named rank is, then resume", "logs"),
    ),
    Kind.COLLECTIVE: Row(
        *(_CRASH, "an exchange between the ranks failed (NCCL or gloo)"),
        "look at the network of the named node, then resume",
    ),
    Kind.NETWORK: Row(
        *(_CRASH, "a name or a server of the network cannot be reached from the node"),
        "fetch what the script needs before the run (nodes often have no way to the internet), or "
        "set the site's proxy in setup, then resume",
    ),
    Kind.PROCESS_KILLED: Row(_CRASH, "a process was killed"),
    Kind.OUT_OF_MEMORY: Row(
        *(Cause.OUT_OF_MEMORY, "a node has too little memory"),
        "give the job more memory, or use a smaller train.micro_batch_size",
        change="<more memory>",
    ),
    Kind.GPU_OUT_OF_MEMORY: Row(
        *(Cause.OUT_OF_MEMORY, "a GPU has too little memory"),
        "use a smaller train.micro_batch_size and more train.grad_accum_steps, or another "
        "train.strategy",
        change="<smaller batch>",
        flags=("yes",),
    ),
    Kind.GPU_ERROR: Row(
        _CRASH, "a GPU failed", "report the node to the site if it repeats, then resume"
    ),
    Kind.GPU_FAULT: Row(
        *(_CRASH, "a GPU or its link is broken (uncorrectable ECC or NVLink error, Xid)"),
        "report the node to the site, then resume",
    ),
    Kind.GPU_MISSING: Row(
        *(_CRASH, "a node has fewer GPUs than the job asked for"),
        "look at nvidia-smi on the node, report it to the site, then resume",
    ),
    Kind.IMPORT_ERROR: Row(
        *(_CRASH, "an import failed"),
        "install the module for launch.python, or correct the import, then resume",
        flags=("code",),
    ),
    Kind.USER_CODE: Row(_CRASH, "the user's code failed", _CODE, flags=("code",)),
    Kind.SPEC_MISTAKE: Row(
        *(_CRASH, "the spec or the launch has a mistake"),
        *("correct the key that the error names", "resume", "KEY=VALUE"),
        flags=("yes",),
    ),
    Kind.USAGE: Row(
        *(_CRASH, "the script refuses its command line"),
        *("correct launch.args", "resume", "launch.args=[...]"),
        flags=("yes",),
    ),
    Kind.SYNTAX_ERROR: Row(
        *(_CRASH, "the code is no valid Python for this interpreter", _CODE), flags=("code",)
    ),
    Kind.INTERPRETER: Row(
        *(_CRASH, "Python does not find its own library"),
        "unset PYTHONHOME and PYTHONPATH in setup, or correct launch.python, then resume",
    ),
    Kind.COMMAND_MISSING: Row(
        *(_CRASH, "a command is not on PATH there"),
        "load it in setup (module load, conda activate), or write its whole path, then resume",
    ),
    Kind.LIBRARY: Row(
        *(_CRASH, "a shared library is missing, broken or of another version"),
        "load what it belongs to in setup (module load), or correct LD_LIBRARY_PATH there, then "
        "resume",
    ),
    Kind.INSTRUCTION: Row(
        *(_CRASH, "the processor of the node lacks an instruction that the program was built for"),
        "choose other nodes (slurm.constraint), or a build for this processor, then resume",
    ),
    Kind.INTERFACE: Row(
        _CRASH,
        "a network interface that a variable or the spec names does not exist on the node",
        "set launch.interface, or correct GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, then resume",
    ),
    Kind.PORT: Row(
        *(_CRASH, "a port is in use by another process of the node"),
        "let the script choose a free port (0); MASTER_PORT is set by torchrun, then resume",
    ),
    Kind.NOT_FINITE: Row(
        *(_CRASH, "the training diverged"),
        *("use a lower train.lr, or train.grad_clip_norm", "resume", "<lower rate>"),
        flags=("yes",),
    ),
    Kind.SUPERSEDED: Row(_CRASH, "another attempt owns the run"),
    # A limit of the process or of the node.
    Kind.OPEN_FILES: Row(
        *(_CRASH, "a limit of the process is reached: open files"),
        "ulimit -n 65536 in setup, fewer data workers, or "
        "torch.multiprocessing.set_sharing_strategy('file_system'), then resume",
    ),
    Kind.FILE_SIZE: Row(
        *(_CRASH, "a limit of the process is reached: the size of a file"),
        "ulimit -f unlimited in setup, or ask the site, then resume",
    ),
    Kind.PROCESSES: Row(
        *(_CRASH, "a limit of the process is reached: processes and threads of the user"),
        "fewer data workers and threads, ulimit -u in setup, or ask the site, then resume",
    ),
    Kind.CPU_TIME: Row(
        *(_CRASH, "a limit of the process is reached: its CPU time"),
        "ulimit -t unlimited in setup (a job inherits the limit of a login node), or ask the site, "
        "then resume",
    ),
    Kind.SHARED_MEMORY: Row(
        _CRASH,
        "the shared memory of the node, /dev/shm, is full, or the disk of a file in memory (mmap)",
        "fewer data workers, or a larger /dev/shm (ask the site; of a container: its options), "
        "then resume",
    ),
    Kind.TEMPORARY_DIRECTORY: Row(
        _CRASH,
        "the directory for temporary files, TMPDIR, is missing, full, or its name is too long",
        "set TMPDIR in setup to a short, writable directory of the node, such as /tmp, then resume",
    ),
    # The disk.
    Kind.PERMISSION: Row(
        *(_CRASH, "the file system refuses the access"),
        "correct the permissions (ls -l, chmod), or name another file, then resume",
    ),
    Kind.STALE_FILE: Row(
        _CRASH, "another host replaced or deleted the file, or its server was restarted", _SITE
    ),
    Kind.DISK_FULL: Row(_CRASH, "the disk is full", "free space on that disk, then resume"),
    Kind.QUOTA: Row(
        *(_CRASH, "the quota of the disk is used up"),
        "free space there or ask for more quota, then resume",
    ),
    Kind.READ_ONLY: Row(
        *(_CRASH, "the directory cannot be written"),
        "make it writable, or name another one, then resume",
    ),
    Kind.DISK_ERROR: Row(
        _CRASH, "the server of the file did not answer, or the node lost it", _SITE
    ),
    Kind.RUN_DIRECTORY_GONE: Row(
        *(_CRASH, "the run directory was moved away or deleted"),
        "move the run directory back to its place, then resume",
    ),
    Kind.FILES_MISSING: Row(
        _CRASH, "a file is missing", "bring it back, or correct its path, then resume"
    ),
    Kind.DAMAGED_CHECKPOINT: Row(None, "a checkpoint is damaged and was put aside"),
    # A budget that turned a retry into a hold.
    Kind.MAX_CRASHES: Row(
        None, "launch.max_crashes crashes, or 10 of a script, without a step forward"
    ),
    Kind.MAX_RESTARTS: Row(
        *(None, "slurm.max_restarts restarts are used up"),
        *("allow more restarts", "resume", "<more restarts>"),
    ),
    Kind.NO_PROGRESS: Row(None, "five attempts in a row without a new checkpoint"),
    Kind.SHORT_TIME_LIMIT: Row(
        *(None, "three time limits in a row before the first optimizer step"),
        *("raise slurm.time above the start-up", "resume", "<more time>"),
    ),
    Kind.UNKNOWN: Row(_CRASH, "a rank failed", "read the log of the rank", "logs"),
}
