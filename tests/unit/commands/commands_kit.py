"""Run directories for the tests of the commands."""

from pathlib import Path

from jobs import records
from jobs.records import Overrides
from jobs.rundir import RunDir
from jobs.spec import Spec

REPOSITORY = Path(__file__).resolve().parents[3]
TINY = "name: tiny\nslurm: {nodes: 2}\n"


def make_run(here, run_id="20260101", name="tiny"):
    """A frozen run below the runs root of `here`."""
    run = RunDir(here / "runs" / name / run_id)
    run.path.mkdir(parents=True)
    run.spec.write_text(Spec(name=name).to_json())
    run.spec_yaml.write_text(f"name: {name}\n")
    records.write(run.overrides, Overrides(()))
    return run
