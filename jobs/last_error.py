"""The last error in the text of a log, complete: what ended the process that wrote it.

A process writes its error behind its other output. Behind the error may stand what the exit of the
process prints. An error that the process caught, printed and survived is not what ended it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

HEADER = "Traceback (most recent call last)"
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
ORIGINAL = f"Original {HEADER}:"  # a data worker's, in the message of its parent
# The frame at which an error leaves a program: nothing caught it.
_OUTERMOST = re.compile(r"in <module>|_run_module_as_main|_run_code|<frozen runpy>")
# What an error's first line begins with: `torch.cuda.OutOfMemoryError: `, `KeyError`.
_ERROR = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: |:?$)")
# `[rank3]: ` of torch, `[default0]:` of torchrun, `3: ` of srun --label.
_PREFIX = re.compile(r"^(?:\[(?:rank|default)\d+\]: ?|\d{1,4}: (?=\[rank\d+\]: ))")
# Output of the exit, of loggers of other libraries, and of srun, which follows from the error.
_EXIT = re.compile(
    r"^\s*$|^wandb: |Warning: |Warning$|^\[?[WI]\d{4} |^\[rank\d+\]:\[[WI]|^Exception ignored in"
    r"|^[EWI]\d{4} \d\d:\d\d|^srun: error: \S+: task|^srun: (?!error|fatal)|CANCELLED AT "
    r"|HYDRA_FULL_ERROR=1|^Aborted|leaked \w+ objects|warnings\.warn\("
)
# Lines of a training that goes on.
_PROGRESS = re.compile(
    r"^\[?\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d|^(?:INFO|DEBUG|WARNING)\b|\d+/\d+|\d+%\|"
    r"|(?i:^\W*(?:step|epoch|iter\w*|loss)\b[ :=]*\d)"
)
# Errors of programs and libraries without a Python traceback, by their first line.
_NATIVE = re.compile(
    r"^usage: |^Usage: |^Fatal Python error: |^terminate called |^\*\*\* stack smashing"
    r"|^(?:malloc|free|realloc|calloc|munmap_chunk|corrupted|double free|tcache)\b.*"
    r"|^(?:Bus error|Killed|Segmentation fault|Illegal instruction|File size limit exceeded)"
    r"|error while loading shared libraries|symbol lookup error|: line \d+: "
    r"|^(?:srun|slurmstepd): (?:error|fatal): |^FATAL: |^libc\+\+abi: |^Python path configuration:"
    r"|^ERROR: Unexpected \w+|^OpenBLAS |^libgomp: |^RuntimeError: DataLoader worker"
)
_STARTS = re.compile(r"(?i)\b(?:error|fatal|failed|cannot|can't|abort|exception|refus\w+)\b|:$")
_BOX = "│╭╰╮╯─┃┏┗"
MAX_WORDS = 10  # lines
MAX_FRAMES = 8  # of the thread in which the interpreter failed


@dataclass(frozen=True)
class LastError:
    """The last error of a log. text: its words; "" if there is none.

    name: the class of a Python exception, without its module. traceback: with what came before it.
    is_known: False for last words of which only their place in the log is known.
    """

    text: str = ""
    name: str = ""
    traceback: str = ""
    is_known: bool = True


def last_error(
    lines: Sequence[str], may_be_uncaught: bool = True, takes_words: bool = True
) -> LastError:
    """Return the last error of a log.

    may_be_uncaught: the process may have ended by an exception that nothing caught.
    takes_words: without an error the last words of the log are returned.
    """
    found = [_PREFIX.sub("", line) for line in lines]
    trace = _last_traceback(found, may_be_uncaught)
    native = _last_native(found)
    at = max(end for end in (0, trace and trace[1], native and native[1]) if end is not None)
    behind = [number for number in range(at, len(found)) if not _EXIT.search(found[number])]
    if behind and not (trace is not None and trace[1] == at and trace[3]):
        words = [number for number in behind if not _PROGRESS.search(found[number])]
        return _words(found, at, words[-1]) if takes_words and words else LastError()
    if native is not None and native[1] == at:
        return LastError(native[2])
    return LastError() if trace is None else trace[2]


def _is_noise(line: str) -> bool:
    return bool(_EXIT.search(line) or _PROGRESS.search(line))


def _words(lines: Sequence[str], begin: int, last: int) -> LastError:
    """The last words of a log: from its last line that announces something, if there is one."""
    start = last
    while start > begin and lines[start][:1].isspace():
        start -= 1
    is_known = False
    for number in range(start, max(begin, last - MAX_WORDS) - 1, -1):
        if _is_noise(lines[number]):
            break
        if _STARTS.search(lines[number]):
            start, is_known = number, True
    text = "\n".join(line.strip(_BOX).rstrip() for line in lines[start : last + 1]).strip()
    return LastError(text, is_known=is_known)


def _last_traceback(
    lines: Sequence[str], may_be_uncaught: bool
) -> tuple[int, int, LastError, bool] | None:
    """(begin, end, error, whether nothing caught it) of the last traceback, with its chain."""
    headers = [number for number, line in enumerate(lines) if HEADER in line]
    if not headers:
        return _syntax_error(lines)
    last = headers[-1]
    begin = last
    while (earlier := _chained_before(lines, headers, begin)) is not None:
        begin = earlier
    inner = lines[last].lstrip().startswith(ORIGINAL)
    if inner:  # the parent's traceback is before it
        begin = max((n for n in headers if n < last and ORIGINAL not in lines[n]), default=last)
    at = _end_of_frames(lines, last)
    if at >= len(lines):
        return begin, len(lines), LastError(), False
    is_outermost = any(map(_OUTERMOST.search, lines[begin : begin + 4])) or (
        inner and begin == last
    )
    is_uncaught = may_be_uncaught and is_outermost
    is_uncaught = is_uncaught and not lines[max(0, begin - 1)].startswith("Exception in thread")
    if "Exception Group" in lines[last]:
        end = _end_of_group(lines, last)
    else:
        end = _end_of_message(lines, at, is_uncaught)
    text = _unboxed(lines[at:end])
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
    return begin, end, error, is_uncaught


def _chained_before(lines: Sequence[str], headers: Sequence[int], begin: int) -> int | None:
    """The header of the traceback of which that at `begin` is a consequence."""
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
    """The line with the error of a traceback."""
    margin = len(lines[header]) - len(lines[header].lstrip(" |+"))
    at = header + 1
    while at < len(lines):
        line = lines[at]
        inside = line[margin:] if not line[:margin].strip(" |+") else line
        if inside and inside[0] not in " \t|" + _BOX:
            break
        at += 1
    return at


def _end_of_group(lines: Sequence[str], header: int) -> int:
    ends = [n for n in range(header, len(lines)) if re.match(r"^\s*\+-{30,}\s*$", lines[n])]
    return ends[-1] + 1 if ends else len(lines)


def _end_of_message(lines: Sequence[str], at: int, is_uncaught: bool) -> int:
    """The line behind a message: its further lines are known by nothing but that they follow."""
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


def _unboxed(lines: Sequence[str]) -> str:
    """The lines of an error without the frame of a group."""
    kept = [re.sub(r"^(\s*)(?:\| ?|\+-\+?-{5,}.*$|\+-{5,}.*$)", r"\1", line) for line in lines]
    return "\n".join(line.rstrip() for line in kept if line.strip()).strip()


def _syntax_error(lines: Sequence[str]) -> tuple[int, int, LastError, bool] | None:
    """Python shows a mistake in the grammar of the script itself without the header."""
    for number in range(len(lines) - 1, 0, -1):
        if re.match(r"^(?:SyntaxError|IndentationError|TabError): ", lines[number]):
            begin = number
            while begin > 0 and lines[begin - 1].startswith(" "):
                begin -= 1
            if not lines[begin].startswith('  File "'):
                return None
            text = "\n".join([lines[number], *lines[begin:number]])
            trace = "\n".join(lines[begin : number + 1])
            name = lines[number].partition(":")[0]
            return begin, number + 1, LastError(text, name, trace), True
    return None


def _last_native(lines: Sequence[str]) -> tuple[int, int, str] | None:
    """(begin, end, text) of the last error of a program without a Python traceback."""
    for begin in range(len(lines) - 1, -1, -1):
        line = lines[begin]
        if not _NATIVE.search(line) or _is_noise(line):
            continue
        if line.startswith(("usage: ", "Usage: ")):
            return _usage(lines, begin)
        if line.startswith(("Fatal Python error", "Python path configuration")):
            return begin, len(lines), _fatal(lines[begin:])
        end = begin + 1
        while end < len(lines) and (lines[end][:1].isspace() and lines[end].strip()):
            end += 1
        return begin, end, "\n".join(each.rstrip() for each in lines[begin:end]).strip()
    return None


def _fatal(lines: Sequence[str]) -> str:
    """An error of the interpreter itself, with the newest frames of the thread that it was in."""
    words = []
    for line in lines:
        if not line.strip():
            break
        words.append(line.rstrip())
    at = next((n for n, line in enumerate(lines) if line.startswith("Current thread")), len(lines))
    frames = [line.rstrip() for line in lines[at + 1 :] if "<no Python frame>" not in line]
    inside = next(
        (n for n, line in enumerate(frames) if not line.startswith("  File")), len(frames)
    )
    return "\n".join([*words, *frames[: min(inside, MAX_FRAMES)]])


def _usage(lines: Sequence[str], begin: int) -> tuple[int, int, str] | None:
    """A refusal of a command line, with the usage below it; None for a usage alone."""
    for number in range(begin, min(len(lines), begin + 60)):
        if re.search(r"(?i)\berror\b", lines[number]):
            end = number + 1
            while end < len(lines) and (lines[end][:1] in _BOX or lines[end][:1].isspace()):
                end += 1
            # The error first: it is what a line of a table has room for.
            text = (
                line.strip(_BOX).rstrip() for line in [*lines[number:end], *lines[begin:number]]
            )
            return begin, end, "\n".join(filter(None, text))
    return None
