"""One run directory, one owner: a second job, an old attempt, a taken port, two resumes.

Rows 30, 33, 23, 37 and 39.
"""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.node import rendezvous
from tests.core.run_files import answered

from ..host import IS_SITE
from ..kit import JOB_TIMEOUT_S, Kit, Run
from . import harm_nodes, harm_processes, harm_slurm, oracles
from .rows import Row
from .scenario import AT_ONCE, Paced
from .test_rows_nodes import FIRST, SPEC

_LISTEN = """
import socket, sys, time
with socket.create_server(("", int(sys.argv[1]))):
    print("listening", flush=True)
    time.sleep(600)
"""


def job_output(kit: Kit, job_id: str) -> str:
    return (kit.runs_root / f"second-{job_id}.out").read_text()


def assert_resume_is_refused(kit: Kit, run: Run) -> None:
    """`jobs resume` prints one line: another job owns the run."""
    done = kit.jobs("resume", run.dir.path, check=False)
    assert done.returncode == 2
    assert re.search(rf"queued or running as job {run.job_id}", done.stderr), done.stderr


def test_row_30_a_second_job_is_refused_while_the_run_is_running(row: Row) -> None:
    paced = row.begin()
    run = paced.run
    assert_resume_is_refused(row.kit, run)
    second = harm_slurm.submit_again(row.kit, run)
    row.kit.cluster.wait_job(second, "FAILED", JOB_TIMEOUT_S)
    assert f"job {run.job_id} is still running it" in job_output(row.kit, second)
    paced.finish()
    oracles.ended(run, row.reference(), ["completed"])


def has_processes(run: Run, node: str) -> bool:
    return any(process.node == node for process in harm_processes.tree(run))


def ended_by_old_srun(run: Run) -> bool:
    """Whether the old start's srun, back on the network, ended the step of the same number.

    To Slurm 22.05 the steps of two starts of a job are the same. On the site the old srun is still
    there, because nothing on a node without its files can end it.
    """
    second = run.attempts()[1]
    return IS_SITE and "step_launch_notify_io_failure" in second["reason"]


def assert_old_attempt_changed_nothing(paced: Paced, reference: Run, old_node: str) -> None:
    """BW, one requeue, and each attempt recorded once."""
    run = paced.run
    paced.finish()
    oracles.ended(run, reference, ["node", *["crash"] * ended_by_old_srun(run), "completed"], 1)
    assert old_node not in run.attempts()[1]["nodes"]


def test_row_33_the_batch_shell_of_a_cut_off_node_comes_back(row: Row) -> None:
    paced = row.begin(*SPEC, step=7)
    run = paced.run
    cut = harm_nodes.cut_off(run, FIRST)
    harm_slurm.wait_for_restarts(run, 1)
    run.wait_for_events("first_step", attempt=2)
    # slurmd does not register yet: the batch shell on the node asks slurmctld for the job's state.
    row.kit.cluster.plug(cut)
    run.wait_for(lambda: not has_processes(run, cut), f"the end on {cut}")
    assert_old_attempt_changed_nothing(paced, row.reference(), cut)


def test_row_33_ranks_that_trained_on_while_the_job_runs_elsewhere_commit_nothing(row: Row) -> None:
    world = ("slurm.nodes=1", "launch.nproc_per_node=3", "train.epochs=8")
    paced = row.begin(*world, "checkpoint.every_steps=20")
    run = paced.run
    cut = harm_nodes.cut_off(run, FIRST)
    harm_slurm.wait_for_restarts(run, 1)
    if IS_SITE:  # the old attempt notices as soon as it has the shared files again
        run.wait_for_events("first_step", attempt=2)
        row.kit.cluster.plug(cut)
    record = run.dir.attempt(1).rank_error(0)
    run.wait_for(record.exists, "the old attempt notices")
    error = read_json(record)["error"]
    # On the site it may have an open file that the new attempt replaced meanwhile.
    assert "owns" in error or (IS_SITE and "Stale file handle" in error), error
    # No signal can reach it.
    run.wait_for(lambda: not has_processes(run, cut), f"the old attempt on {cut} gives up")
    # Until then the new start may check whether the old node answers.
    run.wait_for_events("first_step", attempt=2)
    harm_nodes.reconnect(run, cut)
    assert_old_attempt_changed_nothing(paced, row.reference(*world), cut)


