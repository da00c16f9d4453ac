"""One rank from its start to its exit: rendezvous, build, restore, train, report, exit."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ..checkpoint.checkpoints import create as create_checkpoints
from ..checkpoint.commit import check_owner
from ..checkpoint.digest import optimizer_sha256, weights_sha256
from ..checkpoint.loading import ReadAhead
from ..contract import Best, Outcome, RunDir, Train, checkpoint_name, quantity, records
from ..errors import UserError, fail, log, storage
from ..hooks import Callback
from ..model.build import build_replica, set_up_torch
from ..model.training_data import build_data
from ..process.context import check_device, choose_device, init_process_group
from ..process.run_handle import RankContext, RankProcess, by_hand, find_run, is_run_dir, share_run
from ..process.step_agreement import StepAgreement
from ..process.stop import StopSignal
from ..process.watcher import Pulse
from ..strategy import is_divided
from .loop import Loop, Status


def run(
    arguments: list[str],
    stop: StopSignal,
    started: float,
    pulse: Pulse,
    callbacks: Sequence[Callback],
) -> Loop:
    """Train as one rank until the run is completed or stopped; a failure ends the process.

    Returns what must live until the process exits, which must happen by os._exit. Python's
    tear-down restores the default signal handlers, and the agent's next SIGTERM would kill the
    rank. It also deletes DDP and with it the process group, whose destructor joins gloo's threads
    while it holds the GIL that they may need: of 141 ranks 6 hung there (torch 2.13).
    """
    rank = None
    try:
        rank = RankProcess(stop, started, pulse)
        if rank.attempt is not None and is_run_dir(Path(arguments[0])):
            rank.open(RunDir(Path(arguments[0]).resolve()), rank.attempt)
        return _train(rank, arguments, callbacks)
    except BaseException as error:
        fail(error, rank.distributed.rank if rank else None, rank.attempt_dir if rank else None)


def _train(rank: RankProcess, arguments: list[str], callbacks: Sequence[Callback]) -> Loop:
    context = _initialize(rank, arguments, callbacks)
    loop = prepare(context, callbacks)
    rank.stop.enter_loop()
    check_steps = context.run.spec.launch.stop_check_steps
    step_agreement = StepAgreement(rank.stop, check_steps, context.device)
    rank.pulse.beat("first step")
    status = loop.run(step_agreement)
    rank.pulse.beat("exit", loop.state.global_step)
    conclude(context, loop, status)
    # All ranks: if rank 0 fails to write the outcome, none ends as if it had.
    dist.barrier()
    if context.distributed.is_first and "KIT_ATTEMPT" not in os.environ:
        # If this rank is killed before, the next attempt records this one as lost.
        by_hand("close", context.run.dir, str(context.run.attempt))
        log(f"run directory {context.run.dir.path}")
    context.events.event(status, step=loop.state.global_step)
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    return loop


def prepare(context: RankContext, callbacks: Sequence[Callback] = ()) -> Loop:
    """Return the loop at the step after the newest checkpoint."""
    context.pulse.beat("data")
    for each in callbacks:
        each.opened(context)
    set_up_torch(context)
    data = build_data(context)
    # Not before: the data may need much memory for a moment, or fork processes that stay.
    newest = ReadAhead(context)
    context.events.event("data")
    context.pulse.beat("model")
    replica = build_replica(context, data, will_load=newest.is_expected)
    context.events.event("model")
    context.pulse.beat("restore")
    checkpoints = create_checkpoints(context, data)
    state = checkpoints.load(replica, newest)
    if state.streams:
        data.train_batches.restore(state.streams)
    _check_end(context.train, data.length.total_steps, state.global_step)
    step = checkpoints.newest_step
    loaded = None if step is None else checkpoint_name(step)
    what = f"resuming from checkpoint {loaded}" if loaded else "starting at step 0"
    context.distributed.log(what)
    context.events.event("loaded", step=state.global_step, checkpoint=loaded)
    loop = Loop(context, data, replica, state, checkpoints)
    for each in callbacks:
        each.restored(loop)
    return loop


def _check_end(train: Train, total_steps: int, step: int) -> None:
    """Raise UserError where a resume has set an end before the `step` of the checkpoint."""
    if step > total_steps:
        key = "max_steps" if train.max_steps else "epochs"
        what = f"train.{key} {getattr(train, key)} ends the training after {total_steps} steps, but"
        hint = f"a greater train.{key}, or resume from an older checkpoint with --checkpoint"
        raise UserError(f"{what} the checkpoint has {step}", hint)


def _initialize(
    rank: RankProcess, arguments: list[str], callbacks: Sequence[Callback]
) -> RankContext:
    """Connect to the other ranks, and get the run from rank 0."""
    rank.pulse.beat("rendezvous")
    distributed = rank.distributed
    device, reason = choose_device(distributed)
    # A rank on a GPU and one on a CPU would wait for each other without end.
    num_gpus = int(os.environ.get("KIT_NUM_GPUS", "0"))
    check_device(num_gpus, f"the job has {quantity(num_gpus, 'GPU')} on each node", device, reason)
    init_process_group(device)
    rank.events.event("rendezvous")
    for each in callbacks:
        each.connected(rank, device)
    rank.pulse.beat("init")
    # After the rendezvous: if rank 0 fails here, its peers see the connection close at once.
    handle = find_run(arguments, rank.attempt) if distributed.is_first else None
    run = share_run(handle, device)
    if rank.attempt is None:
        distributed.log(f"run directory {run.dir.path}")
    rank.open(run.dir, run.attempt)
    rank.events.event("init")
    what = f"rank {distributed.rank} of {distributed.world_size} on {distributed.host}, group "
    log(f"{what}{distributed.group_rank}, pid {os.getpid()}, {device} ({reason})")
    check_device(run.spec.slurm.num_gpus, run.spec.slurm.gpus_are, device, reason)
    return RankContext(run, distributed, device, rank.events, rank.pulse, callbacks)


def conclude(context: RankContext, loop: Loop, status: Status) -> None:
    """Write the outcome of the attempt on rank 0; all saves are committed."""
    run, step, saved_step = context.run, loop.state.global_step, loop.checkpoints.newest_step
    more: dict[str, Any] = {}
    if status == "completed" and (is_divided(context) or context.distributed.is_first):
        more = {  # what `attempt.close` copies into result.json
            "metrics": dict(loop.state.metrics),
            "weights_sha256": weights_sha256(loop.replica),
            "optimizer_sha256": optimizer_sha256(loop.replica),
            "best": Best(**loop.state.best),
            "exactness": loop.exactness[0],
            "exactness_reason": loop.exactness[1],
        }
    if context.distributed.is_first:
        epoch = step // loop.length.steps_per_epoch
        checkpoint = None if saved_step is None else checkpoint_name(saved_step)
        outcome = Outcome(status, global_step=step, epoch=epoch, checkpoint=checkpoint, **more)
        with storage(f"writing the outcome to {run.dir.path}"):
            check_owner(run)
            records.write(run.dir.attempt(run.attempt).outcome, outcome)
    context.distributed.log(f"{status} at step {step} of {loop.length.total_steps}")
    loop.close()
