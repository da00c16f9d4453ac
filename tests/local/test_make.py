"""The make commands of README.md, typed as a user types them, on local runs."""

import os
import shutil
import signal
import sys

import pytest

from slurm_job_kit.jobs.base.files import read_json, read_jsonl
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.plugins import PLUGINS
from tests.core.run_files import read_progress_steps
from tests.core.waiting import wait_for
from tests.local.local_kit import Kit

# The interpreter of the tests, and no installation of .venv.
MAKE = ("make", f"PY={sys.executable}", "READY=")
TABLE = "CONFIG=tests/slurm/table.yaml"
# Slow until PACE_FILE is deleted.
PACED = (
    "slurm.nodes=1 launch.nproc_per_node=2 launch.stop_check_steps=1 launch.env.PACE_FILE=%s "
    "train.dataset=tests.parts:images train.model=tests.slurm.paced:Paced train.epochs=1"
)
LOCAL = "FLAGS=--cluster local"


class Make(Kit):
    """`make ...` with a runs root of its own."""

    def __init__(self, root):
        super().__init__(root)
        self.command = [*MAKE]
        # They come from the `make test` around the tests, and let make print lines of its own.
        for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "FLAGS"):
            self.env.pop(name, None)

    def check(self, *words):
        """The stdout of a command that must succeed."""
        status, stdout, stderr = self.run(*words)
        assert status == 0, stderr
        return stdout


@pytest.fixture
def make(tmp_path):
    kit = Make(tmp_path / "runs")
    yield kit
    kit.kill()


def test_ctrl_c_before_an_agent_can_note_it_is_no_crash_nor_an_error_of_make(make, tmp_path):
    config = tmp_path / "slow.yaml"
    config.write_text("name: slow\nlaunch: {command_prefix: [bash, -c, exec sleep 60]}\n")
    submit = make.start("submit", f"CONFIG={config}", LOCAL, start_new_session=True)
    wait_for((make.root / "slow/latest/attempt-1/plan.json").exists, "no attempt")
    os.killpg(submit.pid, signal.SIGINT)  # as a terminal does
    status, _, stderr = make.end(submit)
    assert status == -signal.SIGINT and "***" not in stderr, stderr
    (run,) = (make.root / "slow").glob("2*")
    assert stderr.endswith(f"stopped, nothing saved; next: make resume RUN={run.name}\n")
    (record,) = read_jsonl(RunDir(run).attempts)
    assert record["cause"] == "interrupted"


def test_the_commands_of_the_readme_lead_a_run_from_submit_to_export(make, tmp_path):
    pace = tmp_path / "pace"
    pace.touch()
    assert "signed_torchrun" in make.check("dry-run", TABLE, "FLAGS=--cluster local --full")
    submit = make.start("submit", TABLE, f"SET={PACED % pace}", LOCAL)
    wait_for((make.root / "table/latest/progress.json").exists, "no step is done")
    run = RunDir((make.root / "table/latest").resolve())
    if "look" in PLUGINS:
        assert "running" in make.check("status")
    make.check("cancel", f"RUN={run.run_id}")
    assert make.end(submit)[0] != 0
    if "look" in PLUGINS:
        assert "rank 0 of 2" in make.check("logs", f"RUN={run.run_id}")
        assert "stopped on request" in make.check("status", "RUN=table")

    pace.unlink()
    make.check("resume", "RUN=table", LOCAL)
    assert read_json(run.result)["status"] == "completed"
    assert read_progress_steps(run.progress)[0] == read_json(run.result)["global_step"]
    if "export" in PLUGINS:
        assert ".safetensors" in make.check("export", f"RUN={run.path}")
    if "clean" in PLUGINS:  # it knows all files of a run
        assert "1 run and 0 copies of code; nothing is deleted" in make.check("clean", "RUN=table")
    if "compare" not in PLUGINS:
        return
    other = shutil.copytree(run.path, make.root / "other", symlinks=True)
    make.check("compare", f"RUN={run.run_id}", f"WITH={other}")


@pytest.mark.parametrize("given", [["CONFIG=nothing.yaml"], [TABLE, "SET=train.lrr=1"]])
def test_make_train_refuses_a_bad_spec_without_a_traceback(make, given):
    status, stdout, stderr = make.run("train", *given)
    assert status == 2 and not stdout
    assert stderr.startswith("error: ")
    assert "Traceback" not in stderr and "torch" not in stderr
