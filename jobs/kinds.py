"""The names of what ends or delays a run."""

from enum import StrEnum


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
