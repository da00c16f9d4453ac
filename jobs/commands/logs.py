"""The command logs: show or follow the logs of a rank over all attempts, or the first error."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .. import installation, records
from ..attempt import end_messages
from ..console import number_ranges, print_line
from ..errors import UserError
from ..log_text import Screen
from ..records.ended import read_attempts
from ..records.nodes import AttemptPlan
from ..rundir import RunDir
from ..runs import fact_reader, interpret, lookup, state
from ..runs.state import RunState
from . import arguments
from .views import rank_logs, words
from .views.rank_logs import GrowingFile

LOOK_AGAIN_S = 0.25  # at a log that is followed
JUDGE_AGAIN_S = 2.0  # whether the run has ended
DEFAULT_LINES = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of logs."""
    arguments.add_run(parser)
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="global rank")
    parser.add_argument("--attempt", type=int, metavar="K", help="one attempt only")
    help_of_it = "follow the log over all attempts until the run has ended"
    parser.add_argument("-f", "--follow", action="store_true", help=help_of_it)
    help_of_it = f"the last lines only (default: {DEFAULT_LINES})"
    parser.add_argument("-n", "--lines", type=int, metavar="LINES", help=help_of_it)
    help_of_it = "the first failing rank of the newest attempt that failed: node and traceback"
    parser.add_argument("--errors", action="store_true", help=help_of_it)


@dataclass(frozen=True)
class RankLog:
    """Which log the user wants. attempt: None for all; lines: None for DEFAULT_LINES."""

    run_dir: RunDir
    rank: int = 0
    attempt: int | None = None
    lines: int | None = None


def command(args: argparse.Namespace) -> int:
    """Run logs; returns the exit code."""
    if args.rank < 0 or (args.lines or 0) < 0:
        raise UserError("--rank and -n take numbers from 0 on")
    wanted = RankLog(lookup.find(args.run), args.rank, args.attempt, args.lines)
    if args.errors:
        return show_errors(wanted)
    return follow(wanted) if args.follow else show(wanted)


def show(wanted: RankLog) -> int:
    """Print a rank's logs as they are now; returns 0. Raises: UserError where there is none."""
    shown = ShownLogs(wanted)
    shown.show_all()
    if not shown.is_begun:
        raise no_log(wanted)
    shown.finish()
    return 0


class ShownLogs:
    """Prints the logs of a rank, in the order of the attempts, with a seam between two of them."""

    def __init__(self, wanted: RankLog) -> None:
        self._wanted, self._attempt = wanted, 0  # the attempt that is shown; 0 before the first
        self._log: GrowingFile | None = None
        self._screen = Screen(is_terminal=sys.stdout.isatty())

    @property
    def is_begun(self) -> bool:
        """Whether there was a log to show."""
        return self._log is not None

    def show_all(self) -> None:
        """Print what is new: the rest of the log that is shown, and those of later attempts."""
        run_dir, rank = self._wanted.run_dir, self._wanted.rank
        numbers = rank_logs.attempts_with(run_dir, rank)
        if self._wanted.attempt is not None:
            numbers = [number for number in numbers if number == self._wanted.attempt]
        later = [number for number in numbers if number > self._attempt]
        skipped = None
        if self._log is None:
            most = DEFAULT_LINES if self._wanted.lines is None else self._wanted.lines
            later, skipped = last_lines(run_dir, rank, later, most)
        self.show_new()
        for number in later:
            if self._attempt:
                self.end_line()
                sys.stdout.write(f"{seam(run_dir, number, self._attempt)}\n")
            self._attempt = number
            self._log = GrowingFile(run_dir.attempt(number).rank_log(rank))
            self._screen = Screen(is_terminal=sys.stdout.isatty())
            if skipped is not None:
                self._log.skip_to_last(skipped)
                if self._wanted.lines is None and (number > numbers[0] or self._log.offset):
                    sys.stdout.write(f"{omission_line(self._log)}\n")
                skipped = None
            self.show_new()

    def show_new(self) -> None:
        """Print the rest of the log that is shown."""
        if self._log is not None:
            for block in self._log.read():
                sys.stdout.writelines(self._screen.lines(block))
            sys.stdout.write(self._screen.growing())
            sys.stdout.flush()

    def finish(self) -> None:
        """Show what the last line of the log is by now."""
        sys.stdout.write(self._screen.rest())
        sys.stdout.flush()

    def end_line(self) -> None:
        """End a last line that has no newline; nothing more comes to the log that is shown."""
        sys.stdout.write(self._screen.rest())
        sys.stdout.write("\n" * self._screen.is_in_line)


def omission_line(log: GrowingFile) -> str:
    """Return the line above the last lines of a long log."""
    return f"---- {log.path} from byte {log.offset}; -n shows more lines, the file has all ----"


def last_lines(
    run_dir: RunDir, rank: int, numbers: Sequence[int], lines: int
) -> tuple[list[int], int]:
    """Return the attempts that have the last lines, and how many lines of the first of them."""
    chosen: list[int] = []
    for number in reversed(numbers):
        chosen.insert(0, number)
        here = rank_logs.count_lines(run_dir.attempt(number).rank_log(rank), lines)
        if here >= lines:
            break
        lines -= here
    return chosen, lines


