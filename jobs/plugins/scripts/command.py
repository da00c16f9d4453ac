"""Command and variables of the ranks of a user's script or module."""

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...base.console import BestEffort
from ...contract import records
from ...contract.records.frozen import Provenance
from ...contract.records.nodes import NODE
from ...contract.rundir import RunDir
from ...contract.spec import Launch, Spec
from ...node.agent import END_LIMIT_S
from ...node.signed_torchrun import LAUNCHER
from ...node.torchrun import END_LIMIT
from .watch import silence_limit_s, watch
from .work import ask_for_all

WRAPPER = "slurm_job_kit.jobs.plugins.scripts.rank"


def start(
    argv: Sequence[str], environ: Mapping[str, str], spec: Spec
) -> tuple[list[str], dict[str, str]]:
    """Return command and environment of the torchrun of a run, and begin to watch its ranks."""
    launch, end = spec.launch, argv.index("--") + 1  # -- slurm_job_kit.trainer RUN_DIR
    run_dir = RunDir(Path(argv[end + 1]))
    words = [*argv[:end], WRAPPER, *rank_command(launch, run_dir)]
    if environ.get("KIT_AGENT_PID") != str(os.getpid()):  # to show it only
        return words, {**environ}
    options = dict(word.partition("=")[::2] for word in argv)
    has_peers = int(options["--nnodes"]) * int(options["--nproc-per-node"]) > 1
    attempt, host = int(environ["KIT_ATTEMPT"]), environ[NODE]
    is_watched = has_peers or launch.hang_timeout_s != "auto"
    if has_peers:
        words.insert(words.index(LAUNCHER), "slurm_job_kit.jobs.plugins.scripts.meeting")
    if attempt > 1:
        # A node where the first attempt looked for a snapshot before there was one may answer for a
        # minute that there is none: its ranks would begin at the first step, the others would not.
        with BestEffort(f"agent on {host}")():
            ask_for_all(run_dir.work, run_dir.code)
            ask_for_all(run_dir.checkpoints)
    if is_watched:
        first = host if any("is_host=true" in word for word in argv) else None
        arguments = (run_dir, attempt, first, launch.hang_timeout_s, os.getpid())
        # In a thread: a disk may block it for ever, and the agent passes on the stops.
        threading.Thread(target=watch, args=arguments, daemon=True).start()
    return words, {**environ, **variables(launch, environ, run_dir, is_watched)}


def rank_command(launch: Launch, run_dir: RunDir) -> list[str]:
    if launch.script is not None:
        return [sys.executable, "-u", str(run_dir.work / launch.script), *launch.args]
    return [sys.executable, "-u", "-m", str(launch.module), *launch.args]


def variables(
    launch: Launch, environ: Mapping[str, str], run_dir: RunDir, is_watched: bool
) -> dict[str, str]:
    """Return the variables of the ranks that differ from those of the trainer."""
    found = {
        "KIT_WORK_DIR": str(run_dir.work),
        "PYTHONPATH": search_path(environ.get("PYTHONPATH", ""), run_dir),
    }
    if is_watched:  # SIGABRT then prints the stacks of a rank, before torchrun ends
        limit_s = max(END_LIMIT_S, silence_limit_s(launch.hang_timeout_s) + 180)
        found |= {"PYTHONFAULTHANDLER": "1", END_LIMIT: str(limit_s)}
    return {name: text for name, text in found.items() if name not in launch.env}


def search_path(inherited: str, run_dir: RunDir) -> str:
    """Return the PYTHONPATH of a user's script or module: first its working directory.

    That stands for the repository and the frozen code, of which it is a copy.
    """
    known = records.read(Provenance, run_dir.provenance)
    live = None if known is None else known.repository
    tops = [run_dir.code, *([] if live is None else [Path(live)])]
    entries = [str(run_dir.work)]
    for path in map(Path, filter(None, inherited.split(os.pathsep))):
        names = [path.relative_to(top) for top in tops if path.is_relative_to(top)]
        # Not the kit in its clone, nor the runs in a repository, nor what git ignores.
        copied = [run_dir.work / name for name in names if (run_dir.code / name).exists()]
        entries.append(str((copied or [path])[0]))
    return os.pathsep.join(dict.fromkeys(entries))
