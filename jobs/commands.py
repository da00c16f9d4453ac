"""What the commands do: submit, logs, cancel, resume, compare, export.

Results to stdout, talk to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from jobs import changes, checkpoints, history, local, owner, purged, runs, slurm
from jobs.compare import compare as differences
from jobs.compare import summary
from jobs.decision import Action, Cause, Decision
from jobs.errors import FailedError, UserError
from jobs.rundir import RunDir, read_json
from jobs.spec import Spec
from jobs.status import waiting_job
from jobs.talk import counted


def choose_cluster(wish: str) -> str:
    """`slurm` or `local`. auto takes Slurm where sbatch is on PATH and knows a cluster.

    Raises: UserError where Slurm seems to be there, only not loaded, or is wished and missing.
    """
    has_sbatch = slurm.has_sbatch()
    if wish == "slurm" and not has_sbatch:
        raise UserError("--cluster slurm: no sbatch on PATH\n  hint: module load slurm, perhaps")
    if wish != "auto":
        return wish
    reason = slurm.unloaded_reason()
    if reason is not None:
        raise UserError(
            f"no sbatch on PATH, but this looks like a cluster: {reason}\n"
            "  hint: load Slurm (module load slurm), or --cluster local to train on this machine"
        )
    if has_sbatch and not slurm.is_configured():
        print("sbatch is installed, but knows no cluster: running here", file=sys.stderr)
        return "local"
    return "slurm" if has_sbatch else "local"


def submit(config: Path, overrides: Sequence[str], args: argparse.Namespace) -> int:
    """Freeze a spec and run it."""
    from jobs.freeze import freeze
    from jobs.load import load
    from jobs.submit import queue

    loaded = load(config, overrides)
    if args.dry_run:
        return dry_run(loaded.spec, args.cluster)
    cluster = choose_cluster(args.cluster)
    if cluster == "slurm":
        with freeze(loaded) as run_dir:
            job_id = queue(loaded.spec, run_dir)
        announce(run_dir, job_id, args.json)
        return 0
    with freeze(loaded) as run_dir:
        pass
    return run_here(run_dir, args.json)


def dry_run(spec: Spec, cluster: str) -> int:
    """Show the sbatch command, the script and the resolved spec; queue and write nothing."""
    from jobs.freeze import REPOSITORY, planned
    from jobs.sbatch import SCRIPT, sbatch_argv
    from jobs.submit import show_site, test_only

    run_dir = planned(spec)
    script = REPOSITORY / SCRIPT
    print(f"# command\n{shlex.join(sbatch_argv(spec, run_dir))}")
    print(f"\n# script: {SCRIPT}\n{script.read_text(encoding='utf-8')}")
    print(f"# resolved spec\n{spec.to_json()}", end="", flush=True)
    is_asked = cluster == "slurm" or (cluster == "auto" and slurm.is_configured())
    said = test_only(spec, run_dir, script) if is_asked else None
    could_run = said is None or show_site(spec)
    if said is None:
        print("no sbatch asked: without Slurm the spec would run right here", file=sys.stderr)
        return 0
    print(said.text, file=sys.stderr)
    return 0 if said.is_accepted and could_run else 1


def announce(run_dir: RunDir, job_id: str | None, as_json: bool) -> None:
    """Say where a run is and how to watch it."""
    if as_json:
        cluster = "local" if job_id is None else "slurm"
        ids = {"job_id": job_id, "run_id": run_dir.run_id}
        print(json.dumps(ids | {"run_dir": str(run_dir.path), "cluster": cluster}), flush=True)
        return
    print(f"job {job_id}")
    print(f"run directory {shown(run_dir.path)}")
    print(f"tail -F {shlex.quote(shown(run_dir.rank_log(0)))}")


def shown(path: Path) -> str:
    """A path as short as it can be typed from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def run_here(run_dir: RunDir, as_json: bool) -> int:
    """Run locally in the foreground and say how it ended."""
    if as_json:
        announce(run_dir, None, True)
    talk = sys.stderr if as_json else sys.stdout
    print(f"run directory {shown(run_dir.path)}", file=sys.stderr, flush=True)
    decision = local.run(run_dir)
    result = read_json(run_dir.result) or {}
    if decision is None or decision.action is Action.DONE:
        accuracy = (result.get("metrics") or {}).get("eval_accuracy")
        if accuracy is not None:
            steps = counted(result["global_step"], "step")
            words = f"held-out accuracy {accuracy:.2%} after {steps}"
            print(words, file=talk)
        print(f"run directory {shown(run_dir.path)}", file=talk)
        print(f"next: make logs RUN={shlex.quote(run_dir.run_id)}", file=talk)
        return 0
    step = result.get("global_step", 0)
    # The attempt's own line, just above, has the reason of a failure.
    why = decision.reason if decision.cause is Cause.INTERRUPTED else f"{decision.cause}, see above"
    print(f"stopped after step {step}: {why}", file=sys.stderr)
    print(f"next: {way_out(run_dir, decision)}", file=sys.stderr)
    return 130 if decision.cause is Cause.INTERRUPTED else 1


def way_out(run_dir: RunDir, decision: Decision) -> str:
    """What to type after a stop. Code is frozen: what was wrong with it needs a new run."""
    resume = f"make resume RUN={shlex.quote(run_dir.run_id)}"
    if decision.cause is not Cause.CRASH:
        return resume
    last = history.last_record(run_dir)
    if last and last["evidence"]["is_user_error"]:  # alone, a resume would only repeat it
        return f'mend it first; then submit again, or {resume} SET="KEY=VALUE" if a key is at fault'
    return f"mend it and submit again, or {resume}"