def test_row_23_the_rendezvous_port_is_taken(row: Row) -> None:
    with ExitStack() as listeners:
        with harm_slurm.drained(row.kit.cluster):
            run = row.start(pace=AT_ONCE).run
            taken = rendezvous.choose_port(run.job_id, 1)
            for node in row.kit.cluster.nodes:
                listen = (sys.executable, "-c", _LISTEN, str(taken))
                listener = listeners.enter_context(row.kit.cluster.running_on(node, *listen))
                assert listener.stdout and listener.stdout.readline() == "listening\n"
        run.wait()
    assert read_json(run.dir.attempt(1).plan)["head"]["port"] != taken
    oracles.bitwise(run, row.reference())
    oracles.causes(run, ["completed"])


def cancel(kit: Kit, run: Run, *job_ids: str) -> None:
    kit.jobs("cancel", run.dir.path)
    for job_id in job_ids:
        kit.cluster.wait_job(job_id, "CANCELLED", JOB_TIMEOUT_S)


def resume_twice_at_once(kit: Kit, run: Run) -> Run:
    """Run `jobs resume` twice at the same time; returns the one job that they may queue."""
    argv = ("resume", "--json", run.dir.path)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(kit.jobs, *argv, check=False) for _ in range(2)]
        done = [call.result() for call in calls]
    assert sorted(each.returncode for each in done) == [0, 2], [each.stderr for each in done]
    (accepted,) = (answered(each.stdout) for each in done if each.returncode == 0)
    return Run(kit.cluster, accepted["job_id"], run.dir)


def test_row_37_of_two_resumes_one_queues_and_no_job_starts_after_a_cancel(row: Row) -> None:
    paced = row.begin("slurm.restart=requeue")
    run = paced.run
    cancel(row.kit, run, run.job_id)
    with harm_slurm.drained(row.kit.cluster):
        second = resume_twice_at_once(row.kit, run)
        by_hand = harm_slurm.submit_again(row.kit, run)
        cancel(row.kit, run, second.job_id)
        late = harm_slurm.submit_again(row.kit, run)
        row.kit.run("scontrol", "hold", late)  # else it may meet the claim of the other
    for job_id in (by_hand, late):
        if job_id == late:
            row.kit.run("scontrol", "release", late)
        row.kit.cluster.wait_job(job_id, "FAILED", JOB_TIMEOUT_S)
        assert "the run was cancelled" in job_output(row.kit, job_id)
    assert run.result()["status"] == "cancelled"
    assert len(run.attempts()) == 1
    oracles.nothing_left(run)
    Paced(row.kit.resume(run), paced.pace).finish()
    oracles.bitwise(run, row.reference())


def test_row_39_resume_by_every_name_of_a_run_in_another_root(row: Row, tmp_path: Path) -> None:
    root = tmp_path / "elsewhere"
    paced = row.start(f"runs_root={root}", "slurm.restart=requeue")
    run = paced.run
    assert run.dir.path.parent.parent == root
    run.wait_for_step(2)
    names = [run.dir.run_id, run.dir.path.parent.name, run.job_id, str(run.dir.path), None]
    for attempt, name in enumerate(names, 2):
        cancel(row.kit, run, run.job_id)
        said = answered(row.kit.jobs("resume", "--json", *([name] if name else [])).stdout)
        assert said["run_dir"] == str(run.dir.path)
        run = Run(row.kit.cluster, said["job_id"], run.dir)
        run.wait_for_events("first_step", attempt=attempt)
    Paced(run, paced.pace).finish()
    oracles.bitwise(run, row.reference())
    oracles.nothing_left(run)
