"""As one of several ranks: train small runs, stop them in every way, compare with reference runs.

    python -c "from tests.local import stop_plans; stop_plans.main()" RANKS FOLDER SCENARIO...

All attempts live in one process per rank, and one process that has imported torch forks the ranks,
because an import of torch costs seconds and an attempt of these runs a tenth of one. All else is
real: DDP over gloo, signals, checkpoints, rank 0's files. test_trainer.py starts the processes of
an attempt. FOLDER/<scenario>.json has the findings.

By -c and not by -m: the workers that read data would import the main module and all that it needs.
"""

import contextlib
import dataclasses
import importlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

import slurm_job_kit.trainer.process.context
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Checkpoint, Launch, Log, Spec, Train
from slurm_job_kit.jobs.node.rendezvous import choose_port
from slurm_job_kit.jobs.plugins import PLUGINS
from slurm_job_kit.trainer.process.context import DistributedContext
from slurm_job_kit.trainer.process.events import Events
from slurm_job_kit.trainer.process.run_handle import RankContext, RunHandle
from slurm_job_kit.trainer.process.step_agreement import StepAgreement
from slurm_job_kit.trainer.process.stop import StopSignal
from slurm_job_kit.trainer.training.run import conclude, prepare
from tests import bitwise, parts
from tests.core.run_files import write_json
from tests.local import stoppable
from tests.local.local_kit import write_result
from tests.local.stoppable import Stop

MAX_ATTEMPTS = 40
EPOCHS = 2
BASE: dict[str, Any] = {
    "model": "tests.local.stoppable:net",
    "dataset": "tests.local.stoppable:in_memory",
    "objective": "classification",
    "objective_args": {"label_smoothing": 0.1},
    "transform": "tests.parts:Noise",
    "epochs": EPOCHS,
    "micro_batch_size": 3,
    "lr": 0.05,
    "nesterov": True,
    "schedule": "cosine",
    "warmup_steps": 3,
    "weight_decay": 0.01,
    "eval_every_steps": 2,
}
ADAMW = {"optimizer": "adamw", "nesterov": False, "lr": 0.01, "grad_clip_norm": 0.5}
# Two whole groups and a shorter one in each epoch.
ACCUMULATION = {"grad_accum_steps": 2}
SPECS: dict[str, dict[str, Any]] = {
    "every_step": {"eval_every_steps": None, "eval_every_epochs": 2},
    "every_pass": ACCUMULATION,
    "bf16": {**ADAMW, **ACCUMULATION, "precision": "bf16"},
    # Scores so large that gradients overflow: steps are skipped, the scale is halved.
    "fp16_scaler": {**ACCUMULATION, "precision": "fp16", "model_args": {"gain": 30.0}},
    "loader_workers": {"dataset": "tests.local.stoppable:by_sample", "transform": None},
    "random_times": {**ADAMW, **ACCUMULATION},
    # Slow enough that every batch is agreed on; five batches of 256 samples on rank 0.
    "slow_evaluation": {"epochs": 1, "model_args": {"pause_s": 0.06}},
}
KINDS = "tests.local.stoppable_kinds"
# What differs from BASE for every other kind of work.
OTHER: dict[str, Any] = {"transform": None, "objective_args": {}}
SPECS |= {
    "tokens": {
        **OTHER,
        **ADAMW,
        "objective": parts.TOKENS["objective"],
        "model": f"{KINDS}:LanguageModel",
        "dataset": f"{KINDS}:tokens",
    },
    # Two passes and the beginning of a third one.
    "stream_with_workers": {
        **OTHER,
        **ACCUMULATION,
        "objective": f"{KINDS}:known_pixels",
        "model": f"{KINDS}:Masked",
        "dataset": f"{KINDS}:stream",
        "max_steps": 6,
    },
}
# The strategies that divide tensors between the ranks. 11 rows are divided unevenly by all.
ELEVEN = {"model_args": {"width": 11}}
FSDP = {**ELEVEN, "strategy": "fsdp", "shard_modules": ["Conv2d"]}
SHARDED: dict[str, dict[str, Any]] = {
    "fsdp": {**ADAMW, **ACCUMULATION, **FSDP},
    "fsdp_bf16": {**FSDP, "precision": "bf16", "grad_clip_norm": 0.5},
    "fsdp_gpt": {
        **FSDP,
        **SPECS["tokens"],
        "model_args": {},
        "shard_modules": ["Block"],
        "activation_checkpointing": True,
    },
}
# What a module or a stream keeps in its own way.
OWN_STATE = {
    **SPECS["stream_with_workers"],
    "model": f"{KINDS}:OwnState",
    "dataset": f"{KINDS}:tensor_stream",
    "eval_every_steps": 5,  # an evaluation gives all ranks the buffers of rank 0
}
SHARDED |= {"fsdp_own_state": {**OWN_STATE, "strategy": "fsdp", "shard_modules": ["Conv2d"]}}
# Half of the ranks have all shards. For an even number of ranks.
HYBRID: dict[str, dict[str, Any]] = {"hsdp": {**ADAMW, **FSDP, "strategy": "hsdp"}}
BY_NAME = SPECS | SHARDED | HYBRID
BY_NAME["fsdp_compiled"] = {**SHARDED["fsdp"], "compile": "blocks"}
WITH_WORKERS = ("loader_workers", "stream_with_workers")
EVALUATION_BATCHES = 5
PutUp = Callable[[], None]