def no_log(wanted: RankLog) -> UserError:
    """Return the error for a rank or an attempt without a log; names those that have one."""
    with_log = rank_logs.attempts_with(wanted.run_dir, wanted.rank)
    if wanted.attempt is not None and with_log:
        listed = number_ranges(with_log)
        return UserError(f"attempt {wanted.attempt} has no log\n  hint: these have one: {listed}")
    ranks = number_ranges(rank_logs.ranks_of(wanted.run_dir))
    hint = "the run has not started; -f waits for the log"
    if state.read(wanted.run_dir).is_over:
        why = installation.command("why", wanted.run_dir.run_id)
        hint = f"the run has ended without one: {why} shows the reason"
    if ranks:
        hint = f"these have one: {ranks}"
    elif fact_reader.newest_opened(wanted.run_dir):
        hint = "its ranks have written no log yet; those of plain torchrun write to its terminal"
    return UserError(f"{wanted.run_dir.run_id} has no log of rank {wanted.rank}\n  hint: {hint}")


def seam(run_dir: RunDir, attempt: int, before: int) -> str:
    """Return the line between two attempts' logs: where this one runs, and what ended the other."""
    parts = [f"attempt {attempt}"]
    if (plan := records.read_leniently(AttemptPlan, run_dir.attempt(attempt).plan)) is not None:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(plan.start))
        parts.append(f"on {words.node_list(plan.nodes)} from {began}")
    ended = [record for record in read_attempts(run_dir) if before <= record.attempt < attempt]
    parts += [f"(attempt {record.attempt} ended: {words.end_reason(record)})" for record in ended]
    return f"---- {' '.join(parts)} ----"


def follow(wanted: RankLog) -> int:
    """Print a rank's logs as they grow, over all attempts, until the run has ended; returns 0.

    With an attempt, until that one has ended. Slurm is asked at most every ASK_AGAIN_S.
    Raises: UserError for a rank that the run does not have.
    """
    shown, ask, said = ShownLogs(wanted), state.AnswerCache(), None
    while True:
        run = state.read(wanted.run_dir, ask)
        is_last = has_ended(wanted, run)  # judged before the logs are read
        shown.show_all()
        if is_last:
            if not shown.is_begun and rank_logs.ranks_of(wanted.run_dir):
                raise no_log(wanted)
            shown.finish()
            print_line(f"{wanted.run_dir.run_id}: {in_words(run)}")
            return 0
        if not shown.is_begun:
            refuse_absent_rank(wanted, run)
            if said != (said := run.word):
                print_line(f"waiting for the log of rank {wanted.rank}: {in_words(run)}")
        follow_until(shown, time.monotonic() + JUDGE_AGAIN_S)


def in_words(run: RunState) -> str:
    """Return the state of a run in plain words, and the reason of its end."""
    return words.state(run, None if run.result is None else run.result.reason, time.time())


def has_ended(wanted: RankLog, run: RunState) -> bool:
    """Return whether nothing more comes: the run has ended, or the only attempt that is wanted."""
    if wanted.attempt is not None:
        closed = any(record.attempt == wanted.attempt for record in run.files.attempts)
        return closed or run.files.newest > wanted.attempt or run.is_ended
    return run.is_over


def refuse_absent_rank(wanted: RankLog, run: RunState) -> None:
    """Raises: UserError if the run trains, and has no such rank."""
    ranks = rank_logs.ranks_of(wanted.run_dir)
    if run.files.progress is not None and ranks and wanted.rank > ranks[-1]:
        raise no_log(wanted)


def follow_until(shown: ShownLogs, end: float) -> None:
    """Print what is new in the log that is shown, until a time of the monotonic clock."""
    while time.monotonic() < end:
        time.sleep(LOOK_AGAIN_S)
        shown.show_new()


def show_errors(wanted: RankLog) -> int:
    """Print the first failure of the newest attempt that failed, or of one; returns 0.

    Raises: UserError for an attempt that did not fail; RecordError.
    """
    run_dir = wanted.run_dir
    closed = {record.attempt: record.evidence for record in read_attempts(run_dir)}
    newest = fact_reader.newest_opened(run_dir)
    numbers = [newest, *reversed(closed)] if wanted.attempt is None else [wanted.attempt]
    for number in dict.fromkeys(numbers):
        facts = fact_reader.read(run_dir, number)
        evidence = closed.get(number) or interpret.rank_evidence(facts, "UNKNOWN")
        has_failed = bool(facts.errors or facts.agent_errors)
        if has_failed or (number in closed and evidence.error and evidence.outcome is None):
            print(f"attempt {number}")
            print("\n".join(end_messages.error_lines(run_dir, facts, evidence)))
            return 0
    which = "no attempt has" if wanted.attempt is None else f"attempt {wanted.attempt} has not"
    print_line(f"{run_dir.run_id}: {which} failed")
    return 0
