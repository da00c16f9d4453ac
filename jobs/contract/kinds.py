"""What ends or delays a run: the names, and one table with what each means and what to do."""

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
    SEPARATE_TRAININGS = "separate_trainings"
    RUNNING = "running"
    PENDING = "pending"
    NEVER_STARTED = "never_started"
    # A stop from outside.
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    TIME_LIMIT = "time_limit"
    PREEMPTION = "preemption"
    REQUEUED = "requeued"
    MANUAL_STOP = "manual_stop"
    NOT_REQUEUED = "not_requeued"
    NODE_FAILURE = "node_failure"
    BAD_NODE = "bad_node"
    BATCH_SCRIPT_KILLED = "batch_script_killed"
    NOT_SAVED = "not_saved"  # a time limit ended the attempt before its save was done
    REFUSED = "refused"  # the job ended before it began an attempt
    # A rank was asked to stop before it reached its training loop.
    STOPPED_IN_START_UP = "stopped_in_start_up"
    # A failure of a rank.
    HANG = "hang"
    NOT_ENDED = "not_ended"
    COLLECTIVE = "collective"
    PROCESS_KILLED = "process_killed"
    OUT_OF_MEMORY = "out_of_memory"
    GPU_OUT_OF_MEMORY = "gpu_out_of_memory"
    GPU_FAULT = "gpu_fault"  # of the hardware, whatever the program does
    IMPORT_ERROR = "import_error"
    USER_CODE = "user_code"
    SPEC_MISTAKE = "spec_mistake"
    OTHER_DATA = "other_data"
    EXEC_FORMAT = "exec_format"
    PORT = "port"
    PROCESS_LIMIT = "process_limit"
    NOT_FINITE = "not_finite"
    # The disk.
    PERMISSION = "permission"
    DISK_FULL = "disk_full"
    QUOTA = "quota"
    DISK_ERROR = "disk_error"
    STALE_FILE = "stale_file"
    FILES_MISSING = "files_missing"
    # A budget that turned a retry into a hold.
    MAX_CRASHES = "max_crashes"
    MAX_RESTARTS = "max_restarts"
    NO_PROGRESS = "no_progress"
    UNKNOWN = "unknown"


# A lack of memory, which the next attempt may well meet again.
OF_MEMORY = (Kind.OUT_OF_MEMORY, Kind.GPU_OUT_OF_MEMORY)


class Row(NamedTuple):
    """A line of the table of kinds.

    cause: the class that the decision and the budgets count; None: it ends no attempt by itself.
    what: the beginning of the sentence about it. advice: what a person does; command, change,
    flags: with which command, as for `installation.command`; `...` is what the person chooses.
    """

    cause: Cause | None
    what: str
    advice: str = "resume continues from what was saved"
    command: str = "resume"
    change: str = ""
    flags: tuple[str, ...] = ()


