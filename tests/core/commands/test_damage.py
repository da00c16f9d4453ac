"""Whatever is wrong in the files of a run, a command says it in a line and harms no other run.

For each file of three runs (complete, held, queued), each of its keys, and each damage: no
traceback, no hang, no wrong action, nothing on the terminal that controls it.
"""

import contextlib
import gc
import io
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_job_kit.jobs import __main__ as kit
from slurm_job_kit.jobs.commands.catalogue import all_commands, load
from slurm_job_kit.jobs.rundir import RunDir, append_jsonl, write_json
from slurm_job_kit.jobs.runs import lookup
from tests.core import run_files
from tests.core.commands import damage
from tests.core.commands.damage import Damage
from tests.core.commands.test_looking import is_harmless, tree
from tests.core.fake_slurm import FakeSlurm
from tests.core.run_files import make_checkpoint

LIMIT_S = 10
LOOKING = [
    *(["status"], ["status", "--json"], ["status", "RUN"]),
    *(["why", "RUN"], ["why", "RUN", "--json"]),
    *(["logs", "RUN"], ["logs", "RUN", "--errors"], ["logs", "RUN", "-n", "3"]),
    *(["report", "RUN", "--json"], ["explain", "RUN"], ["compare", "RUN", "other"], ["clean"]),
]
CHANGING = [["export", "RUN"], ["resume", "RUN"], ["cancel", "RUN"], ["clean", "RUN", "--yes"]]
COMMANDS = [words for words in (*LOOKING, *CHANGING) if words[0] in all_commands()]
JOBS = {"complete": "4701", "held": "4702", "queued": "4703", "other": "4799"}
LOST = {"left_out": [{"node": "a", "kind": "node_failure", "text": "x", "time": 1e9}]}


