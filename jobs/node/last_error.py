"""The last error in the text of a log, complete: what ended the process that wrote it.

A process writes its error behind its other output. Behind the error may stand what the exit of the
process prints. An error that the process caught, printed and survived is not what ended it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from ..log_text import first_line

HEADER = "Traceback (most recent call last)"
HEAD = re.escape(HEADER)
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
ORIGINAL = f"Original {HEADER}:"  # a data worker's, in the message of its parent
# The frame at which an error leaves a program, or a process that Python started: nothing caught it.
_OUTERMOST = re.compile(
    r"in <module>|_run_module_as_main|_run_code|<frozen runpy>"
    r"|in (?:_bootstrap|_wrap|_process_worker|worker|run_torchrun)$"
)
# What an error's first line begins with: `torch.cuda.OutOfMemoryError: `, `KeyError`.
_ERROR = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: |:?$)")
# `[rank3]: ` of torch, `[default0]:` of torchrun, `3: ` of srun --label.
_PREFIX = re.compile(r"^(?:\[(?:rank|default)\d+\]: ?|\d{1,4}: (?=\[rank\d+\]: ))")
# Output of the exit, of loggers of other libraries, and of programs that report their child's end.
_EXIT = re.compile(
    r"^\s*$|^wandb: |Warning: |Warning$|^\[?[WI]\d{4} |^\[rank\d+\]:\[[WI]|^Exception ignored in"
    r"|^[EWI]\d{4} \d\d:\d\d|^srun: error: \S+: task|^srun: (?!error|fatal)|CANCELLED AT "
    r"|^Set the environment variable HYDRA_FULL_ERROR=1|^Error executing job with overrides: "
    r"|^Aborted|leaked \w+ objects|warnings\.warn\(|^[\W_]+$"
    r"|exits with return code = |^Setting OMP_NUM_THREADS|^\S*make(?:\[\d+\])?: \*\*\* "
)
_TIME = r"\[?\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d"
# Lines of a training that goes on: of its steps, and of its logger.
_STEP = re.compile(r"\d+/\d+|\d+%\||(?i:^\W*(?:step|epoch|iter\w*|loss)\b[ :=]*\d)")
_LOG = re.compile(rf"^{_TIME}|^(?:INFO|DEBUG|WARNING)\b")
_STEP_IN_LOG = re.compile(r"(?i:\b(?:step|epoch|iter\w*|loss)\b[ :=]*\d)")
# An error in a line of a logger.
_LOGGED = re.compile(
    rf"^{_TIME}[^a-z]{{0,40}}\b(?:ERROR|CRITICAL|FATAL)\b|^\[?(?:ERROR|CRITICAL|FATAL)\b[\]:]"
    r"|^\[?E\d{4} \S+ \S*(?:NCCL|Gloo|CUDA)"
)
# An error by which a process ends at once: of C++, glibc, glog, XLA, Rust, Fortran and Python.
_FATAL = re.compile(
    r"^terminate called |^libc\+\+abi: |^Fatal Python error: |^\*\*\* stack smashing"
    r"|^(?:malloc|free|realloc|calloc|munmap_chunk|corrupted|double free|tcache)\b.*"
    rf"|^F\d{{4}} \d\d:\d\d:|^{_TIME}[\d:.]*: F |^thread '.*' panicked at |^forrtl: severe"
    r"|: Assertion `.*' failed\.$|^Python path configuration:"
)
# The stack behind the words of such an error.
_STACK = re.compile(r"^frame #\d|^Exception raised from |^\*\*\* Check failure|^note: run with|^$")
# Python's dump of its stack at a signal. What sent the signal wrote its error directly before it.
_DUMP = "Fatal Python error: "
# The last line of an error that Hydra shows without its traceback; the error is directly above it.
HYDRA_END = "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."
# Other errors of programs and libraries without a Python traceback, by their first line.
_NATIVE = re.compile(
    r"^usage: |^Usage: "
    r"|^(?:Bus error|Killed|Segmentation fault|Illegal instruction|File size limit exceeded)"
    r"|error while loading shared libraries|symbol lookup error|: line \d+: "
    r"|^(?:srun|slurmstepd): (?:error|fatal): |^FATAL: "
    r"|^ERROR: Unexpected \w+|^OpenBLAS |^libgomp: |^RuntimeError: DataLoader worker"
)
# The error of a process that only reports the end of another one, which wrote its own.
_OF_CHILD = (
    "CalledProcessError",
    "ChildFailedError",
    "ProcessExitedException",
    "BrokenProcessPool",
)
# Of a data loader, whose worker wrote its own.
_WORKER = re.compile(r"^RuntimeError: DataLoader worker")
_STARTS = re.compile(r"(?i)\b(?:error|fatal|failed|cannot|can't|abort|exception|refus\w+)\b|:$")
_METRIC = re.compile(r"(?i)\berror\b\W*(?:\w+\W+)?(?:\d*\.\d+(?:e[-+]?\d+)?%?|\d+%)$")
_BOX = "│╭╰╮╯─┃┏┗"
OUTPUT_BEFORE = "the last output before it: "  # of the end of another process
MAX_WORDS = 10  # lines
MAX_FRAMES = 8  # of the thread in which the interpreter failed


@dataclass(frozen=True)
class LastError:
    """The last error of a log. text: its words; "" if there is none.

    name: the class of a Python exception, without its module. traceback: with what came before it.
    is_known: False for last words of which only their place in the log is known. is_logged: in a
    line of a logger, behind which a process may go on.
    """

    text: str = ""
    name: str = ""
    traceback: str = ""
    is_known: bool = True
    is_logged: bool = False


class _Behind(Enum):
    """What may stand behind an error that ended the process: else the process went on."""

    NOTHING = auto()
    NO_STEPS = auto()
    ANYTHING = auto()


@dataclass(frozen=True)
class _Found:
    """An error in a log: its lines from `begin` up to `end`."""

    begin: int
    end: int
    error: LastError
    behind: _Behind = _Behind.NOTHING


def last_error(
    lines: Sequence[str],
    may_be_uncaught: bool = True,
    takes_words: bool = True,
    main: str | None = None,
) -> LastError:
    """Return the last error of a log.

    may_be_uncaught: a process of the log may have ended by an exception that nothing caught.
    takes_words: without an error the last words of the log are returned.
    main: the script of a process that reported no such exception: it is of another process.
    """
    text = _remove_prefixes(lines)
    trace, native = _last_traceback(text, may_be_uncaught, main), _last_native(text)
    error = max(filter(None, (trace, native)), key=lambda each: each.end, default=None)
    instead = _words_behind(text, error, takes_words)
    if error is None or instead is not None:
        return instead or LastError()
    is_of_child = error.error.name in _OF_CHILD or _WORKER.search(error.error.text) is not None
    child = last_error(text[: error.begin]) if is_of_child else LastError()
    own = is_of_child and _of_summary(error.error.name, text[error.begin :])
    own = own or error.error.text
    if not child.text or not child.is_known:
        more = f"\n{OUTPUT_BEFORE}{child.text}" if child.text else ""
        return replace(error.error, text=own + more)
    return replace(child, text=f"{child.text}\n({first_line(own)})")


def _of_summary(name: str, lines: Sequence[str]) -> str:
    """Return what a torchrun inside a script reports of the first failed rank; "" if nothing."""
    root = "\n".join(lines).partition("Root Cause")[2]
    rank, code = (re.search(rf"{key} +: (-?\d+) .*", root) for key in ("rank", "exitcode"))
    if rank is None or code is None:
        return ""
    number = re.search(r"\((SIG\w+)\)", code[0])
    how = f"was killed by {number[1]}" if number else f"exited with code {code[1]}"
    return f"{name}: rank {rank[1]} of a torchrun inside {how}"


def _remove_prefixes(lines: Sequence[str]) -> list[str]:
    """Return the lines without what another program has put before each, such as `[train] `."""
    # The second pattern: in the summary of a torchrun.
    text = [_PREFIX.sub("", re.sub(rf"^  traceback : (?={HEAD})", "  ", line)) for line in lines]
    header = next((line for line in reversed(text) if HEADER in line), "")
    prefix = header.partition(HEADER)[0]
    if not prefix.strip(" |+" + _BOX) or header.startswith(ORIGINAL) or len(prefix) > 80:
        return text
    numbers = re.compile(re.sub(r"\d+", r"\\d+", re.escape(prefix)))
    return [numbers.sub("", line, count=1) if numbers.match(line) else line for line in text]


def _is_step(line: str) -> bool:
    """Return whether a line shows that a training goes on."""
    return bool(_STEP.search(line) or (_LOG.search(line) and _STEP_IN_LOG.search(line)))


def _is_noise(line: str) -> bool:
    if _LOGGED.search(line):
        return False
    return bool(_EXIT.search(line) or _STEP.search(line) or _LOG.search(line))


def _words_behind(
    lines: Sequence[str], error: _Found | None, takes_words: bool
) -> LastError | None:
    """Return what the log has behind an error that did not end the process; None if it did."""
    begin = 0 if error is None else error.end
    behind = [n for n in range(begin, len(lines)) if not _EXIT.search(lines[n])]
    is_going_on = any(_is_step(lines[n]) for n in behind)
    if error is not None:
        if error.behind is _Behind.ANYTHING or not behind:
            return None
        if error.behind is _Behind.NO_STEPS and not is_going_on:
            return None
    words = [n for n in behind if not _is_noise(lines[n])]
    is_short = takes_words and not is_going_on and len(behind) <= MAX_WORDS
    if not words:
        return None if error is not None and is_short else LastError()
    if not takes_words:
        return LastError()
    last = _words(lines, begin, words[-1])
    if last.is_known or error is None or not is_short:
        return last
    if error.error.is_logged:
        return None
    return replace(last, text=f"{error.error.text}\n{last.text}") if words == behind else last


def _words(lines: Sequence[str], begin: int, last: int) -> LastError:
    """Return a log's last words: from its last line that announces something, if there is one."""
    start = last
    while start > begin and lines[start][:1].isspace():
        start -= 1
    is_known = False
    for number in range(start, max(begin, last - MAX_WORDS) - 1, -1):
        if _is_noise(lines[number]):
            break
        if _STARTS.search(lines[number]) and not _METRIC.search(lines[number]):
            start, is_known = number, True
    text = "\n".join(line.strip(_BOX).rstrip() for line in lines[start : last + 1]).strip()
    return LastError(text, is_known=is_known)


