"""The ends of ranks and torchruns that wrote no record: what their logs and torchrun's output show.

The trainer records why it fails; a user's script, a rank that a signal ends and a torchrun that
finds no store do not.
"""

import itertools
import re
import signal
import textwrap
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from ..base import log_text
from ..base.errors import PEER_TEXTS
from ..contract.kinds import Kind
from ..contract.known_causes import REPEATED, UNSIGNED, known_cause, meaning
from ..contract.records.nodes import RankError
from ..contract.rundir import AttemptDir

# An entry of torchrun's summary; the entry of the rank that failed first is the last one. Source:
# torch.distributed.elastic.multiprocessing.errors.
_FAILURE = re.compile(
    r"^  time +: (?P<time>[\d:_-]+)\n  host +: \S+\n  rank +: (?P<rank>\d+) \(local_rank: \d+\)\n"
    r"  exitcode +: (?P<code>-?\d+) [^\n]*\n  error_file: (?P<error_file>\S+)\n"
    r"  traceback : (?P<trace>.*?)(?=^\[\d+\]:$|^-{20}|^={20}|\Z)",
    re.MULTILINE | re.DOTALL,
)
_FRAME = re.compile(r'^\s*File ".*", line \d+')
# What Python, torch, wandb and tqdm write behind the line that names the end.
_AFTER_END = re.compile(
    r"(?:\[rank\d+\]:)?\[[IW]\d|wandb: |CUDA kernel errors might be|For debugging consider passing"
    r"|Compile with .TORCH_USE_CUDA|Device-side assertion tracking|Search for .cuda"
    r"|.*resource_tracker|\S+:\d+: \w*Warning: |\s*warnings\.warn\(|[^|]*\d%\|[^]]*\]\s*$"
    r"|Set TORCHDYNAMO_|For further information visit"
)
# Of faulthandler, as a signal ends a rank, with the stacks; of objects that Python deletes last.
_BEHIND = re.compile(
    r"(?m)^(?:Fatal Python error: (?:Aborted|Segm|Bus |Floa|Ille)[\s\S]*"
    r"|(?:Exception ignored .*\n(?:Traceback .*\n(?: .*\n)*\S.*\n)?)+)\Z"
)
# Lines of the kit and of Slurm in job.log.
_NOT_PREFIX = re.compile(r"\d{4}-\d\d-\d\d \d\d:|(?:srun|slurmstepd)\S*: ")
_PEER_ERRORS = (*PEER_TEXTS, "DistBackendError", "DistNetworkError", "DistStoreError")


def ended_ranks(
    attempt_dir: AttemptDir, node_rank: int, host: str, recorded: Collection[int]
) -> list[RankError]:
    """Return a record of each rank that torchrun saw fail on a node, the first one first.

    recorded: the ranks that wrote a record themselves.
    """
    text = "\n".join(log_text.read_end(attempt_dir.torchrun_log(node_rank)))
    ends = reversed([*_FAILURE.finditer(text)])
    return [_record(attempt_dir, host, end) for end in ends if int(end["rank"]) not in recorded]


def _record(attempt_dir: AttemptDir, host: str, end: re.Match[str]) -> RankError:
    """Return the record of a rank, by the error file of torchelastic's @record, else by its log."""
    rank, code = int(end["rank"]), int(end["code"])
    log = log_text.last_lines(attempt_dir.rank_log(rank), 300)
    mark = f"[rank{rank}]: "  # torch puts it before a traceback that ends the script
    traceback = [line.removeprefix(mark) for line in log if line.startswith(mark)]
    if not any(map(_FRAME.match, traceback)):
        traceback = []  # a script's own log lines begin so
    if end["error_file"] != "<N/A>":
        traceback = textwrap.dedent(f"  {end['trace']}").strip().splitlines()
    words = _error_of(traceback)
    if not traceback:
        words, traceback = _last_line([line.removeprefix(mark) for line in log])
    is_peers = code == -signal.SIGTERM or any(each in words for each in _PEER_ERRORS)
    trace = "\n".join(traceback)
    text = trace[trace.rfind("\n  File ") + 1 :] or words
    cause = None if is_peers else known_cause(text)
    words = ": ".join(filter(None, (words, meaning(text))))
    # A shell shows the end of a program by signal N as 128 + N.
    of_exit = Kind.PROCESS_KILLED if code < 0 or code > 128 else Kind.USER_CODE
    of_exit = Kind.SPEC_MISTAKE if code == 2 else of_exit  # of a parser of options, by convention
    kind = cause or (Kind.COLLECTIVE if is_peers else of_exit)
    between = ": " if code > 0 else "; its last line: "
    second = time.mktime(time.strptime(end["time"], "%Y-%m-%d_%H:%M:%S"))
    return RankError(
        second + 0.999,  # at its end: a signal before it was a warning
        rank,
        host,
        f"{format_exit(code)}{between}{words}" if words else format_exit(code),
        kind=kind,
        traceback=trace,
        # torchrun sends SIGTERM to the other ranks of the node after the first one failed.
        caused_by_peer=is_peers,
        would_repeat=cause in REPEATED,
        exit_code=code,
    )


def _error_of(traceback: Sequence[str]) -> str:
    """Return the error of a traceback: what follows its last frame."""
    frame = max((n for n, line in enumerate(traceback) if _FRAME.match(line)), default=-1)
    error = itertools.dropwhile(lambda line: not line[:1].strip(), traceback[frame + 1 :])
    return "\n".join(error)


def _last_line(log: list[str]) -> tuple[str, list[str]]:
    """Return the last line of a log, and the lines before if it is the error of a traceback there.

    A script may have handled the error of a traceback before other lines.
    """
    log = _BEHIND.sub("", "".join(f"{line}\n" for line in log)).split("\n")
    lines = [line for line in log if re.search(r"\w", line) and not _AFTER_END.match(line)]
    is_error = bool(lines) and _error_of(lines) == lines[-1]
    return lines[-1].strip(" \t|│") if lines else "", lines if is_error else []


def format_exit(code: int) -> str:
    """Return `exited with code 3`, or `was killed by SIGSEGV`."""
    if code >= 0:
        return f"exited with code {code}"
    names = {each.value: each.name for each in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"


def torchrun_words(attempt_dir: AttemptDir, node_rank: int) -> str:
    """Return the last line of a torchrun; "" where it only reports the failure of its ranks.

    UNSIGNED where the state of its rendezvous is not of this run.
    """
    lines = log_text.last_lines(attempt_dir.torchrun_log(node_rank))
    if any("RendezvousStateError" in line for line in lines):
        return UNSIGNED
    is_of_ranks = any("ChildFailedError" in line or "SignalException" in line for line in lines)
    return lines[-1] if lines and not is_of_ranks else ""


def prefix_words(job_log: Path) -> list[str]:
    """Return the last line of a command prefix that began no agent; [] where it wrote nothing."""
    lines = (line for line in log_text.last_lines(job_log) if not _NOT_PREFIX.match(line))
    return [f"launch.command_prefix ended with: {line}" for line in [*lines][-1:]]
