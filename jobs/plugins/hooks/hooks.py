"""Runs hooks.checkpoint and hooks.end of the spec. Standard library only.

They are shell lines of the user's spec, like the lines of setup, and run as the user on the first
node. What they do or fail to do changes nothing: the checkpoint is committed, and the end of the
run is recorded, before.

The hooks' own timeline has an event for each hook that has ended, in the order of the commits.
"""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...base import files
from ...base.console import print_line
from ...base.errors import UserError
from ...base.prctl import begin_child
from ...contract import records
from ...contract.checkpoint.names import checkpoint_name
from ...contract.records.nodes import AttemptPlan
from ...contract.records.timeline import Timeline, read_events
from ...contract.records.training import Outcome, Progress
from ...contract.rundir import RunDir
from ...contract.spec import Spec
from ...runs import run_lock
from ...runs.facts import AttemptFacts
from ...runs.run_lock import Owner

HOOKS, RANK_0, DONE = "hooks", "rank-00000", "checkpoint"
LIMIT_S = 60.0
LOOK_INTERVAL_S, POLL_S = 1.0, 0.1
# A hook that runs at the end of an attempt is killed then, and the next attempt runs it again: a
# requeue must fit into what is left of Slurm's grace.
END_WAIT_S = 3.0
# A line that writes a gigabyte fills neither disk nor memory.
IN_SHORT = 'set -o pipefail; bash -c "$0" 2>&1 | tail -c 4096'


@contextlib.contextmanager
def beside(run_dir: RunDir, plan: AttemptPlan) -> Iterator[None]:
    """Run hooks.checkpoint for each checkpoint, in a thread, while the agents run in the block."""
    is_over, is_cut = threading.Event(), threading.Event()
    args = (run_dir, plan, is_over, is_cut)
    thread = threading.Thread(target=_follow, name="hooks.checkpoint", args=args, daemon=True)
    with contextlib.suppress(RuntimeError):  # at the limit of threads: the end runs what is left
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        if thread.is_alive():
            thread.join(None if _is_complete(run_dir, plan) else END_WAIT_S)
            is_cut.set()
            thread.join()


def _is_complete(run_dir: RunDir, plan: AttemptPlan) -> bool:
    with contextlib.suppress(OSError):  # of a disk that fails: the end of the attempt finds it
        outcome = records.read_leniently(Outcome, run_dir.attempt(plan.attempt).outcome)
        return outcome is not None and outcome.status == "completed"
    return False


def _follow(
    run_dir: RunDir, plan: AttemptPlan, is_over: threading.Event, is_cut: threading.Event
) -> None:
    """Run the hook of each commit that has none until is_over; is_cut ends the one at work."""
    try:
        spec = Spec.read(run_dir.spec)
        if spec.hooks.checkpoint is None:
            return
        done, commits = run_dir.timeline(HOOKS), run_dir.timeline(RANK_0)
        if not done.exists():  # a resume that adds the hook adds it for the commits from now on
            for step in _commits(run_dir) if plan.attempt > 1 else ():
                Timeline(run_dir, HOOKS).event(DONE, step=step)
            done.touch()
        size = seen = 0
        while not is_over.wait(LOOK_INTERVAL_S * (size == seen)):
            size = commits.stat().st_size if commits.exists() else 0
            if size != seen:
                if run_lock.is_superseded(run_dir, plan.job_id, plan.attempt):
                    return
                if _run_next(run_dir, spec, is_cut) is None:
                    seen = size
    except Exception as error:  # a mistake of a hook ends no attempt
        print_line(f"hooks.checkpoint is not run any more in this attempt: {error}")


def _commits(run_dir: RunDir) -> list[int]:
    """Return the step of each checkpoint that this run has committed, in their order.

    A rank 0 that is killed after a commit leaves no event of it: the next attempt then loads a step
    after the newest one. The first attempt may load a copy from another run.
    """
    steps: list[int] = []
    newest: int | None = None
    for each in read_events(run_dir.timeline(RANK_0)):
        if each.event in ("save", "loaded"):
            step = each.step or 0
            if each.event == "save" or (newest is not None and step > newest):
                steps.append(step)
            newest = step
    return steps


