"""The commands as a user types them: exit codes, what goes where, what is not imported."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from jobs import records
from jobs.__main__ import main
from jobs.attempt import run_lock
from jobs.attempt.decision import Action, Cause, Decision
from jobs.commands import local, status, submit
from jobs.config.load import load
from jobs.errors import UserError
from jobs.records import Overrides, Result
from jobs.rundir import RunDir, append_jsonl, read_json, read_jsonl, write_json
from jobs.runs import lookup
from jobs.spec import Launch, Spec
from tests.unit import run_files

REPOSITORY = Path(__file__).resolve().parents[3]
TINY = "name: tiny\nslurm: {nodes: 2}\n"
SBATCH = """#!/bin/sh
case "$*" in *--test-only*) echo 'sbatch: Job 1 to start' >&2; exit "$FAKE_EXIT" ;; esac
[ "$FAKE_EXIT" = 0 ] || { echo 'sbatch: error: no such partition' >&2; exit "$FAKE_EXIT"; }
echo 'Submitted batch job 4711'
"""
SCANCEL = """#!/bin/sh
echo "$@" >>"$FAKE/cancelled"
"""
SCONTROL = """#!/bin/sh
[ "$2" = job ] || exit 0
state=$(cat "$FAKE/state.$3" 2>/dev/null) || state=${FAKE_STATE:-RUNNING}
echo "   JobState=$state Reason=None Dependency=(null)"
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory with a spec, a runs root, and no Slurm."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "KIT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("MODULEPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path


@pytest.fixture
def slurm(here, monkeypatch):
    """The same with fakes of Slurm's clients; returns a switch for their exit status."""
    monkeypatch.setenv("PATH", f"{here / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE", str(here))
    fakes = {"sbatch": SBATCH, "scancel": SCANCEL, "scontrol": SCONTROL, "srun": "#!/bin/sh\n"}
    for name, text in fakes.items():
        (here / "bin" / name).write_text(text)
        (here / "bin" / name).chmod(0o755)
    for name in ("squeue", "sacct"):
        (here / "bin" / name).write_text("#!/bin/sh\nexit 1\n")
        (here / "bin" / name).chmod(0o755)
    monkeypatch.setenv("FAKE_EXIT", "0")
    return lambda status: monkeypatch.setenv("FAKE_EXIT", str(status))


def make(here, run_id="20260101", name="tiny"):
    run = RunDir(here / "runs" / name / run_id)
    run.path.mkdir(parents=True)
    run.spec.write_text(Spec(name=name).to_json())
    run.spec_yaml.write_text(f"name: {name}\n")
    records.write(run.overrides, Overrides(()))
    return run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["submit", "nowhere.yaml"], "nowhere.yaml"),
        (["submit", "tiny.yaml", "slurm.nodse=3"], "slurm.nodse: unknown key"),
        (["submit", "tiny.yaml", "--set", "'"], "--set"),
        (["submit", "tiny.yaml", "--cluster", "slurm"], "no sbatch on PATH"),
        (["status", "nothing"], "no run 'nothing'"),
        (["cancel", "nothing"], "no run 'nothing'"),
        (["logs"], "no runs in"),
        (["resume"], "no runs in"),
    ],
)
def test_a_users_mistake_is_said_without_a_traceback_and_exits_2(here, capsys, words, said):
    assert main(words) == 2
    output = capsys.readouterr()
    assert output.err.startswith("error: ")
    assert said in output.err
    assert output.out == ""
    assert not (here / "runs").exists()


