"""The known causes behind errors of any program, and how to know each."""

import errno
import re
from collections.abc import Sequence
from typing import NamedTuple

from .kinds import KINDS, Kind

# What is wrong with a rendezvous whose state another process wrote.
UNSIGNED = "received data from a process outside this run"
ENDED = "torchrun ended: "  # its agent's last line in its log


class _KnownCause(NamedTuple):
    """How to know a cause: its kind, and what an error of it has.

    text: a pattern of what a program wrote. errnos, names: of a Python exception, the names of its
    classes. means: what a person reads behind the text, which does not say it.
    """

    kind: Kind
    text: str = ""
    errnos: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    means: str = ""


# The first one that fits counts.
_KNOWN_CAUSES = (
    _KnownCause(
        Kind.GPU_OUT_OF_MEMORY,
        r"CUDA out of memory|HIP out of memory|CUDA error: out of memory|_STATUS_ALLOC_FAILED",
        names=("OutOfMemoryError",),
    ),
    _KnownCause(
        Kind.GPU_FAULT,
        # Source: CUDA runtime API, cudaError: 214, 220, 714, 721. Others pass by themselves.
        r"(?:CUDA|HIP) error: (?:uncorrectable|hardware stack error"
        r"|invalid access of peer GPU memory over nvlink)"
        r"|uncorrectable (?:ECC|NVLink) error|GPU is lost|fallen off the bus|NVRM: Xid",
    ),
    _KnownCause(
        Kind.OUT_OF_MEMORY,
        r"[Cc]annot allocate memory|can't allocate memory|std::bad_alloc"
        r"|MemoryError|oom[-_]kill|[Oo]ut [Oo]f [Mm]emory|Exceeded .*memory limit|^Killed",
        (errno.ENOMEM,),
        ("MemoryError",),
    ),
    _KnownCause(
        Kind.STALE_FILE,
        r"[Ss]tale (?:NFS )?file handle|\bESTALE\b|\b(?:[Ee]rrno|os error) 116\b",
        (errno.ESTALE,),
    ),
    _KnownCause(
        Kind.PROCESS_LIMIT,
        # Behind a lock that another process holds there are the same words.
        r"can't start new thread|pthread_create|^(?!.*[Ll]ock\b).*Resource temporarily unavailable",
        (errno.EAGAIN,),
    ),
    _KnownCause(
        Kind.PROCESS_LIMIT,
        r"received 0 items of ancdata|[Tt]oo many open files",
        means="the limit of open files is too low (ulimit -n)",
    ),
    _KnownCause(
        Kind.PROCESS_LIMIT,
        r"</torch_.*[Nn]o space left on device|(?:out of|insufficient) shared memory",
        means="the shared memory of the node is full (/dev/shm), or of its container",
    ),
    _KnownCause(Kind.EXEC_FORMAT, r"[Ee]xec format error", (errno.ENOEXEC,)),
    _KnownCause(Kind.PORT, r"[Aa]ddress already in use|EADDRINUSE", (errno.EADDRINUSE,)),
    _KnownCause(Kind.QUOTA, r"Disk quota exceeded", (errno.EDQUOT,)),
    _KnownCause(
        Kind.DISK_FULL,
        # The second: torch.save, also at a quota. Source: caffe2/serialize/inline_container.cc
        r"[Nn]o space left on device|inline_container\.cc:\d+\] \. unexpected pos",
        (errno.ENOSPC,),
    ),
    _KnownCause(
        Kind.IMPORT_ERROR, r"No module named|(ModuleNotFound|Import)Error: ", names=("ImportError",)
    ),
    _KnownCause(
        Kind.PERMISSION,
        r"Permission denied|Read-only file system",
        (errno.EACCES, errno.EPERM, errno.EROFS),
        ("PermissionError",),
    ),
    _KnownCause(
        Kind.USER_CODE,
        r"\[Errno (?:2|17|39)\] .* -> ",  # of a rename or a link
        means="perhaps another process did it before: let only the process with RANK=0 save",
    ),
    _KnownCause(
        Kind.FILES_MISSING,
        r"^FileNotFoundError: \[Errno 2\] .*: '[^/'][^']*[/.][^']*'$",  # not of a program
        (errno.ENOENT, errno.ENOTDIR),
        ("FileNotFoundError",),
        "the script starts in RUN_DIR/work: name what git ignores in launch.inputs",
    ),
    _KnownCause(Kind.NODE_FAILURE, UNSIGNED),
    _KnownCause(Kind.COLLECTIVE, names=("DistBackendError",)),
    _KnownCause(
        Kind.SPEC_MISTAKE,
        # Options that a parser refused with another exit code than 2.
        r"HfArgumentParser|^[\w.]*(?:Validation|Config\w*|Argument\w*|Usage|Flags?\w*|Decoding"
        r"|Interpolation\w*)(?:Error|Exception)\b|^[\w.]*MissingMandatoryValue\b",
    ),
    _KnownCause(
        Kind.SPEC_MISTAKE,
        # Of os.environ; Python 3.13 shows its lines, too.
        r"""(?:<frozen os>|/os\.py)", .*, in __getitem__\n(?: .*\n)*KeyError: '((?!SLURM)\w+)'""",
        means=r"the variable \1 is not set: set it in setup or launch.env",
    ),
)
REPEATED = (Kind.IMPORT_ERROR, Kind.EXEC_FORMAT)  # the next attempt would only repeat these
# Classes of the errors of Python itself, or that code raises on purpose.
PLAIN = {"ValueError", "LookupError", "TypeError", "AttributeError", "AssertionError"}
PLAIN |= {"NameError", "ArithmeticError"}


def known_cause(
    text: str, names: Sequence[str] = (), error_number: int | None = None
) -> Kind | None:
    """Return the known cause behind an error; None if none fits.

    names, error_number: the classes of a Python exception, with their bases, and its errno. The
    text of an exception that the code itself raises, such as a ValueError, does not count.
    """
    has_text = PLAIN.isdisjoint(names)
    for cause in _KNOWN_CAUSES:
        if error_number in cause.errnos or not {*cause.names}.isdisjoint(names):
            return cause.kind
        if has_text and cause.text and re.search(cause.text, text, re.MULTILINE):
            return cause.kind
    return None


def meaning(text: str) -> str:
    """Return what a person reads behind a text that a program wrote; "" where that says it."""
    for cause in _KNOWN_CAUSES:
        if cause.text and (found := re.search(cause.text, text, re.MULTILINE)):
            return found.expand(cause.means)
    return ""


def way_out(error: OSError) -> str | None:
    """Return what a person does about an error of the disk or of a limit; None where not known."""
    kind = known_cause("", (), error.errno)
    known = (Kind.DISK_FULL, Kind.QUOTA, Kind.PERMISSION, Kind.PROCESS_LIMIT)
    return KINDS[kind].advice.partition(", then")[0] if kind in known else None
