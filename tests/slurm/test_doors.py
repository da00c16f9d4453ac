"""Every way to start a job leads to a finished run: make, the Python command, plain sbatch."""

import json
import sys
from pathlib import Path

import pytest

from slurm_job_kit.jobs.contract.rundir import RunDir
from tests.core.run_files import answered

from .kit import TABLE, Kit, Run


def ranks_and_hosts(run: Run) -> dict[int, str]:
    """Where each rank of the last attempt ran."""
    writers = sorted((run.dir.path / "timeline").glob("rank-*.jsonl"))
    lines = [json.loads(path.read_text().splitlines()[0]) for path in writers]
    return {rank: line["host"] for rank, line in enumerate(lines)}


def test_make_submit_runs_two_nodes_with_two_ranks_each(kit: Kit) -> None:
    words = "slurm.cpus_per_task=2 launch.nproc_per_node=2 train.epochs=1"
    make = ("make", "submit", f"PY={sys.executable}", "READY=")
    said = kit.run(*make, f"CONFIG={TABLE}", f"SET={words}", "FLAGS=--json").stdout
    submitted = answered(said)
    run = Run(kit.cluster, submitted["job_id"], RunDir(Path(submitted["run_dir"])))
    assert kit.run("squeue", "--noheader", "--format=%j").stdout.strip() == "table"
    assert run.dir.rank_log(0).exists()  # so tail -F works at once
    run.wait()
    assert sorted(ranks_and_hosts(run).values()) == ["n1", "n1", "n2", "n2"]
    assert run.result()["status"] == "completed"


def test_sbatch_runs_a_config_and_its_options_override_config_and_script(kit: Kit) -> None:
    options, overrides = ("--nodes=3", "--time=5"), ("train.epochs=2",)
    run = kit.sbatch(*options, "slurm/ddp.sbatch", TABLE, *overrides)
    run.wait()
    assert sorted(ranks_and_hosts(run).values()) == ["n1", "n2", "n3"]
    frozen = json.loads(run.dir.spec.read_text())["slurm"]
    assert (frozen["nodes"], frozen["time"]) == (3, "00:05:00")
    said = "432 samples an epoch, 23 dropped"
    assert said in run.log()
    assert run.result()["global_step"] == 2 * 18
    log = (kit.runs_root / f"{run.job_id}.out").read_text()
    assert "warning: slurm.nodes: the config has 2, the allocation 3" in log
    assert "tail -F" in log and "completed" in log and "localhost" not in log


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("slurm.partition=nowhere", "partition"),
        ("slurm.constraint=a100", "nodes or slurm.constraint"),
        ("slurm.sbatch_args.gres=none:1", "gpus_per_node"),
    ],
)
def test_what_this_slurm_lacks_is_refused_with_its_words_and_a_key(
    kit: Kit, override: str, key: str
) -> None:
    answer = kit.jobs("submit", TABLE, override, "--no-check", check=False)
    assert answer.returncode == 1 and "nothing is queued" in answer.stderr
    assert f"hint: slurm.{key}: " in answer.stderr
    assert not list(kit.runs_root.glob("table/*/spec.json"))
    assert kit.cluster.job_ids() == []


def test_dry_run_asks_slurm_and_queues_nothing(kit: Kit) -> None:
    answer = kit.jobs("submit", TABLE, "--dry-run")
    assert "to start at" in answer.stderr
    refused = kit.jobs("submit", TABLE, "slurm.nodes=9", "--dry-run", check=False)
    assert refused.returncode == 1 and "not available" in refused.stderr
    assert kit.cluster.job_ids() == [] and not list(kit.runs_root.glob("*"))
