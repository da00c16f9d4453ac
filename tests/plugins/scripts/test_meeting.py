"""Ranks that never met: torchrun's store shows it, and status and why name it."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.attempt import record_writer
from slurm_job_kit.jobs.commands import local
from slurm_job_kit.jobs.contract.spec import Launch, Spec
from slurm_job_kit.jobs.node.rendezvous import choose_port
from slurm_job_kit.jobs.plugins.scripts.meeting import NEVER_MET
from tests.core.run_files import node, opened, write_json
from tests.plugins.scripts.test_progress import ended

ALONE = "--nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:0"
NODE = "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=localhost:{} --rdzv-conf=is_host={}"
# Rank 1 ends once torchrun has noted the end of rank 0.
ENDS = """import os, time
while os.environ["RANK"] == "1" and os.getppid() > 1 and not os.path.exists("{}"):
    time.sleep(0.1)
"""
MEETS = "import torch.distributed as d\nd.init_process_group('gloo')\nd.destroy_process_group()\n"


@pytest.mark.long
@pytest.mark.parametrize(("text", "is_apart"), [("", True), (MEETS, False)])
def test_torchrun_notes_ranks_that_have_ended_and_that_none_opened_a_process_group(
    tmp_path, text, is_apart
):
    run_torchrun(tmp_path, text + ENDS.format(tmp_path / "rank-00000.ended"))
    assert (tmp_path / "rank-00001.ended").exists()
    assert (tmp_path / NEVER_MET).exists() is is_apart


def run_torchrun(tmp_path, text, options=ALONE, **env):
    (tmp_path / "x.py").write_text(text)
    meeting = [sys.executable, "-m", "slurm_job_kit.jobs.plugins.scripts.meeting"]
    words = [*meeting, "torch.distributed.run", *options.split(), str(tmp_path / "x.py")]
    env |= os.environ | {"KIT_STOP_FILE": str(tmp_path / "stop_requested"), "KIT_END_LIMIT_S": "31"}
    subprocess.run(words, env=env, check=True, timeout=280)


@pytest.mark.long
def test_torchrun_leaves_before_the_ranks_of_other_nodes_where_the_limit_is_over(tmp_path):
    port = choose_port(str(os.getpid()), 1)  # not that of another clone
    ends = ENDS.replace("RANK", "STAYS").format(tmp_path / "left")
    with ThreadPoolExecutor() as pool:  # that of the store ends last
        stays = pool.submit(run_torchrun, tmp_path, ends, NODE.format(port, "true"), STAYS="1")
        leaves = pool.submit(run_torchrun, tmp_path, ends, NODE.format(port, "false"), STAYS="0")
        assert leaves.exception() is None  # torch itself would wait 300 s
        (tmp_path / "left").touch()
    assert stays.exception() is None


@pytest.mark.parametrize("text", ["d.init_process_group('gloo', 'file:///x')", "import mpi4py.MPI"])
def test_ranks_that_meet_elsewhere_are_not_named(run, text):
    _with_script(run, text)
    folder = opened(run, 1)
    node(folder, 0, ranks=[0])
    (folder.path / NEVER_MET).touch()
    assert "apart" not in str(ended(run, 1, "LOCAL")[1].evidence.plugins)


def _with_script(run, text):
    run.spec.write_text(Spec(launch=Launch(script="x.py")).to_json())
    shutil.rmtree(run.code, ignore_errors=True)
    run.code.mkdir()
    (run.code / "x.py").write_text(text)


@pytest.mark.plugin("look")
def test_status_and_why_of_a_complete_run_say_that_its_ranks_never_met(run, capsys, monkeypatch):
    _with_script(run, "print(1)")
    folder = opened(run, 1)
    for number in range(2):
        node(folder, number, ranks=[number])
    (folder.path / NEVER_MET).touch()
    facts, ending, decided = ended(run, 1, "LOCAL")
    assert decided.action == "done"
    record_writer.record(run, facts, ending, decided)
    write_json(run.result, {"status": "completed", "attempts": 1})
    for command in ("status", "why"):
        assert main([command, str(run.path)]) == 0
        assert "2 separate trainings: no rank called" in capsys.readouterr().out
    monkeypatch.setattr(local, "run", lambda _: 0)  # the lines behind it
    assert local.run_here(run) == 0
    assert "2 separate trainings: no rank called" in capsys.readouterr().out