_CRASH = Cause.CRASH
_YES = ("yes",)
_REPORT = "report the node to the site, then resume"
KINDS: dict[Kind, Row] = {
    Kind.COMPLETED: Row(Cause.COMPLETED, "the run is complete", "nothing", "status"),
    Kind.SEPARATE_TRAININGS: Row(
        *(Cause.COMPLETED, "the run is complete, but its ranks opened no common process group"),
        "fine if the ranks are independent; otherwise call init_process_group() in a new run",
        "status",
    ),
    Kind.RUNNING: Row(None, "the run trains", "nothing; the log shows more", "logs"),
    Kind.PENDING: Row(None, "its job waits", "wait, if the reason names nothing else", "status"),
    Kind.NEVER_STARTED: Row(None, "submitted, but never started", "start it"),
    # A stop from outside.
    Kind.CANCELLED: Row(Cause.CANCELLED, "the job was cancelled"),
    Kind.INTERRUPTED: Row(Cause.INTERRUPTED, "Ctrl-C, a closed terminal or cancel stopped the run"),
    Kind.TIME_LIMIT: Row(
        *(Cause.TIME_LIMIT, "the time limit was reached, or its warning came"),
        "give the job more time; if the log does not move, look there for a hang",
        *("resume", "slurm.time=..."),
    ),
    Kind.PREEMPTION: Row(Cause.PREEMPTION, "Slurm preempted the job"),
    Kind.REQUEUED: Row(Cause.REQUEUED, "Slurm or an administrator started the job again"),
    Kind.MANUAL_STOP: Row(Cause.MANUAL_STOP, "a stop signal was sent by hand"),
    Kind.NOT_REQUEUED: Row(
        *(None, "Slurm did not start the job again"),
        "resume queues another job; with slurm.restart=auto a successor waits in the queue",
    ),
    Kind.NODE_FAILURE: Row(Cause.NODE, "a node failed", f"if it repeats, {_REPORT}"),
    Kind.BAD_NODE: Row(Cause.NODE, "a node failed the preflight", _REPORT),
    Kind.BATCH_SCRIPT_KILLED: Row(Cause.LOST, "the batch script was killed, or could not record"),
    Kind.NOT_SAVED: Row(
        *(None, "the time limit came before the save was done"),
        *("give a save more time before the limit", "resume", "slurm.signal_lead_s=..."),
    ),
    Kind.REFUSED: Row(
        *(None, "the job ended before it began an attempt"),
        "remove what the reason names; if no other job runs the run, resume",
    ),
    Kind.STOPPED_IN_START_UP: Row(None, "a rank was asked to stop before its training loop"),
    # A failure of a rank.
    Kind.HANG: Row(Cause.HANG, "a hang", "look where the named rank is, then resume", "logs"),
    Kind.NOT_ENDED: Row(
        *(_CRASH, "a rank stays although another has exited with 0"),
        "its stack shows what keeps it: a thread, a process, atexit; or a peer that left too early",
        "logs",
    ),
    Kind.COLLECTIVE: Row(
        *(_CRASH, "an exchange between the ranks failed (NCCL or gloo)"),
        "look at the network of the named node, then resume",
    ),
    Kind.PROCESS_KILLED: Row(_CRASH, "a process was killed"),
    Kind.OUT_OF_MEMORY: Row(
        *(Cause.OUT_OF_MEMORY, "a node has too little memory"),
        *("give the job more memory, or use a smaller train.micro_batch_size", "resume"),
        "slurm.mem=...",
    ),
    Kind.GPU_OUT_OF_MEMORY: Row(
        *(Cause.OUT_OF_MEMORY, "a GPU has too little memory"),
        "use a smaller train.micro_batch_size (in an evaluation: train.eval_batch_size)",
        *("resume", "train.micro_batch_size=... train.grad_accum_steps=..."),
        flags=_YES,
    ),
    Kind.GPU_FAULT: Row(_CRASH, "a GPU or its link is broken (ECC, NVLink or Xid)", _REPORT),
    Kind.IMPORT_ERROR: Row(
        *(_CRASH, "an import failed"),
        "install it for launch.python (let git track one of your own), or correct the import",
        flags=("code", *_YES),
    ),
    Kind.USER_CODE: Row(
        *(_CRASH, "the user's code failed", "correct the code, then resume with it"),
        flags=("code", *_YES),
    ),
    Kind.SPEC_MISTAKE: Row(
        *(_CRASH, "the spec or the launch has a mistake"),
        "correct the key that the error names (of a script's own options: launch.args)",
        *("resume", "KEY=VALUE"),
        flags=_YES,
    ),
    Kind.OTHER_DATA: Row(
        *(_CRASH, "the data changed since an earlier start, or differs between ranks"),
        "bring the files back, or take the samples as they are now",
        flags=("code",),
    ),
    Kind.EXEC_FORMAT: Row(
        *(_CRASH, "a program is built for another architecture than its node"),
        *("name one that is built for the node, then resume", "resume", "launch.python=..."),
        flags=_YES,
    ),
    Kind.PORT: Row(
        *(_CRASH, "a port is in use by another process of the node"),
        "let the script choose a free port (0), then resume; torchrun sets MASTER_PORT",
    ),
    Kind.PROCESS_LIMIT: Row(
        *(_CRASH, "out of processes, threads, locks, open files or shared memory"),
        "use fewer data workers and threads, or raise the limit (ulimit -u, of files -n, in setup)",
    ),
    Kind.NOT_FINITE: Row(
        *(_CRASH, "the training diverged"),
        *("use a lower train.lr, or train.grad_clip_norm", "resume", "train.lr=..."),
        flags=_YES,
    ),
    # The disk.
    Kind.PERMISSION: Row(
        *(_CRASH, "the file system refuses the access"),
        "correct the permissions (ls -l, chmod), or name another file, then resume",
    ),
    Kind.DISK_FULL: Row(
        *(_CRASH, "the disk has no space, or no inodes for further files"),
        "delete files there (df shows the space, df -i the inodes, quota -s yours), then resume",
    ),
    Kind.QUOTA: Row(
        *(_CRASH, "the quota of the disk is used up, of space or of files"),
        "delete files there or ask for more quota, then resume",
    ),
    Kind.DISK_ERROR: Row(
        *(_CRASH, "the file server did not answer, or another host replaced the file"),
        "resume; if it repeats, ask the site about that file system",
    ),
    Kind.STALE_FILE: Row(
        *(_CRASH, "a file on a shared disk was replaced or deleted while it was in use (ESTALE)"),
        "keep caches on each node's own disk (launch.env: TRITON_CACHE_DIR, ...), then resume",
        *("resume", "launch.env.TRITON_CACHE_DIR=/tmp/..."),
        flags=_YES,
    ),
    Kind.FILES_MISSING: Row(
        _CRASH, "a file is missing", "bring it back, or correct its path, then resume"
    ),
    # A budget that turned a retry into a hold.
    Kind.MAX_CRASHES: Row(None, "launch.max_crashes crashes without progress between them"),
    Kind.MAX_RESTARTS: Row(
        *(None, "slurm.max_restarts restarts are used up"),
        *("allow more restarts", "resume", "slurm.max_restarts=..."),
    ),
    Kind.NO_PROGRESS: Row(
        None,
        "five attempts in a row without a new checkpoint",
        "read the log for what keeps it from its first save, then resume",
    ),
    Kind.UNKNOWN: Row(_CRASH, "a rank failed", "read the log of the rank", "logs"),
}
