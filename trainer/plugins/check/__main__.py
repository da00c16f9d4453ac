"""Builds the parts of a frozen run once, without a GPU and without other ranks, before the queue.

    python -m trainer.plugins.check RUN_DIR REPORT [here]

Submit starts it on its own host and reads from REPORT the first error that it met
(`jobs/plugins/check`). `here`: the ranks will run on this host, too. It creates what a rank creates
before its first step and computes one batch on the CPU. It writes nothing into the run directory.
"""

import functools
import os
import re
import socket
import sys
from pathlib import Path

import torch

from ....jobs.contract.problems import Problem
from ... import seeds
from ...contract import RunDir, Spec, records
from ...errors import (
    CODE,
    HINT,
    CodeError,
    NoSamples,
    UserCodeError,
    UserError,
    in_one_line,
    users_frames,
)
from ...model import build, models, objectives, optim
from ...model.training_data import build_data
from ...process.context import DistributedContext
from ...process.events import Events
from ...process.run_handle import RankContext, RunHandle
from ...strategy import create as create_strategy
from ...user_code import is_user_code, load, user_code

CPU = torch.device("cpu")
# The kit's messages begin with the key that they are about.
_KEY = re.compile(r"((?:train|checkpoint|launch|slurm|log)(?:\.\w+)+)[: ]+(.*)", re.DOTALL)


def build_parts(run_dir: RunDir, spec: Spec) -> None:
    """Create data, objective, model, optimizer and schedule, and compute one batch.

    Raises: whatever a rank would raise.
    """
    train, ranks = spec.train, spec.nproc_per_node
    place = DistributedContext(0, 0, 0, spec.num_ranks, ranks, socket.gethostname())
    context = RankContext(RunHandle(run_dir, spec, 1), place, CPU, Events(0))
    strategy = create_strategy(train, place, CPU)
    for name in filter(is_user_code, spec.log.trackers):
        load("log.trackers", name)
    if train.collate is not None:
        load("train.collate", train.collate)
    data = build_data(context)
    batch = data.train_batches.example()
    with user_code("train.objective", train.objective):
        objective = objectives.create(data.facts)
    create = functools.partial(models.create, data.facts, batch)
    torch.manual_seed(seeds.mix(seeds.WEIGHTS, train.seed))
    with user_code("train.model", train.model):
        # A larger model gets no memory of a login node, where a plugin can do without.
        module = strategy.create(create, 2**30)
    build.check_trainable(module, train)
    strategy.check(module)
    lr_at, last = optim.schedule(train, data.length), data.length.total_steps - 1
    for step in {min(train.warmup_steps, last), last}:
        lr_at(step)
    if any(each.is_meta for each in module.parameters()):  # too large for this host
        return
    optim.create(module, train)
    key = "objective" if is_user_code(train.objective) else "model"
    with user_code(f"train.{key}", getattr(train, key)):
        sums = objective(module, batch)
        objectives.check_sums(sums, train.objective)
    names = tuple(sums.metrics)
    metrics = objectives.means(names, sums.row().tolist(), objective)
    build.best_metric(context, list(metrics), data.held_out is not None)


def problem_of(error: BaseException, spec: Spec, is_here: bool = False) -> Problem:
    """Return an error as a problem: its key, its text, and the last frames of the user's code.

    It is a warning unless every rank would meet it: code may depend on a GPU, and files, packages
    or variables on the host. is_here: this is their host.
    """
    is_kits = isinstance(error, (UserError, CodeError))
    cause = error.__cause__ if is_kits and error.__cause__ is not None else error
    of_host = () if is_here else (NoSamples,)
    is_sure = isinstance(error, UserError) and not isinstance(error, (UserCodeError, *of_host))
    if isinstance(cause, (ImportError, SyntaxError)):
        is_sure = not spec.setup  # setup lines may choose other packages for the ranks
    head, _, hint = (str(error) if is_kits else in_one_line(error)).partition(HINT)
    match = _KEY.fullmatch(head)
    path = tuple(match[1].split(".")) if match else ("train",)
    is_of_file = path[1:2] == ("dataset_args",) and len(path) > 2
    what = match[2] if match else head
    is_error = is_sure and (is_here or not is_of_file)
    own = users_frames(cause, (Path.cwd(), *CODE))[-3:]
    frames = [f"{file}:{each.lineno}, in {each.name}: {each.line}" for file, each in own]
    if isinstance(cause, SyntaxError) and cause.filename:
        name = os.path.basename(cause.filename)
        frames = [f"{name}:{cause.lineno}: {(cause.text or '').strip()}"]
    return Problem(path, what, hint, is_error=is_error, frames=tuple(frames))


def main(arguments: list[str]) -> None:
    """Check a run directory, write the report, and exit without the tear-down of user's threads."""
    run_dir, found = RunDir(Path(arguments[0])), Problem((), "")
    spec = Spec.read(run_dir.spec)
    torch.set_num_threads(spec.launch.threads_per_rank)
    try:
        build_parts(run_dir, spec)
    except (Exception, SystemExit) as error:
        found = problem_of(error, spec, is_here=arguments[2:] == ["here"])
    records.write(Path(arguments[1]), found)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
