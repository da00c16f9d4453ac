"""Freezes the run of a job that was submitted with a config, from inside the job (first node)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from jobs import records
from jobs.config.load import load
from jobs.records import Submission
from jobs.rundir import RunDir
from jobs.runs import lookup
from jobs.runs.freeze import freeze
from jobs.slurm import client, duration, site, site_warnings
from jobs.spec import Slurm


def adopt(config: Path, overrides: Sequence[str]) -> RunDir:
    """The run directory of this job: made at its first start, found again at a requeue.

    Raises: SpecError, FreezeError.
    """
    job_id = client.job_id_from(os.environ)
    if job_id is None:
        raise SystemExit("error: adopt is for slurm/ddp.sbatch, inside a job")
    cluster = client.cluster_name()
    known = lookup.recall(job_id, cluster)
    # Job ids start anew when a site rebuilds its cluster: only a restart can be a known run.
    if known is not None and "SLURM_RESTART_COUNT" in os.environ:
        return known
    wished = load(config, overrides).spec.slurm
    job = client.show_job(job_id)
    granted = allocation(os.environ, job.time_limit if job else "", wished.signal_lead_s)
    loaded = load(config, [*overrides, *granted])
    for line in differences(wished, loaded.spec.slurm):
        print(f"warning: {line}", file=sys.stderr)
    with freeze(loaded) as run_dir:
        records.write(run_dir.submission, Submission(job_id=job_id))
        noted = site_warnings.note(run_dir, loaded.spec.slurm, site.look(loaded.spec.slurm))
        lookup.remember(run_dir, job_id, cluster)
    for line in noted.remarks:
        print(line, file=sys.stderr)
    print(f"run directory {run_dir.path}\ntail -F {run_dir.rank_log(0)}", file=sys.stderr)
    return run_dir


def allocation(environ: Mapping[str, str], time_limit: str, lead_s: int) -> list[str]:
    """What the allocation really has, as overrides of the spec. Source: sbatch(1), OUTPUT ENV."""
    overrides = [f"slurm.nodes={environ['SLURM_JOB_NUM_NODES']}"]
    counts = {"cpus_per_task": "SLURM_CPUS_PER_TASK", "gpus_per_node": "SLURM_GPUS_ON_NODE"}
    for key, variable in counts.items():
        # Slurm sets them only where they were asked for.
        nothing = "1" if key == "cpus_per_task" else "0"
        overrides.append(f"slurm.{key}={environ.get(variable) or nothing}")
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
        # The allocation's own --signal is what counts; the spec's must only fit into its limit.
        longest_lead_s = duration.parse(time_limit) // 2
        overrides.append(f"slurm.signal_lead_s={min(lead_s, longest_lead_s)}")
    return overrides


def differences(wished: Slurm, granted: Slurm) -> list[str]:
    """Where the allocation overrides what the config says."""
    has = asdict(granted)
    return [
        f"slurm.{key}: the config says {value!r}, the allocation has {has[key]!r}"
        for key, value in asdict(wished).items()
        if value is not None and value != has[key]
    ]
