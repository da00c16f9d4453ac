"""sbatch's command line and environment: data, one argument for each option."""

from pathlib import Path
from typing import Any

from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Notify, Slurm, Spec
from slurm_job_kit.jobs.slurm import sbatch

RUN = RunDir(Path("/runs/x y/1"))


def test_the_command_line_of_the_default_spec():
    assert sbatch.sbatch_argv(Spec(), RUN) == [
        *("sbatch", "--job-name=run", "--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=1"),
        *("--time=1:00:00", "--signal=USR1@120", "--requeue", "--open-mode=append"),
        *("--chdir=/runs/x y/1", "--output=job.log"),
        *("/runs/x y/1/kit/slurm_job_kit/slurm/ddp.sbatch", "/runs/x y/1"),
    ]


def test_a_range_of_nodes_is_one_of_sbatch():
    """Without --ntasks-per-node, with which Slurm 22.05 gives the fewest nodes only."""
    options = sbatch.sbatch_options(Spec(slurm=Slurm(nodes="6-8", spare_nodes=1)), RUN.path)
    assert "--nodes=6-9" in options
    assert not [option for option in options if option.startswith("--ntasks")]


def test_the_options_of_a_spec_with_all_keys():
    extra: dict[str, Any] = {"mail_type": "END", "exclusive": True, "overcommit": False, "nice": 0}
    resources: dict[str, Any] = {"nodes": 4, "gpus_per_node": 8, "cpus_per_task": 64, "mem": "64G"}
    queue: dict[str, Any] = {
        "time": "1-00:00:00",
        "partition": "gpu",
        "account": "0123",
        "qos": "high",
    }
    nodes: dict[str, Any] = {"constraint": "a100|h100", "exclude": "n[3-4]"}
    slurm = Slurm(**resources, **queue, **nodes, signal_lead_s=300, sbatch_args=extra)
    assert sbatch.sbatch_options(Spec(name="big", slurm=slurm), RUN.path) == [
        *("--job-name=big", "--nodes=4", "--ntasks-per-node=1", "--cpus-per-task=64"),
        *("--gpus-per-node=8", "--time=1-00:00:00", "--partition=gpu", "--account=0123"),
        *("--qos=high", "--mem=64G", "--constraint=a100|h100", "--exclude=n[3-4]"),
        *("--signal=USR1@300", "--requeue", "--open-mode=append", "--chdir=/runs/x y/1"),
        *("--output=job.log", "--mail-type=END", "--exclusive", "--nice=0"),
    ]


def test_one_mail_is_requested_for_a_run():
    options = sbatch.sbatch_options(Spec(notify=Notify(mail="me@x")), RUN.path)
    assert {"--mail-type=END,FAIL", "--mail-user=me@x"} <= set(options)