def _last_traceback(lines: Sequence[str], may_be_uncaught: bool, main: str | None) -> _Found | None:
    """Return the last traceback of a log, with its chain."""
    headers = [number for number, line in enumerate(lines) if HEADER in line]
    if not headers:
        return _syntax_error(lines)
    last = headers[-1]
    begin = last
    while (earlier := _header_of_cause(lines, headers, begin)) is not None:
        begin = earlier
    inner = lines[last].lstrip().startswith(ORIGINAL)
    if inner:  # the parent's traceback is before it
        begin = max((n for n in headers if n < last and ORIGINAL not in lines[n]), default=last)
    at = _end_of_frames(lines, last)
    if at >= len(lines):
        return _Found(begin, len(lines), LastError())
    behind = _behind_traceback(lines, begin, inner and begin == last, main)
    behind = behind if may_be_uncaught else _Behind.NOTHING
    if "Exception Group" in lines[last]:
        end = _end_of_group(lines, last)
    else:
        end = _end_of_message(lines, at, behind is not _Behind.NOTHING)
    text = _remove_frame(lines[at:end])
    if inner:
        text += f"\n({lines[last - 1].strip()})"
    first = _first_in_chain(lines, begin, last)
    text += f"\nfirst cause: {first}" if first and not inner else ""
    name = _ERROR.match(text)
    error = LastError(
        text,
        name[1].rpartition(".")[2] if name else "",
        "\n".join(lines[begin:end]).rstrip(),
    )
    return _Found(begin, end, error, behind)


