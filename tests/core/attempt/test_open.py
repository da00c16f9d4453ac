"""An attempt records the code that its ranks run, and refuses a job that contradicts its run."""

import os
import subprocess
import sys

import pytest

from slurm_job_kit.jobs.attempt import __main__
from slurm_job_kit.jobs.attempt.open import check_allocation, write_key
from slurm_job_kit.jobs.base import installation
from slurm_job_kit.jobs.base.environment import Program
from slurm_job_kit.jobs.base.errors import FailedError, UserError
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.frozen import Provenance
from slurm_job_kit.jobs.contract.records.nodes import AttemptPlan
from slurm_job_kit.jobs.contract.spec import Launch, Slurm, Spec
from slurm_job_kit.jobs.node import interfaces
from slurm_job_kit.jobs.runs import code_snapshot, run_lock
from tests.core import run_files
from tests.core.attempt.attempt_kit import open_attempt
from tests.core.run_files import REPOSITORY


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "model.py").write_text("x = 1\n")
    return folder


@pytest.fixture
def run(tmp_path, checkout):
    run_dir = run_files.frozen(tmp_path / "runs/x/1")
    run_dir.code.symlink_to(code_snapshot.take(checkout, tmp_path / "runs"))
    return run_dir


def opened(run, checkout):
    """(name, digest) of the code in the plan of the next attempt."""
    me = run_lock.process(os.getpid())
    plan = open_attempt(run, me, ["localhost"], checkout=checkout)
    assert plan is not None and records.read(AttemptPlan, run.attempt(plan.attempt).plan) == plan
    run_lock.release(run, me)
    return plan.code, plan.code_digest


def test_the_ranks_run_the_frozen_code(run, checkout):
    (checkout / "model.py").write_text("x = 2\n")
    name = code_snapshot.digest_in(run.code.resolve().name)
    frozen = name, f"{name} kit"
    assert opened(run, None) == opened(run, run.code.resolve()) == frozen


def test_a_refused_start_writes_nothing_into_the_working_directory(run, checkout):
    run.spec.write_text(Spec(launch=Launch(script="model.py")).to_json())
    known = Provenance("", None, None, "", "", "", {}, repository=str(checkout))
    records.write(run.provenance, known)
    run.cancelled.touch()
    with pytest.raises(FailedError, match="cancelled"):
        open_attempt(run, run_lock.process(os.getpid()), ["localhost"])
    assert not run.work.exists()


def test_the_ranks_of_a_launch_by_hand_run_the_checkout_which_may_have_changed(run, checkout):
    frozen = opened(run, None)
    assert opened(run, checkout) == frozen
    (checkout / "model.py").write_text("x = 2\n")
    name, digest = opened(run, checkout)
    assert name != frozen[0] and digest != frozen[1]
    (copy,) = run.path.parent.parent.glob(f".code/{name}-*")
    assert (copy / "model.py").read_text() == "x = 2\n"


def test_the_command_of_a_launch_by_hand_records_its_own_code(run, checkout, monkeypatch, capsys):
    monkeypatch.setattr(installation, "ROOT", checkout)
    (checkout / "model.py").write_text("x = 2\n")
    assert __main__.main(["open", str(run.path), str(os.getpid())]) == 0
    plan = records.read(AttemptPlan, run.attempt(1).plan)
    assert plan is not None and plan.code not in (None, run.code.resolve().name)


@pytest.mark.parametrize(
    ("nodes", "of_job", "restarts", "problem"),
    [
        (1, {}, 0, "1 node; .*slurm.nodes=2\n.*slurm.nodes=1"),
        (3, {"SLURM_GPUS_ON_NODE": "2"}, 0, "3 nodes; "),
        (2, {"SLURM_GPUS_ON_NODE": "1"}, 0, "1 GPU on each node; .*slurm.gpus_per_node=2\n"),
        (2, {"SLURM_GPUS": "a100:3", "SLURM_GPUS_ON_NODE": "2"}, 0, "3 GPUs on 2 nodes; "),
        (2, {"SLURM_GPUS_ON_NODE": "2"}, 0, None),
        (2, {}, 0, None),  # Slurm does not count GPUs
        (1, {"SLURM_GPUS_ON_NODE": "4"}, 1, None),  # --nodes=1-2, started again on what there is
    ],
)
def test_a_job_that_contradicts_the_frozen_spec_is_refused_and_leaves_the_run_as_it_was(
    run, fake_slurm, monkeypatch, nodes, of_job, restarts, problem
):
    """sbatch ... slurm/ddp.sbatch RUN_DIR: the ranks would be others, and the results, too."""
    run.spec.write_text(Spec(slurm=Slurm(nodes=2, gpus_per_node=2)).to_json())
    of_job = of_job | {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts)}
    for name in (*Program.LOCAL.value, "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in of_job.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(interfaces, "is_own", lambda _: True)
    me, names = run_lock.this_process("7"), ["a", "b", "c"][:nodes]
    before = sorted(path.name for path in run.path.iterdir())
    if problem is None:
        plan = open_attempt(run, me, names, "10.0.0.1")
        assert plan is not None and plan.nodes == tuple(names)
        return
    with pytest.raises(UserError, match=f"this job has {problem}"):
        open_attempt(run, me, names, "10.0.0.1")
    assert sorted(path.name for path in run.path.iterdir()) == before


@pytest.mark.parametrize(
    ("wanted", "accepted", "refused", "words"),
    [
        (Slurm(nodes=2, spare_nodes=1), [3], [2], "slurm.spare_nodes=1\n.*slurm.nodes=1"),
        (Slurm(nodes="2-4"), [2, 3, 4], [1, 5], "slurm.nodes=2-4\n"),
        (Slurm(nodes="2-4", spare_nodes=1), [5], [], ""),
    ],
)
def test_a_job_has_as_many_nodes_as_its_run_may_take(run, wanted, accepted, refused, words):
    for number in accepted:
        check_allocation(run, wanted, number, {})
    for number in refused:
        with pytest.raises(UserError, match=f"{number} node.*{words}"):
            check_allocation(run, wanted, number, {})


def test_job_log_leads_to_the_log_that_plain_sbatch_has_chosen(run, tmp_path):
    code = "import sys; from pathlib import Path; "
    code += "from slurm_job_kit.jobs.contract.rundir import RunDir; "
    code += (
        "from slurm_job_kit.jobs.attempt import open; open.link_job_log(RunDir(Path(sys.argv[1])))"
    )

    def start(log):
        with log.open("a") as file:
            argv = [sys.executable, "-c", code, run.path]
            subprocess.run(argv, stderr=file, cwd=REPOSITORY, check=True)

    for name in ("slurm-7.out", "slurm-8.out"):
        start(tmp_path / name)
        assert run.job_log.samefile(tmp_path / name)
    run.job_log.unlink()
    run.job_log.touch()  # a job of the kit had it
    start(tmp_path / "slurm-9.out")
    assert not run.job_log.is_symlink()


def test_a_key_of_an_open_that_was_killed_or_a_planted_link_is_replaced(tmp_path):
    path, outside = tmp_path / "rendezvous.key", tmp_path / "outside"
    outside.write_text("x")
    path.symlink_to(outside)
    keys = set()
    for _ in range(2):
        write_key(path)
        keys.add(path.read_bytes())
    assert len(keys) == 2 and path.stat().st_mode & 0o777 == 0o600
    assert outside.read_text() == "x" and not path.is_symlink()
