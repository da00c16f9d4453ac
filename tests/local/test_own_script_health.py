"""A user's own script that hangs on one node."""

import pytest

from slurm_job_kit.jobs.rundir import RunDir, read_jsonl

LIMIT_S = 12  # longer than the import of torch takes, which writes nothing
OWN = f"""
name: own
slurm: {{nodes: 2}}
launch:
  script: SCRIPT
  max_crashes: 1
  hang_timeout_s: {LIMIT_S}
"""
# One rank leaves the others alone in a collective.
MEETING = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
print("met", flush=True)
dist.all_reduce(torch.ones(1))
if os.environ["RANK"] == "1":
    time.sleep(1000)
dist.all_reduce(torch.ones(1))
os._exit(0)
"""


@pytest.mark.slow  # row 47 of the fault table, without a Slurm
def test_a_script_that_hangs_on_one_node_ends_with_the_stacks_of_all_ranks(kit, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/run.py").write_text(MEETING)
    config = tmp_path / "own.yaml"
    config.write_text(OWN.replace("SCRIPT", str(tmp_path / "mine/run.py")))
    status, _, stderr = kit.run("submit", config, "--cluster", "local")
    assert status == 1, stderr
    run = RunDir((kit.root / "own/latest").resolve())
    (record,) = read_jsonl(run.attempts)
    assert (record["cause"], record["evidence"]["kind"]) == ("hang", "hang")
    waiting, hanging = (run.attempt(1).rank_log(rank).read_text() for rank in (0, 1))
    assert "Fatal Python error: Aborted" in hanging and "line 8 in <module>" in hanging
    # An agent aborts its ranks some seconds after the first one did, and a rank that waits for
    # those may have failed by then: its last lines are the traceback of the same place.
    assert "line 9" in waiting and "all_reduce" in waiting
