"""Run directories for the tests of the commands."""

import hashlib
from pathlib import Path

from slurm_job_kit.jobs import installation, records
from slurm_job_kit.jobs.checkpoint.manifest import FileDigest, Manifest, NamedFile
from slurm_job_kit.jobs.records.frozen import Overrides
from slurm_job_kit.jobs.records.training import Best
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.runs import code_snapshot
from slurm_job_kit.jobs.slurm.sbatch import SCRIPT
from slurm_job_kit.jobs.spec import Spec

REPOSITORY = Path(__file__).resolve().parents[3]
TINY = "name: tiny\nslurm: {nodes: 2}\n"


def make_run(here, run_id="20260101", name="tiny", root="runs"):
    """A frozen run below a folder of `here`, by default its runs root."""
    run = RunDir(here / root / name / run_id)
    run.path.mkdir(parents=True)
    run.spec.write_text(Spec(name=name).to_json())
    run.spec_yaml.write_text(f"name: {name}\n")
    records.write(run.overrides, Overrides(()))
    return run


def make_code(here, run, **texts):
    """Freeze the checkout `here/checkout` for a run. texts: of its files, as `model="x = 1"`."""
    checkout = here / "checkout"
    checkout.mkdir(exist_ok=True)
    for name, text in (texts or {"model": "x = 1"}).items():
        (checkout / f"{name}.py").write_text(f"{text}\n")
    for file in (SCRIPT, Path(installation.NAME, "jobs/rundir.py")):
        (checkout / file).parent.mkdir(parents=True, exist_ok=True)
        (checkout / file).write_text("#!/usr/bin/env bash\n")
    code = code_snapshot.take(checkout, run.path.parent.parent)
    run.code.symlink_to(code)
    run.kit.symlink_to(run.code.name)
    return checkout


def make_checkpoint(run, step, best=None):
    """A committed checkpoint with one file."""
    directory = run.checkpoints / f"step-{step:08d}"
    directory.mkdir(parents=True)
    content = f"state {step}".encode()
    (directory / "state.pt").write_bytes(content)
    digest = FileDigest(len(content), hashlib.sha256(content).hexdigest())
    manifest = Manifest(step, files=(NamedFile("state.pt", digest),), best=Best(step=best))
    (directory / "manifest.json").write_bytes(manifest.to_bytes())
    (run.checkpoints / "latest").write_text(f"{directory.name}\n")
    return directory
