"""The command submit, and what it and resume print: job, run directory, how the run ended."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from jobs import records
from jobs.attempt import history
from jobs.attempt.decision import Action, Cause, Decision
from jobs.commands import local
from jobs.commands.submit_claim import claimed
from jobs.console import counted
from jobs.errors import UserError
from jobs.records import Result
from jobs.rundir import RunDir
from jobs.slurm import client
from jobs.spec import Spec


def choose_cluster(wish: str) -> str:
    """`slurm` or `local`. auto takes Slurm where sbatch is on PATH and knows a cluster.

    Raises: UserError where Slurm seems to be there, only not loaded, or is wished and missing.
    """
    has_sbatch = client.has_sbatch()
    if wish == "slurm" and not has_sbatch:
        raise UserError("--cluster slurm: no sbatch on PATH\n  hint: module load slurm, perhaps")
    if wish != "auto":
        return wish
    reason = client.unloaded_reason()
    if reason is not None:
        raise UserError(
            f"no sbatch on PATH, but this looks like a cluster: {reason}\n"
            "  hint: load Slurm (module load slurm), or --cluster local to train on this machine"
        )
    if has_sbatch and not client.is_configured():
        print("sbatch is installed, but knows no cluster: running here", file=sys.stderr)
        return "local"
    return "slurm" if has_sbatch else "local"


def submit(
    config: Path, overrides: Sequence[str], cluster: str, is_dry: bool, as_json: bool
) -> int:
    """Freeze a spec and run it."""
    from jobs.commands.queue import queue
    from jobs.config.load import load
    from jobs.runs.freeze import freeze

    loaded = load(config, overrides)
    if is_dry:
        return dry_run(loaded.spec, cluster)
    if choose_cluster(cluster) == "slurm":
        with freeze(loaded) as run_dir, claimed(run_dir):
            job_id = queue(loaded.spec, run_dir)
        announce(run_dir, job_id, as_json)
        return 0
    with freeze(loaded) as run_dir:
        pass
    return run_here(run_dir, as_json)


def dry_run(spec: Spec, cluster: str) -> int:
    """Show the sbatch command, the script and the resolved spec; queue and write nothing."""
    from jobs.commands.queue import show_site, test_only
    from jobs.node.torchrun import placeholders, torchrun_command
    from jobs.runs.freeze import REPOSITORY, planned
    from jobs.slurm.sbatch import SCRIPT, sbatch_argv

    run_dir = planned(spec)
    script = REPOSITORY / SCRIPT
    print(f"# command\n{shlex.join(sbatch_argv(spec, run_dir))}")
    torchrun = torchrun_command(spec, run_dir, placeholders(spec))
    print(f"\n# torchrun, as the first node's agent starts it\n{shlex.join(torchrun)}")
    print(f"\n# script: {SCRIPT}\n{script.read_text(encoding='utf-8')}")
    print(f"# resolved spec\n{spec.to_json()}", end="", flush=True)
    is_asked = cluster == "slurm" or (cluster == "auto" and client.is_configured())
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
    result = records.read(Result, run_dir.result)
    if decision is None or decision.action is Action.DONE:
        accuracy = None if result is None else result.metric("eval_accuracy")
        if result is not None and accuracy is not None:
            steps = counted(result.global_step or 0, "step")
            words = f"held-out accuracy {accuracy:.2%} after {steps}"
            print(words, file=talk)
        print(f"run directory {shown(run_dir.path)}", file=talk)
        print(f"next: make logs RUN={shlex.quote(run_dir.run_id)}", file=talk)
        return 0
    step = (result and result.global_step) or 0
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
    if last and last.evidence.is_user_error:  # alone, a resume would only repeat it
        return f'mend it first; then submit again, or {resume} SET="KEY=VALUE" if a key is at fault'
    return f"mend it and submit again, or {resume}"
