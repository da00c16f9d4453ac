"""Many processes claim one run: there are never two owners, and claims succeed again and again."""

import subprocess
import sys

import pytest

from tests.core.run_files import REPOSITORY

pytestmark = pytest.mark.long  # many processes claim one run

# Each child claims the run, checks that there is no other owner, and then releases the run or dies
# as its owner. The parent sometimes kills a child at any instruction, and forks a new one for each
# that died. The pauses widen the races, which would be too rare without them.
CROWD = """
import os, random, signal, sys, time
from pathlib import Path
from slurm_job_kit.jobs.runs import run_lock
from slurm_job_kit.jobs.base import procfs
from slurm_job_kit.jobs.contract.rundir import RunDir

NUM_CHILDREN, NUM_CLAIMS, LIMIT_S = 8, 150, 60
run, inside, log = (Path(sys.argv[1], name) for name in ("run", "inside", "log"))
chance = random.Random(int(sys.argv[2]))
run.mkdir()
inside.mkdir()

def paused(function):
    def wrapper(*args, **kwargs):
        time.sleep(random.choice((0, 0, 0.001, 0.004)))
        result = function(*args, **kwargs)
        time.sleep(random.choice((0, 0, 0.001, 0.004)))
        return result
    return wrapper

def others():
    marks = (path.name.split("-", 1) for path in inside.iterdir())
    return [pid for pid, start in marks if procfs.start_of(int(pid)) == start]

def claim_and_release():
    me = run_lock.this_process(None)
    try:
        run_lock.claim(RunDir(run), me, 1)
    except run_lock.OwnedError:
        time.sleep(random.uniform(0, 0.003))
        return
    mark = inside / f"{me.pid}-{me.pid_start}"
    mark.touch()
    seen = others()
    time.sleep(random.uniform(0, 0.003))
    is_alone = seen == [str(me.pid)] and run_lock.is_owned_by_start(RunDir(run), me)
    with log.open("a") as file:
        file.write("alone\\n" if is_alone else f"owners: {seen}\\n")
    if random.random() < 0.4:
        os._exit(0)
    mark.unlink()
    run_lock.release(RunDir(run), me)

def child(seed):
    random.seed(seed)
    for name in ("link", "replace", "unlink"):
        setattr(os, name, paused(getattr(os, name)))
    os.fsync = lambda _: None
    while True:
        claim_and_release()

log.touch()
children, seed = set(), chance.randrange(10**6)
deadline, said = time.monotonic() + LIMIT_S, ""
while said.count("alone") < NUM_CLAIMS and "owners" not in said and time.monotonic() < deadline:
    while len(children) < NUM_CHILDREN:
        seed += 1
        pid = os.fork()
        if pid == 0:
            child(seed)
        children.add(pid)
    time.sleep(0.01)
    if chance.random() < 0.1:
        os.kill(chance.choice(sorted(children)), signal.SIGKILL)
    while (ended := os.waitpid(-1, os.WNOHANG)[0]) > 0:
        children.remove(ended)
    said = log.read_text()
for pid in children:
    os.kill(pid, signal.SIGKILL)
print(said, end="")
print("enough" if said.count("alone") >= NUM_CLAIMS else "too few")
"""


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_of_many_that_claim_release_and_die_one_at_a_time_is_the_owner(tmp_path, seed):
    argv = [sys.executable, "-c", CROWD, tmp_path, str(seed)]
    done = subprocess.run(
        argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.splitlines()) == {"alone", "enough"}
