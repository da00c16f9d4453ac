"""Another process writes to the rendezvous of a run: nothing of it runs, and the run goes on."""

import pickle
from base64 import b64encode
from pathlib import Path

from torch.distributed import TCPStore

from slurm_job_kit.jobs.base.files import read_json, read_jsonl
from slurm_job_kit.jobs.contract.rundir import RunDir
from tests.checkout import copy_checkout
from tests.core.waiting import wait_for

SPEC = """
name: tiny
slurm: {nodes: 2}
launch: {max_crashes: 1}
train:
  model: tests.parts:perceptron
  dataset: tests.parts:table
  epochs: 1000000
  micro_batch_size: 8
"""


class Planted:
    """Creates a file in the process that unpickles it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def write_state(run, text):
    """Write to the rendezvous of the first attempt, as any process that reaches its port can."""
    plan = read_json(run.attempt(1).plan)
    key = f"torch.rendezvous.{plan['job_id']}-1"
    TCPStore("127.0.0.1", plan["head"]["port"], is_master=False).set(key, text)


def test_a_state_of_another_process_is_not_unpickled_and_is_the_reason(kit, tmp_path):
    kit.repository, config = tmp_path / "copy", tmp_path / "tiny.yaml"
    copy_checkout(kit.repository)
    config.write_text(SPEC)
    process = kit.start("submit", config, "--cluster", "local", "--no-check")
    started = kit.root / "tiny/latest/progress.json"
    wait_for(lambda: started.exists() and started.stat().st_size > 0, "no rank trains")
    run = RunDir((kit.root / "tiny/latest").resolve())
    key = run.attempt(1).rendezvous_key
    assert (key.stat().st_mode & 0o777, len(key.read_bytes())) == (0o600, 32)
    planted = tmp_path / "planted"
    write_state(run, b64encode(pickle.dumps(Planted(planted))).decode())
    status, _, stderr = kit.end(process)
    assert (status, planted.exists(), key.exists()) == (1, False, False)
    (record,) = read_jsonl(run.attempts)
    endpoint = f"127.0.0.1:{read_json(run.attempt(1).plan)['head']['port']}"
    words = "received data from a process outside this run"
    assert record["reason"] == f"the rendezvous at {endpoint} {words}"
    assert (record["cause"], record["why"]["kind"]) == ("crash", "node_failure"), stderr
    assert record["evidence"]["has_progress"]  # its ranks have saved