def _behind_traceback(
    lines: Sequence[str], begin: int, is_outermost: bool, main: str | None
) -> _Behind:
    """Return what may stand behind a traceback that nothing caught, by its outermost frames."""
    frames = lines[begin : begin + 4]
    is_outermost = is_outermost or any(map(_OUTERMOST.search, frames))
    if not is_outermost or lines[max(0, begin - 1)].startswith("Exception in thread"):
        return _Behind.NOTHING
    if main is None:
        return _Behind.ANYTHING
    is_mains = any(f'File "{main}"' in line for line in frames[:2])
    return _Behind.NOTHING if is_mains else _Behind.NO_STEPS


def _header_of_cause(lines: Sequence[str], headers: Sequence[int], begin: int) -> int | None:
    """Return the header of the traceback of which that at `begin` is a consequence."""
    between = [line.strip(" |+") for line in lines[max(0, begin - 3) : begin]]
    if not any(line in _CHAINED for line in between):
        return None
    return max((number for number in headers if number < begin), default=None)


def _first_in_chain(lines: Sequence[str], begin: int, last: int) -> str:
    if begin == last:
        return ""
    at = _end_of_frames(lines, begin)
    return lines[at].strip(" |") if at < last else ""


def _end_of_frames(lines: Sequence[str], header: int) -> int:
    """Return the line with the error of a traceback."""
    margin = len(lines[header]) - len(lines[header].lstrip(" |+"))
    at = header + 1
    while at < len(lines):
        line = lines[at]
        inside = line[margin:] if not line[:margin].strip(" |+") else line
        if inside and inside[0] not in " \t|>" + _BOX:  # loguru marks a frame by >
            break
        at += 1
    return at


