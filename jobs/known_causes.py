"""The known causes behind errors of any program: how to know one, its name, and what to do."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import HINT
from .kinds import KINDS, Kind


@dataclass(frozen=True)
class KnownCause:
    """A cause behind errors of many programs: how to know it, its name, and what to do.

    errnos, names: of a Python exception, names: of its classes; text: a pattern of what a program
    wrote. repeats: the next attempt would only repeat it; lasts: after the same failure twice, the
    third would, too.
    """

    kind: Kind
    errnos: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    text: str | None = None
    repeats: bool = False
    lasts: bool = False
    is_plain: bool = False  # the error itself names it
    # In place of what the table of kinds says:
    detail: str = ""
    remedy: str = ""

    @property
    def what(self) -> str:
        """What the cause is, in words that continue a sentence."""
        return self.detail or KINDS[self.kind].what

    @property
    def explanation(self) -> str:
        """Lines behind an error that does not name its cause: the cause, and what to do."""
        advice = self.remedy or KINDS[self.kind].advice.removesuffix(", then resume")
        return "" if self.is_plain else f"\n  cause: {self.what}{HINT}{advice}"


# What a file server answers that may work again in the next attempt.
PASSING = "Input/output error|Stale file handle|timed out|temporarily unavailable"
# The first one that fits counts: /dev/shm before the disk, a library before the import.
KNOWN_CAUSES = (
    KnownCause(
        Kind.SPEC_MISTAKE,
        text=r"Unable to create step for job \S+: (?:More processors requested|Memory required by"
        r"|Requested node configuration|Invalid (?:generic|[Tt]rackable|feature))",
        repeats=True,
        detail="the srun step of the agents asks for more than the job has",
        remedy="correct slurm.srun_args, slurm.mem or slurm.cpus_per_task",
    ),
    KnownCause(
        Kind.INTERPRETER,
        text=r"No module named 'encodings'|init_fs_encoding|init_import_site"
        r"|Failed to import the site module|SRE module mismatch",
        repeats=True,
    ),
    KnownCause(
        Kind.DISK_ERROR,
        text=rf"cannot open shared object file.*(?:{PASSING})",
        detail="the file system of a shared library did not answer",
    ),
    KnownCause(
        Kind.LIBRARY,
        text=r"(?:error while loading shared libraries|cannot open shared object file)"
        rf"(?!.*(?:{PASSING}|Too many open))"
        r"|undefined symbol: |version `\S+' not found|invalid ELF header|\.so\S*: file too short"
        r"|wrong ELF class|symbol lookup error|cannot enable executable stack",
        repeats=True,
    ),
    KnownCause(
        Kind.COMMAND_MISSING,
        text=r"command not found|\bsh: (?:\d+: )?\S+: not found|: line \d+: \S+: not found"
        r"|exec: \S+: not found|failed with exit code 127",
        repeats=True,
    ),
    KnownCause(
        Kind.SHARED_MEMORY,
        text=r"insufficient shared memory|out of shared memory|unable to (?:mmap|allocate) shared"
        r"|shared memory object|[Nn]o space left on device.*(?:/dev/shm|shm|/torch_)"
        r"|(?:/dev/shm|shm_open|/torch_).*[Nn]o space left on device"
        r"|is killed by signal: Bus error|^Bus error|killed by SIGBUS",
    ),
    KnownCause(
        Kind.TEMPORARY_DIRECTORY,
        names=("NoTemporaryDirectory",),
        text=r"No usable temporary directory|no temporary directory|AF_UNIX path too long"
        r"|(?:TMPDIR|/tmp/|/temp).*(?:[Nn]o space left on device|Read-only file system)"
        r"|(?:[Nn]o space left on device|Read-only file system).*(?:TMPDIR|'/tmp/)",
    ),
    KnownCause(
        Kind.OPEN_FILES,
        errnos=(errno.EMFILE, errno.ENFILE),
        text=r"Too many open files|received 0 items of ancdata",
    ),
    KnownCause(
        Kind.FILE_SIZE,
        errnos=(errno.EFBIG,),
        text=r"File too large|File size limit exceeded|SIGXFSZ",
    ),
    KnownCause(
        Kind.PROCESSES,
        errnos=(errno.EAGAIN,),
        text=r"can't start new thread|Resource temporarily unavailable|pthread_create failed"
        r"|Thread creation failed|Cannot fork|fork: retry",
    ),
    KnownCause(
        Kind.CPU_TIME,
        text=r"SIGXCPU|CPU time limit exceeded",
    ),
    KnownCause(
        Kind.GPU_OUT_OF_MEMORY,
        names=("OutOfMemoryError",),
        text=r"CUDA out of memory|HIP out of memory|CUDA error: out of memory|_STATUS_ALLOC_FAILED",
        remedy="a smaller batch, or another train.strategy",
    ),
    KnownCause(
        Kind.GPU_FAULT,
        # Source: CUDA runtime API, cudaError: 214, 220, 714, 721. Others pass by themselves.
        text=r"(?:CUDA|HIP) error: (?:uncorrectable|hardware stack error"
        r"|invalid access of peer GPU memory over nvlink)"
        r"|uncorrectable (?:ECC|NVLink) error|GPU is lost|fallen off the bus|NVRM: Xid",
        is_plain=True,
    ),
    KnownCause(
        Kind.GPU_MISSING,
        text=r"no CUDA-capable device is detected|No CUDA GPUs are available|no HIP GPUs are avail",
        is_plain=True,
    ),
    KnownCause(
        Kind.GPU_ERROR,
        text=r"CUDA error: (?!device-side assert|invalid device ordinal|no kernel image)"
        r"|HIP error: |Memory access fault by GPU|with error ?: HSA_STATUS_ERROR"
        r"|CU(?:DNN|BLAS|SOLVER|FFT)_STATUS_(?!ALLOC)",
        is_plain=True,
    ),
    KnownCause(
        Kind.OUT_OF_MEMORY,
        errnos=(errno.ENOMEM,),
        names=("MemoryError",),
        text=r"[Cc]annot allocate memory(?! in static TLS)|can't allocate memory|std::bad_alloc"
        r"|MemoryError|oom[-_]kill|Out Of Memory|[Oo]ut of memory|Exceeded .*memory limit"
        r"|is killed by signal: Killed|^Killed",
        detail="the process got no more memory: that of the node, of the job, or its limit "
        "(ulimit -v)",
        remedy="more slurm.mem, fewer data workers, a smaller batch, or ulimit -v unlimited in "
        "setup",
    ),
    KnownCause(
        Kind.INTERFACE,
        text=r"Unable to find (?:address|interface) for|no socket interface found"
        r"|No interface found|ifa != nullptr",
        repeats=True,
    ),
    KnownCause(
        Kind.PORT,
        errnos=(errno.EADDRINUSE,),
        text=r"[Aa]ddress already in use|EADDRINUSE",
    ),
    KnownCause(
        Kind.INSTRUCTION,
        text=r"Illegal instruction|SIGILL",
    ),
    KnownCause(
        Kind.QUOTA,
        errnos=(errno.EDQUOT,),
        text=r"Disk quota exceeded",
        is_plain=True,
    ),
    KnownCause(
        Kind.DISK_FULL,
        text=r"inline_container.*unexpected pos \d+ vs \d+",
        detail="torch could not write the whole file: the disk is full, its quota is used up, or a "
        "limit of the size of a file is reached (ulimit -f)",
        remedy="free space there",
    ),
    KnownCause(
        Kind.DISK_FULL,
        errnos=(errno.ENOSPC,),
        text=r"[Nn]o space left on device",
        is_plain=True,
    ),
    KnownCause(
        Kind.READ_ONLY,
        errnos=(errno.EROFS,),
        text=r"Read-only file system",
        is_plain=True,
        lasts=True,
    ),
    KnownCause(
        Kind.STALE_FILE,
        errnos=(errno.ESTALE,),
        text=r"Stale (?:NFS )?file handle",
    ),
    KnownCause(
        Kind.DISK_ERROR,
        errnos=(errno.EIO, errno.EREMOTEIO, errno.ESHUTDOWN, errno.ENOTCONN, errno.ENOLCK),
        text=r"Input/output error|Remote I/O error|[Tt]ransport endpoint|No locks available",
    ),
    KnownCause(
        Kind.NETWORK,
        errnos=(errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH),
        names=("gaierror",),
        text=r"[Nn]ame resolution|Name or service not known|Max retries exceeded with url"
        r"|Connection refused|Network is unreachable|No route to host|We couldn't connect to"
        r"|<urlopen error",
    ),
    KnownCause(
        Kind.USAGE,
        # Of argparse and its like, of absl, of Hydra.
        text=r"(?is:\berror\b.*^usage: )|^FATAL Flags parsing error"
        r"|^(?:Could not (?:override|append)|no viable alternative|mismatched input|extraneous "
        r"input|You must specify)(?s:.*)HYDRA_FULL_ERROR=1 for",
        repeats=True,
        is_plain=True,
    ),
    KnownCause(
        Kind.SYNTAX_ERROR,
        names=("SyntaxError",),
        repeats=True,
        is_plain=True,
    ),
    KnownCause(
        Kind.IMPORT_ERROR,
        names=("ImportError", "ModuleNotFoundError"),
        text=r"No module named|ModuleNotFoundError: |ImportError: ",
        repeats=True,
        is_plain=True,
    ),
    KnownCause(
        Kind.FILES_MISSING,
        names=("FileNotFoundError",),
        is_plain=True,
        lasts=True,
    ),
    KnownCause(
        Kind.PERMISSION,
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