class Runs:
    """Runs in every state, a copy of them, and Slurm with the jobs of two."""

    def __init__(self, here: Path, slurm: FakeSlurm) -> None:
        (here / "tiny.yaml").write_text("name: tiny\nslurm: {nodes: 2}\nsetup: ['true']\n")
        with quiet():
            assert kit.main(["submit", "tiny.yaml"]) == 0
        (first,) = lookup.all_runs()
        self.root, self.copy, self.outside = here / "runs", here / "copy", here / "outside"
        self.slurm, self.runs = slurm, {name: self._made(first, name) for name in JOBS}
        shutil.rmtree(first.path.parent)
        shutil.rmtree(self.root / ".jobs")
        for name, run in self.runs.items():
            lookup.remember(run, JOBS[name])
        self._set_states()
        (self.outside / "folder").mkdir(parents=True)
        (self.outside / "file").write_text("{}\n")
        (self.outside / "folder/file").write_text("mine\n")
        os.mkfifo(self.outside / "fifo")
        shutil.copytree(self.root, self.copy, symlinks=True)
        self.before = tree(self.root)

    def _set_states(self) -> None:
        self.slurm.set_state("4711", "COMPLETED")
        for name, job_id in JOBS.items():
            is_waiting = name in ("queued", "other")
            self.slurm.set_state(job_id, "PENDING" if is_waiting else "COMPLETED")

    def _made(self, first: RunDir, name: str) -> RunDir:
        run = RunDir(self.root / name / f"{first.run_id}-{name[0]}")
        shutil.copytree(first.path, run.path, symlinks=True)
        record = {"argv": ["sbatch", "x"], "uid": os.getuid(), "cluster": "one"}
        write_json(run.submission, record | {"job_id": JOBS[name], "nodes_taken_back": 1.0})
        write_json(run.site, {"kill_wait_s": 30, "slurmd_port": 6818, "cluster": "one"})
        run.job_log.write_text("started\nerror: no such partition\n")
        if name != "queued":
            self._trained(run, name)
        return run

    def _trained(self, run: RunDir, name: str) -> None:
        is_held, job_id = name == "held", JOBS[name]
        attempt = run_files.opened(run, job_id=job_id, code="x", can_lose=1)
        attempt.rank_log(0).write_text("step 1\nstep 2\n")
        for rank in (0, 1):
            run_files.node(attempt, rank, (2.0, "SIGTERM"), torchrun_exit=int(is_held))
            attempt.torchrun_log(rank).write_text("torchrun\n")
            attempt.setup_log(rank).write_text("setup\n")
        for event in ("spawn", "first_step", "save", "evaluation"):
            line = {"t": 2.0, "event": event, "attempt": 1, "host": "a", "pid": 7, "seconds": 1.0}
            append_jsonl(run.timeline("rank-00000"), line)
        for step in (1, 2):
            append_jsonl(run.metrics, {"step": step, "epoch": 1, "eval_loss": 0.5})
        metrics = {"eval_loss": 0.5}
        now = {"step": 2, "total": 2, "epoch": 1, "epochs": 1, "loss": 0.5, "metrics": metrics}
        write_json(run.progress, now | {"samples_per_s": 1.0, "eta_s": 1.0, "time_left": "1 s"})
        write_json(run.saved, {"step": 2})
        for step in (1, 2):
            make_checkpoint(run, step, best=1)
        (run.checkpoints / "best").write_text("step-00000001\n")
        evidence = {"signals": ["SIGTERM"], "kind": "hang", "rooms": {"nodes": LOST}}
        decision = {"decision": "hold", "cause": "hang"} if is_held else {"decision": "done"}
        fields = {"job_id": job_id, "first_step": 1, "last_step": 2, "cause": "completed"}
        fields |= {"start": 1.0, "stop": 9.0, "stop_s": 1.0, "checkpoint": "step-00000002"}
        log = {"kind": "hang" if is_held else "completed", "log": str(attempt.rank_log(0))}
        run_files.recorded(run, evidence, **fields | decision | log)
        reached = {"global_step": 2, "epoch": 1, "metrics": metrics, "weights_sha256": "ab"}
        reached |= {"optimizer_sha256": "cd", "exactness": "bitwise"}
        reached |= {"best": {"metric": "eval_loss", "value": 0.5, "step": 1}}
        changes = {"time": 1.0, "changes": {"train.lr": [0.1, 0.2]}, "spec_sha256": "x"}
        append_jsonl(run.changes, changes)
        counted = {"attempts": 1, "steps_redone": 0}
        if is_held:
            write_json(run.result, {"status": "held", "reason": "x", **counted})
            run_files.failed(attempt, 0, 2.0, kind="hang")
            attempt.agent_error(1).write_text("agent: setup: line 1 exit code 1\n")
            write_json(attempt.hang, {"rank": 0, "error": "x", "unresponsive": [1], "hosts": ["a"]})
            run.cancelled.write_text(f"now: jobs cancel: {job_id}\n")
            write_json(
                run.revision, {"moves": {"a": "b"}, "files": {"c": "x"}, "links": {"d": "."}}
            )
            write_json(run.successor, {"job_id": "4704", "after": job_id})
            write_json(run.owner, run_files.claim(job_id=job_id, uid=os.getuid(), cluster="one"))
        else:
            write_json(attempt.outcome, {"status": "completed", **reached})
            write_json(run.result, {"status": "completed", **reached, **counted})

    def damages(self, chance: random.Random, num_values: int) -> list[tuple[str, Path, Damage]]:
        """Each run by its name, a path in it, and a damage of it."""
        found: list[tuple[str, Path, Damage]] = []
        for name in ("complete", "held", "queued"):
            run = self.runs[name].path
            found.append((name, run, ("an attempt of a giant number", giant_attempt)))
            for path in sorted([run, *run.rglob("*")]):
                of_path = [*damage.types(self.outside)]
                if path.is_file() and not path.is_symlink():
                    text, is_lines = path.read_bytes(), path.suffix == ".jsonl"
                    of_path += damage.contents(text)
                    of_path += damage.keys(text, is_lines, chance, num_values)
                found += [(name, path, each) for each in of_path]
        return found

    def restore(self) -> None:
        """Make the root as it was."""
        shutil.rmtree(self.root)
        shutil.copytree(self.copy, self.root, symlinks=True)
        self._set_states()

    def others(self, run: RunDir) -> list[object]:
        """What a command that names a run must not change."""
        inside = (str(run.path), str(run.path.parent), str(self.root))
        kept = [each for each in tree(self.root) if not each[0].startswith(inside[0] + "/")]
        ours = (*inside, str(run.path.with_name("latest")))
        kept = [each for each in kept if each[0] not in ours and "/.jobs" not in each[0]]
        return [*((path, *rest[:2]) for path, *rest in kept), *tree(self.outside)]


def giant_attempt(path: Path) -> None:
    run_files.opened(RunDir(path), 10**15).rank_log(0).write_text("x\n")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def ended(words: list[str], folder: Path) -> tuple[int, str, list[str]]:
    """The exit code of a command in a process of its own, what it printed, whom it signalled."""
    texts = [folder / name for name in ("out", "err", "kills")]
    for text in texts:
        text.write_bytes(b"")
    child = os.fork()
    if child == 0:
        try:
            signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            os._exit(in_child(words, *texts))
        finally:
            os._exit(99)
    _, status = os.waitpid(child, 0)
    shown = (texts[0].read_bytes() + texts[1].read_bytes()).decode("utf-8", "surrogateescape")
    return os.waitstatus_to_exitcode(status), shown, texts[2].read_text().split("\n")[:-1]