def _end_of_group(lines: Sequence[str], header: int) -> int:
    ends = [n for n in range(header, len(lines)) if re.match(r"^\s*\+-{30,}\s*$", lines[n])]
    return ends[-1] + 1 if ends else len(lines)


def _end_of_message(lines: Sequence[str], at: int, is_uncaught: bool) -> int:
    """Return the line behind a message: its further lines are known only because they follow."""
    end = at + 1
    while end < len(lines):
        line = lines[end]
        is_further = bool(line.strip()) and not _is_noise(line) and not _NATIVE.search(line)
        if not line.strip():
            rest = [each for each in lines[end:] if each.strip()]
            is_further = is_uncaught and bool(rest) and not _is_noise(rest[0])
        if not is_further or not (is_uncaught or line[:1].isspace()):
            break
        end += 1
    return end


def _remove_frame(lines: Sequence[str]) -> str:
    """Return the lines of an error without the frame of a group."""
    kept = [re.sub(r"^(\s*)(?:\| ?|\+-\+?-{5,}.*$|\+-{5,}.*$)", r"\1", line) for line in lines]
    return "\n".join(line.rstrip() for line in kept if line.strip()).strip()


def _syntax_error(lines: Sequence[str]) -> _Found | None:
    """Return a mistake in the script's own grammar, which Python shows without the header."""
    for number in range(len(lines) - 1, 0, -1):
        if re.match(r"^(?:SyntaxError|IndentationError|TabError): ", lines[number]):
            begin = number
            while begin > 0 and lines[begin - 1].startswith(" "):
                begin -= 1
            if not lines[begin].startswith('  File "'):
                return None
            text = "\n".join([lines[number], *lines[begin:number]])
            trace = "\n".join(lines[begin : number + 1])
            error = LastError(text, lines[number].partition(":")[0], trace)
            return _Found(begin, number + 1, error, _Behind.ANYTHING)
    return None


