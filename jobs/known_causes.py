"""The known causes behind errors of any program: how to know one, its name, and what to do."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_job_kit.jobs.errors import HINT
from slurm_job_kit.jobs.kinds import Kind


@dataclass(frozen=True)
class KnownCause:
    """A cause behind errors of many programs: how to know it, its name, and what to do.

    errnos, names: of a Python exception, names: of its classes; text: a pattern of what a program
    wrote. repeats: the next attempt would only repeat it; lasts: after the same failure twice, the
    third would, too.
    """

    kind: Kind
    what: str
    remedy: str
    errnos: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    text: str | None = None
    repeats: bool = False
    lasts: bool = False
    is_plain: bool = False  # the error itself names it

    @property
    def explanation(self) -> str:
        """Lines behind an error that does not name its cause: the cause, and what to do."""
        return "" if self.is_plain else f"\n  cause: {self.what}{HINT}{self.remedy}"


# What a file server answers that may work again in the next attempt.
PASSING = "Input/output error|Stale file handle|timed out|temporarily unavailable"
# The first one that fits counts: /dev/shm before the disk, a library before the import.
KNOWN_CAUSES = (
    KnownCause(
        Kind.SPEC_MISTAKE,
        "the srun step of the agents asks for more than the job has",
        "correct slurm.srun_args, slurm.mem or slurm.cpus_per_task",
        text=r"Unable to create step for job \S+: (?:More processors requested|Memory required by"
        r"|Requested node configuration|Invalid (?:generic|[Tt]rackable|feature))",
        repeats=True,
    ),
    KnownCause(
        Kind.INTERPRETER,
        "Python does not find its own library",
        "unset PYTHONHOME and PYTHONPATH in setup, or correct launch.python",
        text=r"No module named 'encodings'|init_fs_encoding|init_import_site"
        r"|Failed to import the site module|SRE module mismatch",
        repeats=True,
    ),
    KnownCause(
        Kind.DISK_ERROR,
        "the file system of a shared library did not answer",
        "resume; if it repeats, ask the site about that file system",
        text=rf"cannot open shared object file.*(?:{PASSING})",
    ),
    KnownCause(
        Kind.LIBRARY,
        "a shared library is missing, broken or of another version",
        "load what it belongs to in setup (module load), or correct LD_LIBRARY_PATH there",
        text=r"(?:error while loading shared libraries|cannot open shared object file)"
        rf"(?!.*(?:{PASSING}|Too many open))"
        r"|undefined symbol: |version `\S+' not found|invalid ELF header|\.so\S*: file too short"
        r"|wrong ELF class|symbol lookup error|cannot enable executable stack",
        repeats=True,
    ),
    KnownCause(
        Kind.COMMAND_MISSING,
        "a command is not on PATH there",
        "load it in setup (module load, conda activate), or write its whole path",
        text=r"command not found|\bsh: (?:\d+: )?\S+: not found|: line \d+: \S+: not found"
        r"|exec: \S+: not found|failed with exit code 127",
        repeats=True,
    ),
    KnownCause(
        Kind.SHARED_MEMORY,
        "the shared memory of the node, /dev/shm, is full, or the disk of a file in memory (mmap)",
        "fewer data workers, or a larger /dev/shm (ask the site; of a container: its options)",
        text=r"insufficient shared memory|out of shared memory|unable to (?:mmap|allocate) shared"
        r"|shared memory object|[Nn]o space left on device.*(?:/dev/shm|shm|/torch_)"
        r"|(?:/dev/shm|shm_open|/torch_).*[Nn]o space left on device"
        r"|is killed by signal: Bus error|^Bus error|killed by SIGBUS",
    ),
    KnownCause(
        Kind.TEMPORARY_DIRECTORY,
        "the directory for temporary files, TMPDIR, is missing, full, or its name is too long",
        "set TMPDIR in setup to a short, writable directory of the node, such as /tmp",
        names=("NoTemporaryDirectory",),
        text=r"No usable temporary directory|no temporary directory|AF_UNIX path too long"
        r"|(?:TMPDIR|/tmp/|/temp).*[Nn]o space left on device"
        r"|[Nn]o space left on device.*(?:TMPDIR|'/tmp/)",
    ),
    KnownCause(
        Kind.OPEN_FILES,
        "a limit of the process is reached: open files",
        "ulimit -n 65536 in setup, fewer data workers, or "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
        errnos=(errno.EMFILE, errno.ENFILE),
        text=r"Too many open files|received 0 items of ancdata",
    ),
    KnownCause(
        Kind.FILE_SIZE,
        "a limit of the process is reached: the size of a file",
        "ulimit -f unlimited in setup, or ask the site",
        errnos=(errno.EFBIG,),
        text=r"File too large|File size limit exceeded|SIGXFSZ",
    ),
    KnownCause(
        Kind.PROCESSES,
        "a limit of the process is reached: processes and threads of the user",
        "fewer data workers and threads, ulimit -u in setup, or ask the site",
        errnos=(errno.EAGAIN,),
        text=r"can't start new thread|Resource temporarily unavailable|pthread_create failed"
        r"|Thread creation failed|Cannot fork|fork: retry",
    ),
    KnownCause(
        Kind.CPU_TIME,
        "a limit of the process is reached: its CPU time",
        "ulimit -t unlimited in setup (a job inherits the limit of a login node), or ask the site",
        text=r"SIGXCPU|CPU time limit exceeded",
    ),
    KnownCause(
        Kind.GPU_OUT_OF_MEMORY,
        "a GPU has too little memory",
        "a smaller batch, or another train.strategy",
        names=("OutOfMemoryError",),
        text=r"CUDA out of memory|HIP out of memory|CUDA error: out of memory|_STATUS_ALLOC_FAILED",
    ),
    KnownCause(
        Kind.GPU_ERROR,
        "a GPU failed",
        "report the node to the site if it repeats",
        text=r"CUDA error: (?!device-side assert|invalid device ordinal|no kernel image)"
        r"|HIP error: |Memory access fault by GPU|with error ?: HSA_STATUS_ERROR"
        r"|CU(?:DNN|BLAS|SOLVER|FFT)_STATUS_(?!ALLOC)|uncorrectable ECC",
        is_plain=True,
    ),
    KnownCause(
        Kind.OUT_OF_MEMORY,
        "the process got no more memory: that of the node, of the job, or its limit (ulimit -v)",
        "more slurm.mem, fewer data workers, a smaller batch, or ulimit -v unlimited in setup",
        errnos=(errno.ENOMEM,),
        names=("MemoryError",),
        text=r"[Cc]annot allocate memory(?! in static TLS)|can't allocate memory|std::bad_alloc"
        r"|MemoryError|oom[-_]kill|Out Of Memory|[Oo]ut of memory|Exceeded .*memory limit"
        r"|is killed by signal: Killed|^Killed",
    ),
    KnownCause(
        Kind.INTERFACE,
        "a network interface that a variable or the spec names does not exist on the node",
        "set launch.interface, or correct GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME",
        text=r"Unable to find (?:address|interface) for|no socket interface found"
        r"|No interface found|ifa != nullptr",
        repeats=True,
    ),
    KnownCause(
        Kind.PORT,
        "a port is in use by another process of the node",
        "let the script choose a free port (0); MASTER_PORT is set by torchrun",
        errnos=(errno.EADDRINUSE,),
        text=r"[Aa]ddress already in use|EADDRINUSE",
    ),
    KnownCause(
        Kind.INSTRUCTION,
        "the processor of the node lacks an instruction that the program was built for",
        "choose other nodes (slurm.constraint), or a build for this processor",
        text=r"Illegal instruction|SIGILL",
    ),
    KnownCause(
        Kind.QUOTA,
        "the quota of the disk is used up",
        "free space there or ask for more quota",
        errnos=(errno.EDQUOT,),
        text=r"Disk quota exceeded",
        is_plain=True,
    ),
    KnownCause(
        Kind.DISK_FULL,
        "torch could not write the whole file: the disk is full, its quota is used up, or a limit "
        "of the size of a file is reached (ulimit -f)",
        "free space there",
        text=r"inline_container.*unexpected pos \d+ vs \d+",
    ),
    KnownCause(
        Kind.DISK_FULL,
        "the disk is full",
        "free space there",
        errnos=(errno.ENOSPC,),
        text=r"[Nn]o space left on device",
        is_plain=True,
    ),
    KnownCause(
        Kind.READ_ONLY,
        "the directory cannot be written",
        "make it writable, or name another one",
        errnos=(errno.EROFS,),
        text=r"Read-only file system",
        is_plain=True,
        lasts=True,
    ),
    KnownCause(
        Kind.STALE_FILE,
        "another host replaced or deleted the file, or its server was restarted",
        "resume; if it repeats, ask the site about that file system",
        errnos=(errno.ESTALE,),
        text=r"Stale (?:NFS )?file handle",
    ),
    KnownCause(
        Kind.DISK_ERROR,
        "the server of the file did not answer, or the node lost it",
        "resume; if it repeats, ask the site about that file system",
        errnos=(errno.EIO, errno.EREMOTEIO, errno.ESHUTDOWN, errno.ENOTCONN, errno.ENOLCK),
        text=r"Input/output error|Remote I/O error|[Tt]ransport endpoint|No locks available",
    ),
    KnownCause(
        Kind.NETWORK,
        "a name or a server of the network cannot be reached from the node",
        "fetch what the script needs before the run (nodes often have no way to the internet), or "
        "set the site's proxy in setup",
        errnos=(errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH),
        names=("gaierror",),
        text=r"[Nn]ame resolution|Name or service not known|Max retries exceeded with url"
        r"|Connection refused|Network is unreachable|No route to host|We couldn't connect to"
        r"|<urlopen error",
    ),
    KnownCause(
        Kind.USAGE,
        "the script refuses its command line",
        "correct launch.args",
        # Of argparse and its like, of absl, of Hydra.
        text=r"(?is:\berror\b.*^usage: )|^FATAL Flags parsing error"
        r"|^(?:Could not (?:override|append)|no viable alternative|mismatched input|extraneous "
        r"input|You must specify)(?s:.*)HYDRA_FULL_ERROR=1 for",
        repeats=True,
        is_plain=True,
    ),
    KnownCause(
        Kind.SYNTAX_ERROR,
        "the code is no valid Python for this interpreter",
        "correct the code",
        names=("SyntaxError",),
        repeats=True,
        is_plain=True,
    ),
    KnownCause(
        Kind.IMPORT_ERROR,
        "an import failed",
        "install the module for launch.python, or correct the import",
        names=("ImportError", "ModuleNotFoundError"),
        text=r"No module named|ModuleNotFoundError: |ImportError: ",
        repeats=True,
        is_plain=True,
    ),
    KnownCause(
        Kind.FILES_MISSING,
        "a file is missing",
        "bring it back, or correct its path",
        names=("FileNotFoundError",),
        is_plain=True,
        lasts=True,
    ),
    KnownCause(
        Kind.PERMISSION,
        "the file system refuses the access",
        "correct the permissions (ls -l, chmod), or name another file",
        errnos=(errno.EACCES, errno.EPERM),
        names=("PermissionError",),
        text=r"Permission denied",
        is_plain=True,
        lasts=True,
    ),
)
PLAIN = {
    *("ValueError", "LookupError", "KeyError", "IndexError", "TypeError", "AttributeError"),
    *("AssertionError", "NameError", "ArithmeticError", "ZeroDivisionError", "UnicodeError"),
}
CAUSE_OF = {cause.kind: cause for cause in KNOWN_CAUSES}


def known_cause(
    text: str, names: Sequence[str] = (), error_number: int | None = None
) -> KnownCause | None:
    """Return the known cause behind an error; None if none fits.

    names, error_number: the classes of a Python exception, with their bases, and its errno. The
    text of an exception that the code itself raises, such as a ValueError, does not count.
    """
    has_text = PLAIN.isdisjoint(names)
    for cause in KNOWN_CAUSES:
        if error_number in cause.errnos or not {*cause.names}.isdisjoint(names):
            return cause
        if has_text and cause.text is not None and re.search(cause.text, text, re.MULTILINE):
            return cause
    return None
