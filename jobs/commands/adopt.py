"""Freezes the run of a job that plain sbatch submitted with a config, on the job's first node."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from .. import hooks
from ..base import answer, gpus
from ..base.console import begin_lines_with_time, print_line
from ..base.errors import UserError
from ..config.load import load
from ..contract import records
from ..contract.records.queued import Submission
from ..contract.rundir import RunDir
from ..contract.spec import Slurm
from ..runs import lookup
from ..runs.freeze import freeze
from ..slurm import duration
from ..slurm.cluster import cluster_name, record_settings
from ..slurm.job import field_of, job_id_from, show_job
from . import arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_config(parser)


def command(args: argparse.Namespace) -> int:
    path = adopt(args.config, arguments.overrides_of(args)).path
    if not answer.give(run_dir=str(path)):
        sys.stdout.buffer.write(os.fsencode(path) + b"\n")  # for the batch script, so not escaped
    return 0


def adopt(config: Path, overrides: Sequence[str]) -> RunDir:
    """Return the run directory of this job, made at its first start and found again at a requeue.

    Raises: UserError, also for GPUs that are not the same on each node.
    """
    job_id = job_id_from(os.environ)
    if job_id is None:
        raise UserError("adopt is for slurm/ddp.sbatch, inside a job")
    begin_lines_with_time()  # stderr is the job's log
    cluster = cluster_name()
    known = lookup.recall(job_id, cluster)
    # A rebuilt cluster counts its job ids from 1 again: only a restart can have a run already.
    if known is not None and "SLURM_RESTART_COUNT" in os.environ:
        return known
    requested = load(config, overrides).spec.slurm
    job = show_job(job_id)
    if few := gpus.too_few(os.environ, int(os.environ["SLURM_JOB_NUM_NODES"]), 0):
        what = f"the job has {few}: each node of a run has as many as the others"
        raise UserError(what, "ask sbatch for --gpus-per-node")
    limit = field_of(job.text, r"RunTime=\S+ TimeLimit=(\S+)") if job else ""
    granted = allocation(os.environ, limit, requested)
    loaded = load(config, [*overrides, *granted])
    for key, value in asdict(requested).items():
        has = getattr(loaded.spec.slurm, key)
        if value is not None and value != has:
            print_line(f"warning: slurm.{key}: the config has {value!r}, the allocation {has!r}")
    of_job = Submission(None, job_id, os.getuid(), os.environ.get("SLURM_CLUSTER_NAME"))
    with freeze(loaded) as run_dir:
        records.write(run_dir.submission, of_job)
        record_settings(run_dir)
        # At a requeue this command has read no spec, which may name another root.
        lookup.remember(run_dir, job_id, cluster, lookup.runs_root())
        hooks.before_queue({run_dir: loaded}, is_on_slurm=True, is_checked=False)
    print_line(f"run directory {run_dir.path}\ntail -F {run_dir.rank_log(0)}")
    return run_dir


def allocation(environ: Mapping[str, str], time_limit: str, requested: Slurm) -> list[str]:
    """Return the allocation as spec overrides. Source: sbatch(1), OUTPUT ENVIRONMENT VARIABLES."""
    num_gpus = gpus.allocated_gpus(environ) or 0
    nodes = int(environ["SLURM_JOB_NUM_NODES"])
    spare = requested.spare_nodes if requested.spare_nodes < nodes else 0
    overrides = []
    if not (requested.is_range and requested.fewest_nodes <= nodes <= requested.job_nodes):
        overrides = [f"slurm.nodes={nodes - spare}", f"slurm.spare_nodes={spare}"]
    overrides.append(f"slurm.cpus_per_task={_cpus_per_task(environ, num_gpus)}")
    if num_gpus != requested.num_gpus:  # with the type that the config or sbatch's line names
        typed = environ.get("SLURM_GPUS_PER_NODE", "")
        given = typed if gpus.in_number(typed) == num_gpus else num_gpus
        overrides.append(f"slurm.gpus_per_node={given}")
    names = {
        "partition": "SLURM_JOB_PARTITION",
        "account": "SLURM_JOB_ACCOUNT",
        "qos": "SLURM_JOB_QOS",
        "mem": "SLURM_MEM_PER_NODE",
    }
    for key, variable in names.items():
        if environ.get(variable):
            overrides.append(f"slurm.{key}={json.dumps(environ[variable])}")
    if time_limit[:1].isdigit():
        overrides.append(f'slurm.time="{time_limit}"')
        # The job's --signal decides; the spec's value only has to fit into the time limit.
        longest_lead_s = duration.parse(time_limit) // 2
        overrides.append(f"slurm.signal_lead_s={min(requested.signal_lead_s, longest_lead_s)}")
    return overrides


def _cpus_per_task(environ: Mapping[str, str], num_gpus: int) -> int:
    """Return the cores of an agent, the only task of a node; with --exclusive it has all.

    Slurm sets SLURM_CPUS_PER_TASK only if sbatch had that option.
    """
    of_task, of_gpu = (environ.get(f"SLURM_CPUS_PER_{each}", "") for each in ("TASK", "GPU"))
    if of_task.isdecimal():
        return int(of_task)
    if of_gpu.isdecimal() and num_gpus:
        return int(of_gpu) * num_gpus
    on_node = environ.get("SLURM_CPUS_ON_NODE", "")
    return int(on_node) if on_node.isdecimal() else 1
