"""The command logs: show or follow the logs of a rank over all attempts, or the first error."""

import argparse
import codecs
import contextlib
import io
import math
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from ...attempt import end_messages
from ...attempt.ending import ending_of
from ...base import answer, files, installation
from ...base.console import number_ranges, print_line
from ...base.errors import UserError
from ...base.log_text import visible
from ...commands import arguments
from ...contract import records
from ...contract.records.ended import read_attempts
from ...contract.records.nodes import AttemptPlan
from ...contract.records.queued import RecordedJob
from ...contract.rundir import RunDir
from ...runs import fact_reader, lookup, state
from ...runs.evidence import rank_evidence
from ...runs.state import RunState
from ...slurm import job_list
from ...slurm.job_list import Liveness
from . import words

BLOCK_BYTES = 1 << 20
LOOK_AGAIN_S = 0.25  # at a log that is followed
ASK_AGAIN_S = 30  # Slurm, while a log is followed
JUDGE_AGAIN_S = 2.0  # whether the run has ended
MAKE = ("", "RUN FLAGS")
ONLY_PRINTS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_run(parser)
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="global rank")
    parser.add_argument("--attempt", type=int, metavar="K", help="one attempt only")
    parser.add_argument("-f", "--follow", action="store_true", help="follow it to the run's end")
    parser.add_argument("-n", "--lines", type=int, metavar="LINES", help="the last lines only")
    parser.add_argument("--errors", action="store_true", help="the newest attempt's first failure")


@dataclass(frozen=True)
class RankLog:
    """Which log the user wants. attempt: None for all; lines: None for all."""

    run_dir: RunDir
    rank: int = 0
    attempt: int | None = None
    lines: int | None = None

    def attempts(self) -> list[int]:
        numbers = attempts_with(self.run_dir, self.rank)
        return [number for number in numbers if self.attempt in (None, number)]

    def file(self, attempt: int) -> Path:
        return self.run_dir.attempt(attempt).rank_log(self.rank)


def command(args: argparse.Namespace) -> int:
    if args.rank < 0 or (args.lines or 0) < 0:
        raise UserError("--rank and -n take numbers from 0 on")
    if args.json and args.follow:
        raise UserError("--json prints one object, -f lines as they come", "leave out one of them")
    wanted = RankLog(lookup.find(args.run), args.rank, args.attempt, args.lines)
    if args.errors:
        return show_errors(wanted)
    return follow(wanted) if args.follow else show(wanted)


def show(wanted: RankLog) -> int:
    """Print a rank's logs as they are now; returns 0. Raises: UserError where there is none."""
    if not wanted.attempts():
        raise no_log(wanted)
    lines = lines_of(wanted)
    chosen = lines if wanted.lines is None else deque(lines, wanted.lines)
    if answer.is_read():
        answer.give(**wanted.run_dir.names(), lines=[line.rstrip("\n") for line in chosen])
        return 0
    for line in chosen:
        sys.stdout.write(line)
    return 0


def lines_of(wanted: RankLog) -> Iterator[str]:
    """Yield the lines of a rank's logs, with a seam between two attempts; of each the end."""
    before = None
    for number in wanted.attempts():
        if before is not None:
            yield seam(wanted.run_dir, number, before)
        log = wanted.file(number)
        with files.open_binary(log) as file:
            left_out = os.fstat(file.fileno()).st_size - files.MAX_BYTES
            if left_out > 0:
                yield f"---- {left_out} bytes before this are in {log} ----\n"
            file.seek(max(0, left_out))
            for line in file:  # the last one may have no line break yet
                yield visible(line.decode("utf-8", "replace").removesuffix("\n")) + "\n"
        before = number


def no_log(wanted: RankLog) -> UserError:
    """Return the error for a rank or an attempt without a log; names those that have one."""
    with_log = attempts_with(wanted.run_dir, wanted.rank)
    if wanted.attempt is not None and with_log:
        listed = number_ranges(with_log)
        return UserError(f"attempt {wanted.attempt} has no log", f"these have one: {listed}")
    hint = "the run has not started; -f waits for the log"
    if ranks := number_ranges(ranks_of(wanted.run_dir)):
        hint = f"these have one: {ranks}"
    elif state.read(wanted.run_dir).is_over:
        why = installation.command("why", wanted.run_dir.run_id)
        hint = f"the run has ended without one: {why} shows the reason"
    return UserError(f"{wanted.run_dir.run_id} has no log of rank {wanted.rank}", hint)


def seam(run_dir: RunDir, attempt: int, before: int) -> str:
    """Return the line between two attempts' logs: where this one runs, and what ended the other."""
    parts = [f"attempt {attempt}"]
    if (plan := records.read_leniently(AttemptPlan, run_dir.attempt(attempt).plan)) is not None:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(plan.start))
        parts.append(f"on {words.node_list(plan.nodes)} from {began}")
    ended = [record for record in read_attempts(run_dir) if before <= record.attempt < attempt]
    parts += [f"(attempt {record.attempt} ended: {words.end_reason(record)})" for record in ended]
    return f"---- {' '.join(parts)} ----\n"


