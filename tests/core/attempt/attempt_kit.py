"""Records of attempts, and steps of the batch script, for the tests of this folder."""

import time

from slurm_job_kit.jobs.attempt import close as close_module
from slurm_job_kit.jobs.attempt import open as open_module
from slurm_job_kit.jobs.attempt.decision import refusal
from slurm_job_kit.jobs.attempt.ending import ending_of
from slurm_job_kit.jobs.base.stop_signals import StopSignals
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.ended import AttemptRecord
from slurm_job_kit.jobs.contract.spec import Launch, Spec
from slurm_job_kit.jobs.runs import fact_reader
from slurm_job_kit.jobs.runs.evidence import rank_evidence
from tests.core import run_files


def entry(decision="retry", cause="crash", progress=False, steps=(None, None), **fields):
    seen = {"has_progress": progress}
    return run_files.attempt(
        seen, decision=decision, cause=cause, first_step=steps[0], last_step=steps[1], **fields
    )


def stops(*names):
    """The stop signals of a process to which these have come."""
    came = StopSignals()
    came.names += names
    return came


def close_lost(run, me):
    close_module.close_lost(run, fact_reader.read_newest(run), me)


def open_attempt(run, me, nodes, address="", checkout=None):
    """The plan of the next attempt; what `attempts.open_next` prints of a job is raised."""
    with open_module.claimed(run, me) as facts:
        facts = close_module.close_lost(run, facts, me)
        opened = open_module.open_attempt(run, me, facts, nodes, address, checkout)
        return None if opened is None else opened.plan


def refused(run, me):
    return refusal(fact_reader.read(run, 1).last, me.job_id, None)


def parsed(entries):
    return [records.decode(AttemptRecord, each, "here") for each in entries]


def own_script(run, stop_signal="none"):
    run.spec.write_text(Spec(launch=Launch(script="x.py", stop_signal=stop_signal)).to_json())


def ended(run, attempt=1):
    facts = fact_reader.read(run, attempt)
    return ending_of(facts, rank_evidence(facts, "RUNNING"), time.time())


def evidence(run, srun_exit=0, job_state="RUNNING", attempt=1):
    return rank_evidence(fact_reader.read(run, attempt), job_state, srun_exit)