@dataclasses.dataclass
class Bench:
    """This rank, and the folder of its runs."""

    distributed: DistributedContext
    stop: StopSignal
    folder: Path
    evaluated: list[int] = dataclasses.field(default_factory=list)  # batches of each attempt

    def spec(self, name: str) -> Spec:
        """The spec of a scenario, with as many steps in a world of any size."""
        values = {**BASE, **BY_NAME[name]}
        if values.get("strategy") == "hsdp":
            values["shard_size"] = self.distributed.world_size // 2
        used = 5 * values["micro_batch_size"] * self.distributed.world_size
        sizes = {"num_train": used + 1}
        if name == "slow_evaluation":
            # One sample more than four batches of each rank: the other ranks have a batch less.
            sizes["num_test"] = (EVALUATION_BATCHES - 1) * 256 * self.distributed.world_size + 1
        train = Train(**values, dataset_args=sizes)
        return Spec(
            launch=Launch(stop_check_steps=1),
            train=train,
            checkpoint=Checkpoint(every_steps=2, keep_last=2),
            log=Log(every_steps=3),
        )

    def attempt(self, run: RunDir, spec: Spec, number: int) -> tuple[str, int]:
        """One attempt's (status, last step), with all state of the attempt before reset."""
        self.stop.requested = False
        if self.distributed.is_first:
            run.attempt(number).path.mkdir(parents=True)
            run.checkpoints.mkdir(exist_ok=True)
            write_json(run.owner, {"attempt": number})
        dist.barrier()
        device, events = torch.device("cpu"), Events(self.distributed.rank)
        context = RankContext(RunHandle(run, spec, number), self.distributed, device, events)
        loop = prepare(context)
        status = loop.run(StepAgreement(self.stop, 1, device))
        conclude(context, loop, status)
        if status == "completed" and self.distributed.is_first:
            write_result(run, number)
        self.evaluated.append(int(loop.replica.module.evaluations))  # type: ignore[arg-type]
        dist.barrier()
        return status, loop.state.global_step

    def train(self, name: str, spec: Spec, plans: Sequence[PutUp] = ()) -> tuple[RunDir, list[int]]:
        """Train to the end, with the n-th plan set before the n-th attempt: (run, stops)."""
        steps: list[int] = []
        run = RunDir(self.folder / name)
        for number in range(1, MAX_ATTEMPTS):
            stoppable.planned = None
            if number <= len(plans):
                plans[number - 1]()
            # Every other attempt reads in the ranks themselves: faults.md row 27.
            has_workers = "samples" in PLUGINS and name.partition("/")[0] in WITH_WORKERS
            workers = 2 * (number % 2) if has_workers else 0
            launch = dataclasses.replace(spec.launch, num_workers=workers)
            status, step = self.attempt(run, dataclasses.replace(spec, launch=launch), number)
            if status == "completed":
                return run, steps
            steps.append(step)
        raise AssertionError(f"{name} does not end: {steps}")

    def at(self, moment: str, index: int) -> PutUp:
        """A plan: a signal to one rank at a moment of the model."""

        def put_up() -> None:
            stoppable.planned = Stop(moment, index, index % self.distributed.world_size)

        return put_up

    def after(self, delay_s: float, rank: int) -> PutUp:
        """A plan: a signal after some time, at any point of the rank's work."""

        def put_up() -> None:
            if rank == self.distributed.rank:
                timer = threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGTERM))
                timer.daemon = True
                timer.start()

        return put_up

    def plans(self, name: str, took_s: float) -> Iterator[list[PutUp]]:
        """The runs of a scenario, each as the plans of its attempts."""
        if name == "random_times":
            chance = random.Random(self.distributed.world_size)
            for _ in range(10):
                ranks = [chance.randrange(self.distributed.world_size) for _ in range(3)]
                yield [self.after(chance.uniform(0, took_s), rank) for rank in ranks]
        elif name in ("every_step", "every_pass"):
            for index in range(EPOCHS * 5):
                moment = "backward" if name == "every_pass" and index % 2 else "forward"
                yield [self.at(moment, index)]
            yield [self.at("start", 0), self.at("evaluation", 0), self.at("evaluation", 0)]
        elif name == "slow_evaluation":
            yield [self.at("evaluation", 1)]
            yield [self.at("evaluation", index) for index in (0, 1, 0)]
        else:
            # With accumulation a stop is agreed on two passes later.
            indices = (0, 5, 8) if ACCUMULATION.items() <= BY_NAME[name].items() else (0, 3, 7)
            yield [self.at("forward", index) for index in indices]

    def scenario(self, name: str) -> dict[str, Any]:
        """The findings of a scenario: its run, stopped in each way."""
        spec, started = self.spec(name), time.monotonic()
        reference, _ = self.train(f"{name}/reference", spec)
        # Rank 0's random number, so that all ranks make the same plans.
        took_s = torch.tensor([time.monotonic() - started])
        dist.broadcast(took_s, src=0)
        runs = []
        for number, plans in enumerate(self.plans(name, took_s.item())):
            self.evaluated.clear()
            run, stops = self.train(f"{name}/{number}", spec, plans)
            evaluated = self.evaluated[: len(stops)]
            differences = self.differences(run, reference)
            runs.append({"stops": stops, "evaluated": evaluated, "differences": differences})
        return {"runs": runs}

    def differences(self, run: RunDir, reference: RunDir) -> list[str]:
        """What differs between two runs, in bits; on rank 0."""
        if not self.distributed.is_first:
            return []
        differences = bitwise.differences(run, reference)
        if best_of(run) != best_of(reference):
            differences.append(f"best is {best_of(run)}, not {best_of(reference)}")
        return differences