def _last_native(lines: Sequence[str]) -> _Found | None:
    """Return the last error of a program without a Python traceback, or in a line of a logger."""
    for begin in range(len(lines) - 1, -1, -1):
        line = lines[begin]
        if _FATAL.search(line):
            return _with_dump(lines, _fatal(lines, begin))
        if line == HYDRA_END and (refused := _refused_by_hydra(lines, begin)) is not None:
            return refused
        is_logged = _LOGGED.search(line) is not None
        if not is_logged and (not _NATIVE.search(line) or _is_noise(line)):
            continue
        if line.startswith(("usage: ", "Usage: ")):
            return _usage(lines, begin)
        end = begin + 1
        while end < len(lines) and (lines[end][:1].isspace() and lines[end].strip()):
            end += 1
        text = "\n".join(each.rstrip() for each in lines[begin:end]).strip()
        return _Found(begin, end, LastError(text, is_logged=is_logged))
    return None


def _with_dump(lines: Sequence[str], error: _Found) -> _Found:
    """Return a fatal error; a dump of Python with the earlier error that aborted the process."""
    if not lines[error.begin].startswith(_DUMP):
        return error
    before = _last_native(lines[: error.begin])
    if before is None or any(line.strip() for line in lines[before.end : error.begin]):
        return error
    text = f"{before.error.text}\n{error.error.text}"
    return replace(error, begin=before.begin, error=replace(before.error, text=text))


def _refused_by_hydra(lines: Sequence[str], end: int) -> _Found | None:
    """Return what Hydra refuses before it runs the program: overrides, or its configuration."""
    last = end
    while last > 0 and not lines[last - 1].strip():
        last -= 1
    begin = last
    for number in range(last - 1, max(-1, last - 1 - MAX_WORDS), -1):
        line = lines[number]
        if HEADER in line or line.startswith("Error executing job with overrides"):
            return None
        if not line.strip() or _is_noise(line):
            break
        if not line[:1].isspace():
            begin = number
    text = "\n".join(line.rstrip() for line in [*lines[begin:last], HYDRA_END])
    return _Found(begin, end + 1, LastError(text)) if begin < last else None


def _fatal(lines: Sequence[str], begin: int) -> _Found:
    """Return an error that ends a process at once; of the interpreter with its newest frames."""
    end = begin + 1
    while end < len(lines) and not (_STACK.search(lines[end]) or _is_step(lines[end])):
        end += 1
    words, behind = [line.rstrip() for line in lines[begin:end]], lines[end:]
    at = next((n for n, line in enumerate(behind) if line.startswith("Current thread")), None)
    if at is not None:
        stack = [line.rstrip() for line in behind[at + 1 :] if "<no Python frame>" not in line]
        is_frame = [line.startswith("  File") for line in stack]
        words += stack[: min([MAX_FRAMES, *(n for n, each in enumerate(is_frame) if not each)])]
    thrown = re.search(r"instance of '(?:\w+::)*(\w+)'", lines[begin])
    error = LastError("\n".join(words), thrown[1] if thrown else "")
    of_stack = (n for n in range(len(lines), end, -1) if re.match(r"frame #|    @ ", lines[n - 1]))
    is_dump = at is not None or lines[begin].startswith("Python path")
    stack_end = len(lines) if is_dump else next(of_stack, end)
    return _Found(begin, stack_end, error, _Behind.NO_STEPS)


def _usage(lines: Sequence[str], begin: int) -> _Found | None:
    """Return a command line's refusal, with the usage below or above; None for a usage alone."""
    above = next((n for n in range(begin - 1, max(-1, begin - 4), -1) if lines[n].strip()), begin)
    for number in (*range(begin, min(len(lines), begin + 60)), above):
        if re.search(r"(?i)\berror\b", lines[number]):
            end = max(number, begin) + 1
            while end < len(lines) and (lines[end][:1] in _BOX or lines[end][:1].isspace()):
                end += 1
            if number < begin:
                end = len(lines)
            # The error first: it is what a line of a table has room for.
            shown = [*lines[number:end], *lines[begin:number]]
            text = "\n".join(filter(None, (line.strip(_BOX).rstrip() for line in shown)))
            return _Found(min(begin, number), end, LastError(text))
    return None