def _run_next(run_dir: RunDir, spec: Spec, is_cut: threading.Event) -> bool | None:
    """Run hooks.checkpoint for the oldest commit that had none; return whether it ended by itself.

    None where each commit had its hook. Raises: RecordError, OSError.
    """
    num_done = sum(each.event == DONE for each in read_events(run_dir.timeline(HOOKS)))
    if not (steps := _commits(run_dir)[num_done:]):
        return None
    name = f"hooks.checkpoint of step {steps[0]}"
    path = run_dir.checkpoints / checkpoint_name(steps[0]) if spec.launch.is_trainer else ""
    variables = {"KIT_STATE": "running", "KIT_REASON": ""}
    variables |= _variables(run_dir, steps[0], path)
    is_ended = _run(name, str(spec.hooks.checkpoint), run_dir.path, variables, is_cut)
    if is_ended or not is_cut.is_set():
        Timeline(run_dir, HOOKS).event(DONE, step=steps[0])
    return is_ended


def _variables(run_dir: RunDir, step: int, checkpoint: Path | str) -> dict[str, str]:
    """Return the variables of both hooks. Raises: RecordError, OSError."""
    metrics: dict[str, object] = {}
    with contextlib.suppress(FileNotFoundError):
        for line in files.lines_of(run_dir.metrics):
            with contextlib.suppress(ValueError):  # the trainer is writing the last one
                values = json.loads(line)
                metrics |= values if values.pop("step") <= step else {}
    progress = records.read_leniently(Progress, run_dir.progress)
    if not metrics and progress is not None:  # a user's script
        metrics = dict(progress.metrics or {})
    return {
        "KIT_RUN_ID": run_dir.run_id,
        "KIT_RUN_DIR": str(run_dir.path),
        "KIT_STEP": str(step),
        "KIT_CHECKPOINT": str(checkpoint),
        "KIT_METRICS": json.dumps(metrics),
    }


def end(run_dir: RunDir, facts: AttemptFacts, me: Owner | None) -> None:
    """Run what is left of hooks.checkpoint if the run is complete, and hooks.end.

    The checkpoints of a run that may be continued have their hooks then.
    """
    spec, result, never = facts.spec, facts.result, threading.Event()
    try:
        if spec.hooks.checkpoint and result is not None and result.status == "completed":
            while is_ended := _run_next(run_dir, spec, never):
                pass
            if is_ended is False:  # each may hang for a minute
                print_line("hooks.checkpoint does not run for the checkpoints after this one")
        if spec.hooks.end and result is not None:
            newest = facts.saved.checkpoint if spec.launch.is_trainer else None
            path = run_dir.checkpoints / newest if newest else ""
            variables = _variables(run_dir, result.global_step or 0, path)
            variables |= {"KIT_STATE": result.status, "KIT_REASON": result.reason or ""}
            _run("hooks.end", spec.hooks.end, run_dir.path, variables, never)
    except (UserError, OSError, ValueError) as error:
        print_line(f"hooks: {error}; the run is not affected")


def _run(
    name: str, line: str, folder: Path, variables: Mapping[str, str], is_cut: threading.Event
) -> bool:
    """Run a shell line for LIMIT_S at most; return whether it ended by itself.

    Its last line of output, or its failure, is a line of the log; nothing where is_cut ended it.
    Raises: OSError; ValueError for a NUL byte.
    """
    with subprocess.Popen(
        ["bash", "-c", IN_SHORT, line],
        cwd=folder,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=begin_child,
    ) as process:
        limit, by_pid = time.monotonic() + LIMIT_S, os.WEXITED | os.WNOHANG | os.WNOWAIT
        while not (is_ended := os.waitid(os.P_PID, process.pid, by_pid) is not None):
            if time.monotonic() > limit or is_cut.wait(POLL_S):
                break
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its leader is not reaped yet
        assert process.stdout is not None
        last = process.stdout.read().decode(errors="replace").strip().splitlines()[-1:]
        status = process.wait()
    how = f"failed with exit code {status}" if status else ""
    how = how if is_ended else f"was killed after {LIMIT_S:.0f} s, with all that it started"
    if how and (is_ended or not is_cut.is_set()):
        print_line(f"{': '.join([f'{name} {how}', *last])[:300]}; the run is not affected")
    elif is_ended and last:
        print_line(f"{name}: {last[0]}"[:300])
    return is_ended