def test_a_disk_that_fails_is_told_in_one_line(here, capsys):
    make(here).rank_log(0).mkdir(parents=True)  # whoever is root may read anything else
    assert main(["logs"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.endswith("rank-00000.log: Is a directory\n")


def test_a_wished_slurm_is_asked_even_if_it_knows_no_cluster(slurm, here, capsys):
    lost = "#!/bin/sh\necho 'fatal: Could not establish a configuration source' >&2\nexit 1\n"
    (here / "bin/sbatch").write_text(lost)
    assert main(["submit", "tiny.yaml", "--dry-run", "--cluster", "slurm"]) == 1
    assert "configuration source" in capsys.readouterr().err


def test_a_job_that_slurm_refuses_exits_1(slurm, capsys):
    slurm(7)
    assert main(["submit", "tiny.yaml"]) == 1
    assert "exit code 7" in capsys.readouterr().err
    assert lookup.all_runs() == []


def test_submit_says_where_the_run_is_and_how_to_watch_it(slurm, capsys):
    assert main(["submit", "tiny.yaml"]) == 0
    (run,) = lookup.all_runs()
    path = run.path.relative_to(Path.cwd())
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["job 4711", f"run directory {path}", f"tail -F {path}/logs/rank-00000.log"]


def test_submit_as_json_is_one_object(slurm, capsys):
    assert main(["submit", "tiny.yaml", "slurm.nodes=3", "--json"]) == 0
    (run,) = lookup.all_runs()
    ids = {"job_id": "4711", "run_id": run.run_id, "run_dir": str(run.path), "cluster": "slurm"}
    assert json.loads(capsys.readouterr().out) == ids
    assert Spec.from_json(run.spec.read_text()).slurm.nodes == 3


def test_overrides_come_as_words_and_as_one_text(slurm):
    text = "slurm.time='00:10:00' name=b"
    assert main(["submit", "tiny.yaml", "train.lr=0.5", "--set", text]) == 0
    spec = Spec.from_json(lookup.all_runs()[0].spec.read_text())
    assert (spec.train.lr, spec.slurm.time, spec.name) == (0.5, "00:10:00", "b")


@pytest.mark.parametrize("status", [0, 1])
def test_a_dry_run_shows_command_script_and_spec_and_writes_nothing(slurm, here, capsys, status):
    slurm(status)
    assert main(["submit", "tiny.yaml", "--dry-run"]) == status
    output = capsys.readouterr()
    assert output.out.startswith("# command\nsbatch --job-name=tiny --nodes=2 ")
    assert (REPOSITORY / "slurm/ddp.sbatch").read_text() in output.out
    spec = Spec.from_json(output.out.partition("# resolved spec\n")[2])
    assert spec == load(Path("tiny.yaml")).spec
    assert "sbatch: Job 1 to start" in output.err
    assert not (here / "runs").exists()


def test_a_dry_run_needs_no_slurm(here, capsys):
    assert main(["submit", "tiny.yaml", "--dry-run"]) == 0
    assert "no sbatch asked" in capsys.readouterr().err
    assert os.listdir(here) == ["bin", "tiny.yaml"] or not (here / "runs").exists()


def test_auto_takes_slurm_where_it_is(slurm):
    assert submit.choose_cluster("auto") == "slurm"
    assert submit.choose_cluster("local") == "local"


def test_auto_runs_here_where_slurm_is_only_installed(slurm, here, capsys):
    lost = "#!/bin/sh\necho 'fatal: Could not establish a configuration source' >&2\nexit 1\n"
    (here / "bin/sbatch").write_text(lost)
    assert main(["submit", "tiny.yaml", "--dry-run"]) == 0
    assert "no sbatch asked" in capsys.readouterr().err
    assert submit.choose_cluster("auto") == "local"
    assert "knows no cluster: running here" in capsys.readouterr().err


def test_auto_trains_on_no_login_node_whose_slurm_is_not_loaded(here, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    with pytest.raises(UserError, match="(?s)looks like a cluster: SLURM_CONF.*--cluster local"):
        submit.choose_cluster("auto")
    assert submit.choose_cluster("local") == "local"


def test_status_lists_runs_newest_first(here, capsys):
    for run_id in ("20260101", "20260102"):
        make(here, run_id)
    assert main(["status"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["NAME", "RUN", "JOB", "STATE", "ATTEMPT", "PROGRESS"]
    assert [line[1] for line in lines[1:]] == ["20260102", "20260101"]


def test_status_without_runs_says_how_to_start(here, capsys):
    assert main(["status"]) == 0
    assert "make submit" in capsys.readouterr().out
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_status_as_json_has_state_progress_and_metrics(here, capsys):
    run = make(here)
    write_json(run.result, {"status": "completed", "metrics": {"eval_accuracy": 0.5}})
    run.progress.write_text('{"step": 42, "total": 50, "epoch": 1, "epochs": 2}')
    assert main(["status", "tiny", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["state"], row["step"], row["job_id"]) == ("completed", 42, None)
    assert row["metrics"] == {"eval_accuracy": 0.5}


@pytest.mark.parametrize(
    ("result", "slurm_state", "state"),
    [
        ({}, None, "frozen"),
        ({}, "PENDING", "pending"),
        ({}, "NODE_FAIL", "node_fail"),
        ({"status": "held"}, None, "held"),
        ({"status": "held"}, "FAILED", "held"),
        ({"status": "held"}, "PENDING", "pending"),
        ({"status": "completed"}, "TIMEOUT", "completed"),
        ({"status": "completed"}, "RUNNING", "completed"),
    ],
)
def test_the_run_directory_knows_better_than_slurm_how_a_run_ended(
    here, result, slurm_state, state
):
    written = Result(**result) if result else None
    assert status.state_of(make(here), written, slurm_state) == state


def test_a_run_of_another_kit_is_listed_with_what_it_is(here, capsys):
    old, run = make(here, "old", "old"), make(here)
    old.spec.write_text("{}")
    old.attempts.write_text('{"attempt": 1}\n')
    assert main(["status", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["old"]["state"] == "unreadable" and "older version" in rows["old"]["reason"]
    assert rows[run.path.parent.name]["state"] == "frozen"
    assert main(["status"]) == 0


def test_a_local_run_is_running_while_its_process_lives(here):
    run = make(here)
    run_lock.claim(run, run_lock.this_process(None), 1)
    assert status.state_of(run, None, None) == "running"
    record = asdict(run_lock.this_process(None)) | {"pid_start": "1", "attempt": 1}
    write_json(run.owner, record)
    assert status.state_of(run, None, None) == "lost"


def test_logs_shows_a_rank_or_says_which_there_are(here, capsys):
    log = make(here).rank_log(0)
    log.parent.mkdir()
    log.write_bytes(b"step 1\n\xff")
    assert main(["logs", "tiny"]) == 0
    assert capsys.readouterr().out == "step 1\n\ufffd"
    assert main(["logs", "tiny", "--rank", "3"]) == 2
    assert "there is rank-00000.log" in capsys.readouterr().err


def test_cancel_stops_a_queued_job_and_the_run_is_cancelled(slurm, here, capsys, monkeypatch):
    monkeypatch.setenv("FAKE_STATE", "PENDING")
    main(["submit", "tiny.yaml"])
    (run,) = lookup.all_runs()
    run_lock.claim(run, run_lock.this_process("4711"), 1)  # as after a requeue
    append_jsonl(run.attempts, run_files.attempt(cause="preemption", decision="requeue"))
    assert main(["cancel", "4711"]) == 0
    (record,) = records.read_attempts(run)
    assert (record.cause, record.decision) == ("preemption", "cancel")
    assert (here / "cancelled").read_text() == "4711\n"
    capsys.readouterr()
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "cancelled"
    assert not run.owner.exists()


@pytest.fixture
def guarded(slurm, here, capsys):
    """A submitted run whose job 4711 has a successor; a switch for the states of both."""
    assert main(["submit", "tiny.yaml"]) == 0
    (run,) = lookup.all_runs()
    write_json(run.successor, {"job_id": "4712", "after": "4711", "reason": "because"})
    squeue = here / "bin/squeue"

    def states(first, second):
        for job_id, state in (("4711", first), ("4712", second)):
            (here / f"state.{job_id}").write_text(state)
        squeue.write_text(f"#!/bin/sh\nprintf '4711|{first}\\n4712|{second}\\n'\n")
        capsys.readouterr()
        return run

    return states


def test_cancel_takes_the_job_that_waits_along(guarded, here):
    guarded("RUNNING", "PENDING")
    assert main(["cancel", "tiny"]) == 0
    assert (here / "cancelled").read_text() == "4711 4712\n"


def test_cancel_of_a_run_that_only_its_successor_is_left_of(guarded, here):
    run = guarded("NODE_FAIL", "PENDING")
    assert main(["cancel", "tiny"]) == 0
    assert (here / "cancelled").read_text() == "4712\n"
    assert read_json(run.result)["status"] == "cancelled"


@pytest.mark.parametrize(
    ("states", "jobs", "state"),
    [
        (("RUNNING", "PENDING"), "4711, then 4712", "running"),
        (("NODE_FAIL", "PENDING"), "4712", "pending"),
        (("RUNNING", "CANCELLED"), "4711", "running"),
        (("FAILED", "CANCELLED"), "4711", "failed"),
    ],
)
def test_status_shows_the_job_that_waits(guarded, capsys, states, jobs, state):
    guarded(*states)
    assert main(["status"]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert f"  {jobs}  {state}  " in row


def test_status_as_json_names_the_successor(guarded, capsys):
    guarded("RUNNING", "PENDING")
    assert main(["status", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["job_id"], row["successor"]) == ("4711", "4712")


def test_resume_keeps_off_a_run_that_goes_on_by_itself(guarded, capsys):
    guarded("NODE_FAIL", "PENDING")
    assert main(["resume", "tiny"]) == 2
    assert "queued as job 4712, which goes on by itself" in capsys.readouterr().err


def test_cancel_leaves_a_completed_run_alone(slurm, here, capsys):
    run = make(here)
    write_json(run.result, {"status": "completed"})
    assert main(["cancel", "tiny"]) == 2
    assert read_json(run.result) == {"status": "completed"}


def test_cancel_of_what_does_not_run_is_a_users_error(slurm, here, capsys, monkeypatch):
    make(here)
    assert main(["cancel", "tiny"]) == 2
    monkeypatch.setenv("FAKE_STATE", "FAILED")
    main(["submit", "tiny.yaml"])
    assert main(["cancel", "4711"]) == 2
    assert "neither queued nor running" in capsys.readouterr().err
    assert not (here / "cancelled").exists()


def test_resume_of_a_complete_run_does_nothing(here, capsys):
    run = make(here)
    write_json(run.result, {"status": "completed"})
    assert main(["resume"]) == 0
    assert capsys.readouterr().out == (
        "20260101 is complete, there is nothing to resume; to train on, submit a new run "
        "with train.init_from=runs/tiny/20260101\n"
    )


def test_a_change_of_a_complete_run_is_refused_with_the_way_to_train_on(here, capsys):
    run = make(here)
    write_json(run.result, {"status": "completed"})
    before = run.spec.read_text()
    assert main(["resume", "tiny", "train.epochs=9", "--yes"]) == 2
    assert capsys.readouterr().err == (
        "error: 20260101 is complete, there is nothing to resume, so nothing is changed\n"
        "  hint: to train on, submit a new run with train.init_from=runs/tiny/20260101\n"
    )
    assert run.spec.read_text() == before
    run.spec.write_text(Spec(name="tiny", launch=Launch(script="x.py")).to_json())
    assert main(["resume", "tiny", "train.epochs=9"]) == 2
    assert capsys.readouterr().err.endswith("hint: to train on, submit a new run\n")


def ended_here(run, cause, is_user_error, monkeypatch):
    """What a local run says that ended so."""
    decision = Decision(Action.HOLD, cause, "why")
    append_jsonl(run.attempts, run_files.attempt({"is_user_error": is_user_error}))
    monkeypatch.setattr(local, "run", lambda _: decision)
    return submit.run_here(run, False)


@pytest.mark.parametrize(
    ("cause", "is_user_error", "lines"),
    [
        (Cause.INTERRUPTED, False, ["step 0: why", "next: make resume RUN=20260101"]),
        (Cause.HANG, False, ["step 0: hang, see above", "next: make resume RUN=20260101"]),
        (
            Cause.CRASH,
            False,
            ["step 0: crash, see above"]
            + ["next: mend it and submit again, or make resume RUN=20260101"],
        ),
        (
            Cause.CRASH,
            True,
            ["step 0: crash, see above"]
            + ["next: mend it first; then submit again, or make resume RUN=20260101"]
            + ['SET="KEY=VALUE" if a key is at fault'],
        ),
    ],
)
def test_a_local_run_that_stopped_says_what_to_do(
    here, capsys, monkeypatch, cause, is_user_error, lines
):
    assert ended_here(make(here), cause, is_user_error, monkeypatch) in (1, 130)
    said = capsys.readouterr().err.partition("stopped after ")[2].replace("\n", " ")
    assert said == " ".join(lines) + " "


@pytest.mark.parametrize("words", [["status"], ["logs", "tiny"]])
def test_a_reader_that_has_seen_enough_ends_a_command_in_silence(here, words):
    log = make(here).rank_log(0)
    log.parent.mkdir()
    log.write_text("a line\n" * 100_000)
    command = [sys.executable, "-m", "jobs", *words]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": ""}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, env=env, stdout=writing, stderr=subprocess.PIPE, timeout=30)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_resume_of_a_running_job_is_a_users_error(slurm, capsys):
    main(["submit", "tiny.yaml"])
    assert main(["resume", "4711"]) == 2
    assert "is queued or running as job 4711" in capsys.readouterr().err


def test_resume_wants_to_know_whether_the_job_still_runs(slurm, here, capsys):
    main(["submit", "tiny.yaml"])
    (here / "bin/scontrol").write_text("#!/bin/sh\necho Unable to contact slurmctld >&2\nexit 1\n")
    assert main(["resume", "4711"]) == 1
    assert "Slurm does not say whether job 4711 still runs" in capsys.readouterr().err


def test_resume_submits_the_same_run_again_with_other_limits(slurm, monkeypatch, capsys):
    main(["submit", "tiny.yaml"])
    (run,) = lookup.all_runs()
    monkeypatch.setenv("FAKE_STATE", "TIMEOUT")
    assert main(["resume", "slurm.time=00:20:00", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["run_id"] == run.run_id
    assert Spec.from_json(run.spec.read_text()).slurm.time == "00:20:00"
    assert lookup.all_runs() == [run]


def test_resume_changes_what_a_result_depends_on_only_with_a_yes(slurm, monkeypatch, capsys):
    main(["submit", "tiny.yaml"])
    (run,) = lookup.all_runs()
    monkeypatch.setenv("FAKE_STATE", "TIMEOUT")
    assert main(["resume", "train.lr=0.3"]) == 2
    said = capsys.readouterr().err
    assert "train.lr: 0.1 -> 0.3\n  hint: repeat it with --yes (make: YES=1)" in said
    assert Spec.from_json(run.spec.read_text()).train.lr == 0.1
    assert main(["resume", "train.lr=0.3", "--yes"]) == 0
    assert Spec.from_json(run.spec.read_text()).train.lr == 0.3
    assert len(read_jsonl(run.changes)) == 1


def test_a_resume_that_slurm_refuses_leaves_the_spec_as_it_was(slurm, here, capsys):
    run = make(here)
    before = run.spec.read_text(), run.overrides.read_text()
    slurm(7)
    assert main(["resume", "train.lr=0.3", "slurm.time=9:00:00", "--yes"]) == 1
    assert (run.spec.read_text(), run.overrides.read_text()) == before


def test_compare_says_bitwise_equal_or_how_two_runs_differ(here, capsys):
    result = {"status": "completed", "global_step": 9, "weights_sha256": "ab"}
    for name in ("a", "b"):
        write_json(make(here, name, name).result, result | {"exactness": "bitwise"})
    assert main(["compare", "a", "b"]) == 0
    assert capsys.readouterr().out == "bitwise equal: 9 steps, weights ab\n"
    write_json(make(here, "c", "c").result, result | {"exactness": "bitwise", "global_step": 8})
    assert main(["compare", "c", "b"]) == 1
    assert capsys.readouterr().out == "global_step: 8 is not 9\n"


def test_export_starts_the_trainers_with_the_live_checkout(here, monkeypatch, capsys):
    run = make(here)
    assert main(["export", "tiny"]) == 2
    assert "20260101 has no checkpoint yet\n  hint: " in capsys.readouterr().err
    (run.checkpoints / "step-00000009").mkdir(parents=True)
    started = []
    monkeypatch.setattr(os, "execv", lambda path, words: started.append([path, *words]))
    main(["export", "tiny", "--checkpoint", "best", "--out", "w.safetensors"])
    main(["export"])
    command = [sys.executable, sys.executable, "-m", "trainer.checkpoint.export", str(run.path)]
    assert started == [[*command, "--checkpoint", "best", "--out", "w.safetensors"], command]


@pytest.mark.parametrize(
    ("words", "banned"),
    [
        (["--help"], ["torch", "pydantic", "yaml", "submitit", "numpy"]),
        (["status"], ["torch", "pydantic", "yaml", "submitit", "numpy"]),
        (["submit", "tiny.yaml"], ["torch", "numpy"]),
    ],
)
def test_a_command_starts_without_what_it_does_not_need(slurm, words, banned):
    command = [sys.executable, "-X", "importtime", "-m", "jobs", *words]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "jobs.commands.submit" in imported
    assert imported.isdisjoint(banned)


def test_overrides_may_stand_behind_options():
    from jobs.__main__ import parse

    args = parse(["submit", "x.yaml", "a=1", "--cluster", "local", "b=2"])
    assert (args.overrides, args.cluster) == (["a=1", "b=2"], "local")
    with pytest.raises(SystemExit):
        parse(["submit", "x.yaml", "--clutser", "local"])