def in_child(words: list[str], out: Path, err: Path, kills: Path) -> int:
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), encoding="utf-8")
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), "utf-8", "backslashreplace")

    def noted(*arguments: object) -> None:
        if arguments[1] != 0:
            with open(kills, "a") as file:
                file.write(f"{arguments}\n")

    os.kill = os.killpg = noted
    os.execv = lambda *_: os._exit(0)  # of export: the trainer would import torch for seconds
    sys.argv = ["jobs", *words]
    try:
        code = kit.command()
    except BaseException:
        traceback.print_exc()
        code = 98
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def faults(runs: Runs, name: str, words: list[str], folder: Path) -> Iterator[tuple[str, str]]:
    """Yield what a command did wrong, and what it printed."""
    run, is_named = runs.runs[name], "RUN" in words
    named = [str(run.path) if word == "RUN" else word for word in words]
    is_looking = words in LOOKING
    before = (tree(runs.root), runs.others(run), len(runs.slurm.cancelled))
    code, shown, kills = ended(named, folder)
    if "Traceback (most recent" in shown or code in (98, 99):
        yield "traceback", shown
    if code == -signal.SIGALRM:
        yield "hang", shown
    elif code not in (0, 1, 2):
        yield f"exit {code}", shown
    if not is_harmless(shown):
        yield "raw escape", shown
    if kills:
        yield "signal", f"{kills}\n{shown}"
    if words[0] == "status" and not is_named and code != 0:
        yield "a list that fails", shown
    if is_looking and tree(runs.root) != before[0]:
        yield "a look that changes", shown
    if runs.others(run) != before[1]:
        yield "another run changed", shown
    cancelled = {each for call in runs.slurm.cancelled[before[2] :] for each in call.split()}
    if cancelled - {JOBS[name], "4704", "--"} or (cancelled and words[0] != "cancel"):
        yield "another job", f"{cancelled}\n{shown}"


def search(
    runs: Runs, chosen: list[tuple[str, Path, Damage]], folder: Path
) -> list[tuple[str, ...]]:
    """Return what was wrong: fault, command, run, path, damage."""
    count, found, began = 0, list[tuple[str, ...]](), time.monotonic()
    gc.freeze()
    for name, path, (what, harm) in chosen:
        harm(path)
        harmed = tree(runs.root)
        for words in COMMANDS:
            for fault, shown in faults(runs, name, words, folder):
                place = str(path.relative_to(runs.root / name))
                found.append((fault, " ".join(words), name, place, what))
                print(*found[-1], shown[-3000:], sep=" | ", flush=True)
            count += 1
            if words not in LOOKING and tree(runs.root) != harmed:
                runs.restore()
                harm(path)
                harmed = tree(runs.root)
        runs.restore()
    kinds = dict(Counter(each[0] for each in found)) or "no fault"
    took = time.monotonic() - began
    print(f"{len(chosen)} damages, {count} commands, {took:.0f} s: {kinds}", flush=True)
    return found


@pytest.fixture
def runs(here, slurm, monkeypatch):
    for word in COMMANDS:
        load(word[0])
    monkeypatch.setattr("slurm_job_kit.jobs.commands.cancel.CLAIM_WAIT_S", 0.1)
    monkeypatch.setattr("slurm_job_kit.jobs.checkpoint.reader.RETRY_DELAYS_S", ())
    return Runs(here, slurm)


def report(count, num_damages, found, began):
    kinds = Counter(each[0] for each in found)
    took = time.monotonic() - began
    lines = [f"{num_damages} damages, {count} commands, {took:.0f} s: {dict(kinds) or 'no fault'}"]
    lines += ["\n".join([" | ".join(each[:5]), each[5][-3000:]]) for each in found]
    return "\n".join(lines)


def test_undamaged_runs_have_no_fault(runs, tmp_path):
    nothing = ("nothing", lambda path: None)
    chosen = [(name, run.path, nothing) for name, run in runs.runs.items() if name != "other"]
    assert search(runs, chosen, tmp_path) == []


@pytest.mark.long
def test_some_damages_are_told_in_a_line_and_harm_nothing(runs, tmp_path):
    chance = random.Random(42)
    assert search(runs, chance.sample(runs.damages(chance, 2), 12), tmp_path) == []


@pytest.mark.slow
def test_every_damage_is_told_in_a_line_and_harms_nothing(runs, tmp_path):
    """FUZZ=SEED:SHARE draws another share of the 8,000 damages; all of them take hours."""
    seed, share = os.environ.get("FUZZ", "1:0.02").split(":")
    chance = random.Random(int(seed))
    everything = runs.damages(chance, 6)
    chosen = chance.sample(everything, int(len(everything) * float(share)))
    assert search(runs, chosen, tmp_path) == []