def best_of(run: RunDir) -> str:
    return (run.checkpoints / "best").read_text().strip()


def be_rank(rank: int, world_size: int, port: int, folder: Path, names: Sequence[str]) -> None:
    """Run the scenarios as one rank; the process exits without a tear-down, as the trainer does."""
    stop = StopSignal()
    stop.install()
    stop.enter_loop()
    slurm_job_kit.trainer.process.context.BROADCAST_BYTES = 1000  # many parts of a small state
    place = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "MASTER_PORT": port}
    place |= {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ |= {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"}
    torch.set_num_threads(1)
    context = DistributedContext.from_env(os.environ)
    slurm_job_kit.trainer.process.context.init_process_group(torch.device("cpu"))
    bench = Bench(context, stop, folder)
    for name in names:
        scenario = bench.scenario(name)
        if context.is_first:
            write_json(folder / f"{name}.json", scenario)
    dist.barrier()
    os._exit(0)


def main() -> None:
    """Fork the ranks and wait until all have ended; the first that fails ends the others."""
    world_size, folder, *names = sys.argv[1:]
    # Each rank would import them otherwise, in DDP's constructor or for a sharded strategy.
    importlib.import_module("torch._dynamo")
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("slurm_job_kit.trainer.plugins.sharded.fsdp")
    port = choose_port(str(os.getpid()), 1)  # outside of the range that the kernel gives out
    given = (int(world_size), port, Path(folder), names)
    start_processes(be_rank, given, int(world_size), start_method="fork")
