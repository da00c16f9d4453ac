"""Files of attempts for the tests of this folder."""

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.attempt import close as close_module
from slurm_job_kit.jobs.attempt.decision import refusal
from slurm_job_kit.jobs.records.ended import AttemptRecord
from slurm_job_kit.jobs.rundir import write_json
from slurm_job_kit.jobs.runs import facts
from slurm_job_kit.jobs.spec import Launch, Spec
from tests.unit import run_files


def opened(run, attempt, checkpoint=None, nodes=("a", "b")):
    run.attempt(attempt).path.mkdir()
    plan = run_files.plan(attempt=attempt, nodes=list(nodes), checkpoint=checkpoint)
    write_json(run.attempt(attempt).plan, plan)
    return run.attempt(attempt)


def failed(attempt_dir, rank, time, error="ValueError: x", **fields):
    record = {"rank": rank, "host": f"n{rank}", "time": time, "error": error, "traceback": ""}
    write_json(attempt_dir.rank_error(rank), record | fields)


def node(attempt_dir, rank, *signals, torchrun_exit=0, end=9.0):
    seen = [{"t": t, "signal": name} for t, name in signals]
    record = {"host": f"n{rank}", "signals": seen, "torchrun_exit": torchrun_exit, "end": end}
    write_json(attempt_dir.agent(rank), record)


def entry(
    decision="retry", cause="crash", progress=False, steps=(None, None), has_step=False, **fields
):
    seen = {"has_progress": progress, "has_step": has_step or progress}
    return run_files.attempt(
        seen, decision=decision, cause=cause, first_step=steps[0], last_step=steps[1], **fields
    )


def close_lost(run, me):
    close_module.close_lost(run, facts.read_newest(run), me, None)


def refused(run, me):
    return refusal(facts.read(run, 1).last, me.job_id, None)


def parsed(entries):
    return [records.decode(AttemptRecord, each, "here") for each in entries]


def own_script(run, stop_signal="none"):
    run.spec.write_text(Spec(launch=Launch(script="x.py", stop_signal=stop_signal)).to_json())