def logs(run_dir: RunDir, rank: int, is_following: bool) -> int:
    """Show a rank's log, or follow it over all attempts to come."""
    log = run_dir.rank_log(rank)
    if is_following:
        os.execvp("tail", ["tail", "-n", "+1", "-F", str(log)])
    try:
        sys.stdout.write(log.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        ranks = sorted(path.name for path in log.parent.glob("rank-*.log"))
        raise UserError(f"{shown(log)} is not there\n  hint: there is {', '.join(ranks)}") from None
    return 0


def cancel(run_dir: RunDir) -> int:
    """Stop a run: its Slurm job, or its local processes."""
    if history.is_complete(run_dir):
        raise UserError(f"{run_dir.run_id} is complete, there is nothing to cancel")
    present, job_id = owner.read(run_dir), runs.job_id_of(run_dir)
    if present is not None and present.is_local and owner.is_alive(present) is not False:
        if owner.is_alive(present) is None:
            raise UserError(f"{run_dir.run_id} runs on {present.host}: cancel it there")
        os.kill(present.pid, signal.SIGTERM)
        print(f"{run_dir.run_id}: stopping after this step and saving")
        return 0
    jobs = [each for each in (job_id, waiting_job(run_dir)) if each is not None]
    jobs = [each for each in jobs if slurm.is_alive(each) is not False]
    if not jobs:
        raise UserError(f"{run_dir.run_id} is neither queued nor running")
    job = slurm.show_job(jobs[0])
    answer = slurm.call(["scancel", *jobs])
    if answer is None or answer.returncode != 0:
        said = answer.stderr.strip() if answer else "scancel is missing or does not answer"
        raise FailedError(f"scancel {' '.join(jobs)}: {said}")
    if job is not None and job.state == "PENDING":  # no attempt is there to write it
        history.end_between(run_dir, Action.CANCEL, Cause.CANCELLED, "the job was cancelled")
        run_dir.owner.unlink(missing_ok=True)
    print(f"{run_dir.run_id}: job {' and job '.join(jobs)} cancelled")
    return 0


def resume(run_dir: RunDir, overrides: Sequence[str], args: argparse.Namespace) -> int:
    """Go on with a run that was held, cancelled, interrupted or lost."""
    if history.is_complete(run_dir):
        return nothing_to_resume(run_dir, overrides)
    cluster = choose_cluster(args.cluster)
    refuse_living(run_dir, cluster)
    purged.check(run_dir)
    changes.mend_setup(run_dir)
    before = changes.change(run_dir, overrides, args.yes) if overrides else {}
    if cluster == "local":
        return run_here(run_dir, args.json)
    from jobs.submit import queue

    try:
        job_id = queue(Spec.read(run_dir.spec), run_dir)
    except FailedError:
        changes.restore(before)
        raise
    announce(run_dir, job_id, args.json)
    return 0


def refuse_living(run_dir: RunDir, cluster: str) -> None:
    """Raises: UserError for a run that is queued or runs; FailedError if Slurm cannot say."""
    job_id, waiting, present = runs.job_id_of(run_dir), waiting_job(run_dir), owner.read(run_dir)
    if job_id is not None and (alive := slurm.is_alive(job_id)) is not False:
        if alive:
            raise UserError(f"{run_dir.run_id} is queued or running as job {job_id}")
        if cluster == "slurm":
            raise FailedError(f"Slurm does not say whether job {job_id} still runs: try again")
    if waiting is not None and slurm.is_alive(waiting):
        raise UserError(f"{run_dir.run_id} is queued as job {waiting}, which goes on by itself")
    if present is not None and owner.is_alive(present):
        raise UserError(f"{run_dir.run_id} is running as {present.job_id}")


def nothing_to_resume(run_dir: RunDir, overrides: Sequence[str]) -> int:
    """Say that a run is complete, and how to train on from its weights."""
    there = f"{run_dir.run_id} is complete, there is nothing to resume"
    how = "submit a new run"
    if not checkpoints.is_foreign(run_dir):
        how += f" with train.init_from={shown(run_dir.path)}"
    if overrides:
        raise UserError(f"{there}, so nothing is changed\n  hint: to train on, {how}")
    print(f"{there}; to train on, {how}")
    return 0


def compare(run_dir: RunDir, untouched: RunDir) -> int:
    """Say whether a run is bit for bit an untouched one; 1 where it is not."""
    found = differences(run_dir, untouched)
    print("\n".join(found) or summary(run_dir))
    return 1 if found else 0


def export(run_dir: RunDir, checkpoint: str | None, out: Path | None) -> int:
    """Become the trainer's export, which imports torch, of this checkout."""
    if not any(run_dir.checkpoints.glob("step-*/")):
        hint = "the first is committed after an epoch, or at a stop; make status shows the progress"
        raise UserError(f"{run_dir.run_id} has no checkpoint yet\n  hint: {hint}")
    words = [sys.executable, "-m", "trainer.export", str(run_dir.path)]
    words += ["--checkpoint", checkpoint] if checkpoint else []
    words += ["--out", str(out)] if out else []
    os.execv(words[0], words)