def follow(wanted: RankLog) -> int:
    """Print a rank's logs as they grow, over all attempts, until the run has ended; returns 0.

    With an attempt, until that one has ended. Slurm is asked at most every ASK_AGAIN_S.
    Raises: UserError for a rank that the run does not have.
    """
    ask, said, shown, log = AnswerCache(), None, 0, None
    if wanted.lines is not None and (numbers := wanted.attempts()):
        shown, log = numbers[-1], GrowingFile(wanted.file(numbers[-1]))
        log.offset = log.path.stat().st_size
        show(wanted)
    while True:
        run = state.read(wanted.run_dir, ask)
        is_last = has_ended(wanted, run)  # judged before the logs are read
        for number in (each for each in wanted.attempts() if each > shown):
            if log is not None:
                log.copy_to(sys.stdout)
                sys.stdout.write(f"\n{seam(wanted.run_dir, number, shown)}")
            shown, log = number, GrowingFile(wanted.file(number))
            log.copy_to(sys.stdout)
        if log is None and ranks_of(wanted.run_dir):
            raise no_log(wanted)
        if is_last:
            print_line(f"{wanted.run_dir.run_id}: {words.state(run, time.time())}")
            return 0
        if log is None and said != (said := run.word):
            state_of_it = words.state(run, time.time())
            print_line(f"waiting for the log of rank {wanted.rank}: {state_of_it}")
        end = time.monotonic() + JUDGE_AGAIN_S
        while time.monotonic() < end:
            time.sleep(LOOK_AGAIN_S)
            if log is not None:
                log.copy_to(sys.stdout)


def has_ended(wanted: RankLog, run: RunState) -> bool:
    """Return whether nothing more comes: the run has ended, or the only attempt that is wanted."""
    if wanted.attempt is None:
        return run.is_over
    closed = any(record.attempt == wanted.attempt for record in run.files.attempts)
    return closed or run.files.newest > wanted.attempt or run.is_ended


def show_errors(wanted: RankLog) -> int:
    """Print the first failure of the newest attempt that failed, or of one; returns 0.

    Raises: RecordError.
    """
    run_dir = wanted.run_dir
    closed = {record.attempt: record.evidence for record in read_attempts(run_dir)}
    newest = fact_reader.newest_opened(run_dir)
    numbers = [newest, *reversed(closed)] if wanted.attempt is None else [wanted.attempt]
    for number in dict.fromkeys(numbers):
        facts = fact_reader.read(run_dir, number)
        evidence = closed.get(number) or rank_evidence(facts, "UNKNOWN")
        has_failed = number in closed or facts.of_nodes.errors or facts.of_nodes.agent_errors
        ending = ending_of(facts, evidence, time.time())
        if has_failed and (lines := end_messages.error_lines(run_dir, number, ending)):
            if not answer.give(**run_dir.names(), attempt=number, lines=lines):
                print("\n".join([f"attempt {number}", *lines]))
            return 0
    answer.give(**run_dir.names(), attempt=None, lines=[])
    print_line(f"{run_dir.run_id}: no attempt has failed")
    return 0


def attempts_with(run_dir: RunDir, rank: int) -> list[int]:
    newest = fact_reader.newest_opened(run_dir)
    numbers = [n for n in fact_reader.attempt_numbers(run_dir) if n <= newest]
    return [n for n in numbers if files.exists(run_dir.attempt(n).rank_log(rank))]


def ranks_of(run_dir: RunDir) -> list[int]:
    folder = run_dir.attempt(fact_reader.newest_opened(run_dir)).path
    matches = (re.fullmatch(r"rank-(\d+)\.log", name) for name in files.names_in(folder))
    return sorted(int(match[1]) for match in matches if match)


class AnswerCache:
    """Asks Slurm about jobs, and not again before ASK_AGAIN_S have passed."""

    def __init__(self) -> None:
        self._asked_at = -math.inf
        self._lives: dict[str, Liveness] = {}

    def __call__(self, jobs: Sequence[RecordedJob]) -> Mapping[str, Liveness]:
        """Return whether each of these jobs lived when Slurm was asked last."""
        now = time.monotonic()
        if now - self._asked_at >= ASK_AGAIN_S:
            self._asked_at, self._lives = now, job_list.ask(jobs)
        # A job that was queued after the answer is not one that Slurm no longer has.
        later = Liveness(None, "its job was queued a moment ago")
        return {job.job_id: self._lives.get(job.job_id, later) for job in jobs}


class GrowingFile:
    """A file that another process, perhaps on another host, appends to."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset = path, 0
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder = io.IncrementalNewlineDecoder(utf8, translate=False)  # \r\n stay together

    def read(self) -> Iterator[bytes]:
        """Yield what is new, of much the end.

        The file is opened again each time: a network file system shows new content only then.
        """
        with contextlib.suppress(FileNotFoundError), files.open_binary(self.path) as file:
            self.offset = max(self.offset, os.fstat(file.fileno()).st_size - files.MAX_BYTES)
            file.seek(self.offset)
            while block := file.read(BLOCK_BYTES):
                self.offset += len(block)
                yield block

    def copy_to(self, stream: TextIO) -> None:
        """Write what is new to a stream; of a progress bar only the newest state, in a new line."""
        for block in self.read():
            first, *others = self._decoder.decode(block).split("\n")
            is_state = "\r" in first.removesuffix("\r")
            stream.write("\n" * is_state + "\n".join(map(visible, [first, *others])))
        stream.flush()
