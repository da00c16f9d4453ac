"""What the commands on a login node decide right after a job on other nodes has written files."""

import re
import shlex

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.base.files import append_jsonl
from slurm_job_kit.jobs.commands import resume
from slurm_job_kit.jobs.commands.catalogue import all_commands
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.queued import Submission
from slurm_job_kit.jobs.contract.records.timeline import Timeline
from slurm_job_kit.jobs.contract.rundir import RunDir
from tests.core import run_files
from tests.core.fake_slurm import squeue_line
from tests.core.run_files import make_checkpoint, make_run, write_json
from tests.core.two_hosts import TwoHosts, look

NAMES = (
    *("result.json", "attempts.jsonl", "owner.json", "cancelled", "successor.json", "plan.json"),
    *("outcome.json", "progress.json", "attempt.jsonl", "rank-00000.log", "latest", "best"),
    *("step-00000006", "manifest.json", "spec.json", "20260102", "points", "metrics.jsonl"),
)
# Each shows files of other hosts, and changes none.
SHOW_IN_ALL_PLUGINS = (
    *("status", "status --all", "status --json", "status tiny", "why tiny", "report --json"),
    *("logs tiny", "logs tiny --errors", "explain tiny", "compare tiny tiny", "clean --days 1"),
)
SHOW = [line for line in SHOW_IN_ALL_PLUGINS if line.split()[0] in all_commands()]


@pytest.fixture
def run(hosts, slurm, tmp_path, monkeypatch):
    """A run whose job 7 has opened attempt 1, as the host `here` sees it; commands run there."""
    monkeypatch.setenv("KIT_RUNS", str(hosts.there / "runs"))
    run_dir = make_run(hosts.here)
    run_files.freeze_code(run_files.make_kit(tmp_path / "checkout"), run_dir)
    run_dir.setup.write_text("export KIT_PYTHON=python3\n")
    records.write(run_dir.submission, Submission(("sbatch",), "7"))
    run_files.opened(run_dir)
    slurm.install("sbatch", "exit 1")  # no command of these tests queues a job
    return run_dir


@pytest.fixture
def there(hosts: TwoHosts, run: RunDir) -> RunDir:
    """The same run on the login node, which has looked at all of it before the job ended."""
    look(hosts.there, *NAMES)
    return hosts.run_there(run)


def complete(run: RunDir) -> None:
    """Write what a job leaves that has completed the run."""
    outcome = {"status": "completed", "global_step": 9, "weights_sha256": "a"}
    write_json(run.attempt(1).outcome, outcome)
    entry = run_files.attempt({"outcome": "completed"}, cause="completed", decision="done")
    append_jsonl(run.attempts, entry | {"checkpoint": "step-00000006", "last_step": 9})
    Timeline(run, "attempt", 1).event("close", decision="done")
    write_json(run.result, {"status": "completed", "global_step": 9, "attempts": 1})


@pytest.mark.plugin("look")
def test_why_reads_the_files_again_if_the_job_ends_while_it_looks(run, there, slurm, capsys):
    """The job is gone when Slurm is asked, which is after the files were read."""
    append_jsonl(slurm.bin.parent / "line", run_files.attempt(decision="hold"))
    Timeline(run, "attempt", 1).event("close", decision="hold")
    shown = shlex.quote(squeue_line("7", "COMPLETED"))
    slurm.install("squeue", f'cat "$FAKE_SLURM/line" >>{run.attempts}; printf %s {shown}')
    assert main(["why", there.run_id]) == 0
    assert "attempts.jsonl was deleted" not in capsys.readouterr().out


@pytest.mark.parametrize("is_complete", [True, False])
def test_each_command_shows_what_it_shows_on_the_host_of_the_files(
    hosts, run, there, capfd, monkeypatch, is_complete
):
    run.attempt(1).rank_log(0).write_text("hello\n")
    run.metrics.write_text('{"step": 9, "loss": 1.0}\n')
    make_checkpoint(run, 6)
    write_json(run.progress, {"step": 9, "total": 9})
    if is_complete:
        complete(run)
    shown = []
    for words in SHOW:
        for root in (hosts.there, hosts.here):
            monkeypatch.setenv("KIT_RUNS", str(root / "runs"))
            main(words.split())
            out = capfd.readouterr()
            text = (out.out + out.err).replace(str(hosts.there), str(hosts.here))
            text = text.replace("there/shared", "here/shared")
            shown.append(
                re.sub(r"\d+(\.\d+)?( s\b|,$)|[-\d]+ \d\d:\d\d:\d\d| +", "", text, flags=re.M)
            )
    assert shown[::2] == shown[1::2]


def test_resume_queues_no_job_for_a_run_that_completes_while_it_waits(
    run, there, slurm, capsys, monkeypatch
):
    slurm.set_state("7", "COMPLETED")
    monkeypatch.setattr(resume, "refuse_living", lambda *_: complete(run))
    assert main(["resume", there.run_id]) == 0
    assert "is already complete" in capsys.readouterr().out
