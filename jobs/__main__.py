"""The kit's commands: `python -m jobs COMMAND` in a clone, `kit COMMAND` where pip installed them.

In a clone most of them have a make target.
"""

import contextlib
import gc
import signal
import sys
from collections.abc import Sequence

from .base import answer, stop_signals
from .base.console import discard_output, escape_output, with_time
from .base.errors import HINT, FailedError, UserError
from .commands.catalogue import chosen, load, parse

EXIT_USER = 2
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code: 2 for a user's mistake, 1 for a failed action.

    After a Ctrl-C 130; 0 if make called it, which ends by its own SIGINT, and would print an error.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    escape_output()
    with contextlib.ExitStack() as reading:
        code = run(words, reading)
    is_by_make = code == EXIT_INTERRUPTED and words[:1] == ["make"]
    return 0 if is_by_make and signal.SIGINT in stop_signals.taken else code


def run(words: list[str], reading: contextlib.ExitStack) -> int:
    """Run one command; returns its exit code. reading: while a program reads the answer."""
    name = ""
    try:
        if words[:1] == ["make"]:  # kit.mk
            from .commands import make_words

            words = make_words.words_of("".join(words[1:2]))
        name, is_for_program = chosen(words)
        if is_for_program:
            reading.enter_context(answer.read_by(answer.on_stdout(name)))
        args = parse(words)
        code = load(name).command(args)
        answer.give()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `| head` has ended: drop the rest of the output
        discard_output()
        return 0 if name and hasattr(load(name), "ONLY_PRINTS") else EXIT_FAILED
    except KeyboardInterrupt:
        answer.give(error="stopped by Ctrl-C")
        stop_signals.taken.add(signal.SIGINT)
        return EXIT_INTERRUPTED
    except ModuleNotFoundError as error:
        from .base import packages

        missing = packages.missing([*packages.COMMANDS, *packages.TRAINER])
        if missing is None or error.name not in ("yaml", "submitit"):
            raise
        return _fail(str(missing), EXIT_USER)
    except (UserError, FailedError) as error:
        return _fail(str(error), EXIT_USER if isinstance(error, UserError) else EXIT_FAILED)
    except OSError as error:
        from .contract.known_causes import way_out

        place = "" if error.filename is None else f"{error.filename}: "
        hint = HINT + way if (way := way_out(error)) else ""
        return _fail(f"{place}{error.strerror or error}{hint}", EXIT_FAILED)


def _fail(error: str, code: int) -> int:
    """Print an error, also for a program that reads; returns the exit code."""
    with contextlib.suppress(OSError):  # nobody reads it any more
        answer.give(error=error)
    print(with_time(f"error: {error}"), file=sys.stderr)
    return code


def command() -> int:
    """Run one command as the whole process; returns its exit code.

    Submit makes 55,000 objects, most of them in imports, and few are garbage. To look for it took
    a seventh of its CPU time. A run on this machine takes hours: there the collector still works.
    """
    gc.set_threshold(100_000)
    code = main()
    gc.freeze()  # the interpreter collects once more at its end
    return code


if __name__ == "__main__":
    sys.exit(command())
