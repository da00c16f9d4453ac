"""Every way to start a job leads to a finished run: make, the Python command, plain sbatch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from slurm_job_kit.jobs.rundir import RunDir

from .cluster import Cluster
from .kit import REPOSITORY, Kit, Run

CANCER = "configs/cancer.yaml"


@pytest.fixture
def kit(cluster: Cluster, tmp_path: Path) -> Kit:
    return Kit(cluster, tmp_path)


def ranks_and_hosts(run: Run) -> dict[int, str]:
    """Where each rank of the last attempt ran."""
    writers = sorted((run.dir.path / "timeline").glob("rank-*.jsonl"))
    lines = [json.loads(path.read_text().splitlines()[0]) for path in writers]
    return {rank: line["host"] for rank, line in enumerate(lines)}


def test_make_submit_runs_two_nodes_with_two_ranks_each(kit: Kit) -> None:
    words = "slurm.cpus_per_task=2 launch.nproc_per_node=2 train.epochs=1"
    make = ("make", "submit", f"PYTHON={sys.executable}", "READY=")
    said = kit.run(*make, f"CONFIG={CANCER}", f"SET={words}", "FLAGS=--json").stdout
    submitted = json.loads(said)
    run = Run(kit.cluster, submitted["job_id"], RunDir(Path(submitted["run_dir"])))
    assert kit.run("squeue", "--noheader", "--format=%j").stdout.strip() == "cancer"
    assert run.dir.rank_log(0).exists()  # so tail -F works at once
    run.wait()
    assert sorted(ranks_and_hosts(run).values()) == ["n1", "n1", "n2", "n2"]
    assert run.result()["status"] == "completed"


def test_sbatch_runs_a_config_and_its_options_override_config_and_script(kit: Kit) -> None:
    options, overrides = ("--nodes=3", "--time=5"), ("train.epochs=2",)
    run = kit.sbatch(*options, "slurm/ddp.sbatch", CANCER, *overrides)
    run.wait()
    assert sorted(ranks_and_hosts(run).values()) == ["n1", "n2", "n3"]
    frozen = json.loads(run.dir.spec.read_text())["slurm"]
    assert (frozen["nodes"], frozen["time"]) == (3, "00:05:00")
    said = "18 batches per rank, 54 in all, 432 samples an epoch, 23 dropped"
    assert said in run.log()
    assert run.result()["global_step"] == 2 * 18
    log = (kit.runs_root / f"{run.job_id}.out").read_text()
    assert "warning: slurm.nodes: the config has 2, the allocation 3" in log
    assert "tail -F" in log and "completed" in log and "localhost" not in log


def test_an_edited_script_whose_signal_stops_no_rank_is_refused_before_the_training(
    kit: Kit,
) -> None:
    script = kit.runs_root / "mine.sbatch"
    kit.runs_root.mkdir(parents=True, exist_ok=True)
    text = (REPOSITORY / "slurm/ddp.sbatch").read_text()
    script.write_text(text.replace("--signal=USR1@120", "--signal=KILL@120"))
    run = kit.sbatch(script, CANCER)
    run.wait("FAILED")
    log = (kit.runs_root / f"{run.job_id}.out").read_text()
    assert "sbatch's --signal=KILL@120 stops no rank" in log
    assert not run.dir.attempt(1).plan.exists()


@pytest.mark.slow
def test_array_job_runs_the_points_of_a_sweep_directory(kit: Kit) -> None:
    points = kit.runs_root / "sweep" / "points"
    points.mkdir(parents=True)
    for point in range(2):
        one = ("slurm.nodes=1", "train.epochs=1", f"train.seed={point}")
        run_dir = json.loads(kit.jobs("freeze", CANCER, *one).stdout)["run_dir"]
        (points / str(point)).symlink_to(run_dir)
    output = f"--output={kit.runs_root}/%A_%a.out"
    # Then srun gives the agents the variables of the batch script, and not only Slurm's own. The
    # PATH of a log-in does not have the programs of another Slurm.
    export = "ALL" if kit.cluster.site.prefix else "NONE"
    options = (f"--export={export}", "-N1", "--array=0-1", output)
    array = ("--parsable", *options, "slurm/ddp.sbatch", points.parent)
    job_id = kit.run("sbatch", *array).stdout.strip()
    for point in range(2):
        kit.cluster.wait_job(f"{job_id}_{point}", "COMPLETED", 120)
        assert json.loads((points / str(point) / "result.json").read_text())["attempts"] == 1
        owner_job = json.loads((points / str(point) / "attempts.jsonl").read_text())["job_id"]
        assert owner_job == f"{job_id}_{point}"


def test_refused_job_shows_command_and_reason_and_leaves_nothing(kit: Kit) -> None:
    answer = kit.jobs("submit", CANCER, "slurm.sbatch_args.gres=none:1", "--no-check", check=False)
    assert answer.returncode == 1
    assert "--gres=none:1" in answer.stderr and "invalid" in answer.stderr.lower()
    assert "hint: slurm.gpus_per_node: " in answer.stderr
    assert not list(kit.runs_root.glob("cancer/*/spec.json"))
    assert kit.cluster.job_ids() == []


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("slurm.partition=nowhere", "partition"),
        ("slurm.nodes=9", "nodes or slurm.constraint"),
        ("slurm.constraint=a100", "nodes or slurm.constraint"),
    ],
)
def test_what_this_slurm_lacks_is_refused_with_its_words_and_a_key(
    kit: Kit, override: str, key: str
) -> None:
    answer = kit.jobs("submit", CANCER, override, "--no-check", check=False)
    assert answer.returncode == 1 and "nothing is queued" in answer.stderr
    assert f"hint: slurm.{key}: " in answer.stderr
    assert not list(kit.runs_root.glob("cancer/*/spec.json"))
    assert kit.cluster.job_ids() == []


def test_a_typo_in_the_model_is_refused_before_the_queue(kit: Kit) -> None:
    answer = kit.jobs("submit", CANCER, "train.model=configs.own_parts:nett", check=False)
    assert answer.returncode == 2
    assert "override train.model=configs.own_parts:nett: train.model: " in answer.stderr
    assert "module 'configs.own_parts' has no attribute 'nett'" in answer.stderr
    assert not list(kit.runs_root.glob("cancer/*/spec.json"))
    assert kit.cluster.job_ids() == []


def test_dry_run_asks_slurm_and_queues_nothing(kit: Kit) -> None:
    answer = kit.jobs("submit", CANCER, "--dry-run")
    assert "to start at" in answer.stderr
    refused = kit.jobs("submit", CANCER, "slurm.nodes=9", "--dry-run", check=False)
    assert refused.returncode == 1 and "not available" in refused.stderr
    assert kit.cluster.job_ids() == [] and not list(kit.runs_root.glob("*"))


@pytest.mark.slow
def test_hostile_name_reaches_squeue_intact_and_runs_nothing(kit: Kit) -> None:
    name = "müll; $(touch hacked) `touch hacked` 'x\""
    run = kit.submit(CANCER, f"name={json.dumps(name)}", "slurm.nodes=1", "train.epochs=1")
    assert kit.run("squeue", "--noheader", "--format=%j").stdout == name + "\n"
    run.wait()
    assert f"JobName={name}" in kit.run("scontrol", "show", "job", run.job_id).stdout
    assert not list(kit.runs_root.rglob("hacked")) and not (REPOSITORY / "hacked").exists()


def test_queued_run_is_listed_not_resumed_and_cancelled(kit: Kit) -> None:
    run = kit.submit(CANCER, "slurm.sbatch_args.hold=true")
    row = json.loads(kit.jobs("status", "--json", run.job_id).stdout)[0]
    assert (row["state"], row["run_id"]) == ("pending", run.dir.run_id)
    refused = kit.jobs("resume", run.dir.run_id, check=False)
    assert refused.returncode == 2 and f"queued or running as job {run.job_id}" in refused.stderr
    kit.jobs("cancel", "cancer")
    run.wait("CANCELLED")
    assert json.loads(kit.jobs("status", "--json").stdout)[0]["state"] == "cancelled"
