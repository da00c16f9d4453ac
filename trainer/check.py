"""Builds the parts of a frozen run once, without a GPU and without other ranks, before the queue.

    python -m trainer.check RUN_DIR REPORT

Submit starts it on its own host and reads what it found from REPORT (`jobs/runs/check.py`). It
creates what a rank creates before its first step and does one forward and backward pass: on torch's
meta device, which computes shapes only, else on the CPU. It writes nothing into the run directory.
`trainer.findings` decides whether a failure is an error or a warning.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from . import seeds
from .checkpoint import space
from .contract import CheckReport, Finding, RunDir, Spec, records
from .data import transforms
from .data.sources import Batch
from .data.stream import StreamBatches
from .data.to_device import move
from .events import Events
from .findings import Findings
from .model import (
    build,
    checkpoint_size,
    models,
    objectives,
    optim,
    precision,
)
from .model.objectives import DataFacts, Objective, Sums
from .model.training_data import (
    Data,
    build_data,
    inexactness,
    resumes_exactly,
)
from .process.context import DistributedContext
from .process.run_handle import RankContext, RunHandle
from .strategy import fits
from .user_code import load, user_code

CPU, META = torch.device("cpu"), torch.device("meta")
# A larger model is not created in the memory of a login node, if its shapes alone can be computed.
MAX_CPU_BYTES = 2**30
INEXACT_HINT = "shuffle before the samples are written, or without a buffer (configs/README.md)"
DRAWS_HINT = "draw from the global generators of Python, NumPy or torch, which the kit seeds"
# Submit ends this process earlier, unless submit itself was killed.
ALARM_S = 90


class Check:
    """The parts of a run as far as they could be created, and what was found."""

    def __init__(self, run_dir: RunDir, spec: Spec) -> None:
        ranks, host = spec.nproc_per_node, socket.gethostname()
        place = DistributedContext(0, 0, 0, spec.num_ranks, ranks, host)
        self._context = RankContext(RunHandle(run_dir, spec, 1), place, CPU, Events(0))
        self._train = spec.train
        self._findings = Findings(run_dir, spec)
        self.problems: list[Finding] = []

    def run(self) -> None:
        """Create everything; a part that fails does not keep the others from being checked."""
        train = self._train
        data, example = self._data()
        objective: Objective | None = None
        with self._part("objective"):
            facts = data.facts if data else DataFacts(train.dataset, model=train.model)
            objective = objectives.create(
                train.objective, train.objective_args, train.label_smoothing, facts
            )
        module, sums = None, None
        with self._part("model"):
            module, sums = self._model(data, example, objective)
        with self._part("strategy"):
            self._strategy(module)
        if data and objective and sums is not None:
            self._best(data, objective, sums)
        with self._part("optimizer"):
            if module is not None:
                self._space(module, optim.create(_on_cpu(module), train), data)
            elif ":" in train.optimizer:
                load("train.optimizer", train.optimizer)
        with self._part("schedule"):
            self._schedule(data)
        self.problems += self._findings.unfrozen_paths()

    @contextlib.contextmanager
    def _part(self, key: str) -> Iterator[None]:
        """Turn an error of the block into a finding at `key` of the section train."""
        try:
            yield
        except (Exception, SystemExit) as error:
            finding = self._findings.of(key, error)
            if finding not in self.problems:
                self.problems.append(finding)

    def _data(self) -> tuple[Data | None, Batch | None]:
        """Return the data set as batches of this world size, and a batch of its first sample."""
        train, data, example = self._train, None, None
        if train.collate is not None:
            with self._part("collate"):
                load("train.collate", train.collate)
        with self._part("transform"), user_code("train.transform", train.transform or ""):
            transforms.create(train.transform, train.transform_args)
        with self._part("dataset"):
            data = build_data(self._context)
            example = data.train_batches.example()
            if not resumes_exactly(data.train_batches, self._context):
                where = ("train", "dataset")
                is_stream = isinstance(data.train_batches, StreamBatches)
                hint = INEXACT_HINT if is_stream else DRAWS_HINT
                what = inexactness(data.train_batches)
                self.problems.append(Finding(where, what, hint, is_error=False))
        return data, example

    def _model(
        self, data: Data | None, example: Batch | None, objective: Objective | None
    ) -> tuple[nn.Module | None, Sums | None]:
        """Return the model, and the sums of one pass where it is possible."""
        train = self._train
        if (data is None or example is None) and train.model in models.BUILT_IN:
            return None, None  # a built-in model fits itself to the data
        try:
            module = self._created(data, example, META)
        except Exception:
            module = self._created(data, example, CPU)
        build.check_trainable(module, train)
        if example is None or objective is None:
            return module, None
        try:
            return module, self._pass(module, objective, example)
        except Exception as error:
            is_small = checkpoint_size.of_model(module) <= MAX_CPU_BYTES
            if not _is_meta(module) or self._findings.is_certain("model", error):
                raise
            if not is_small:
                return module, None  # an operator that the meta device lacks, perhaps
        module = self._created(data, example, CPU)
        return module, self._pass(module, objective, example)

    def _created(self, data: Data | None, example: Batch | None, device: torch.device) -> nn.Module:
        train, fit = self._train, models.Fit(None, None, None, self._train.dataset)
        if data is not None and example is not None:
            fit = build.fit_of(train, data, example)
        torch.manual_seed(seeds.mix(seeds.WEIGHTS, train.seed))
        with user_code("train.model", train.model), device:
            return models.create(train.model, train.model_args, fit)

    def _pass(self, module: nn.Module, objective: Objective, example: Batch) -> Sums:
        """Return the sums of a forward and backward pass on the model's device."""
        train = self._train
        device = META if _is_meta(module) else CPU
        batch = move(example, device)
        numbers = precision.set_up(train, CPU, lambda line: None)
        key = "model" if train.objective in objectives.BUILT_IN else "objective"
        with user_code(f"train.{key}", getattr(train, key)), device:
            return build.throw_away_pass(self._context, module, numbers, objective, batch)

    def _strategy(self, module: nn.Module | None) -> None:
        """Check that the ranks can share the model and the optimizer."""
        train = self._train
        num_shards = fits.num_shards(train, self._context.distributed)
        if num_shards > 1:
            with self._part("optimizer"):
                optim.check_rows(train)
        if module is not None:
            fits.check(module, train, num_shards)

    def _best(self, data: Data, objective: Objective, sums: Sums) -> None:
        """Compare checkpoint.best with the metrics of the objective."""
        names = tuple(sums.metrics)
        try:
            metrics = objectives.means(names, [1.0] * (2 + len(names)), objective)
        except Exception:  # its `derive` may take no numbers that are made up
            return
        with self._part("objective"):
            build.best_metric(self._context, list(metrics), data.held_out is not None)

    def _schedule(self, data: Data | None) -> None:
        train = self._train
        if data is not None:
            lr_at, last = optim.schedule(train, data.length), data.length.total_steps - 1
            for step in {min(train.warmup_steps, last), last}:
                lr_at(step)
        elif ":" in train.schedule:
            load("train.schedule", train.schedule)

    def _space(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, data: Data | None
    ) -> None:
        """Compare the checkpoints that are kept with the disk of the run and the user's quota."""
        run = self._context.run
        total = 0 if data is None else data.length.total_steps
        num_kept = space.num_kept(run.spec.checkpoint, total, run.spec.train.epochs)
        size = checkpoint_size.estimate(module, optimizer)
        shortage = space.shortage(run.dir.checkpoints, size, num_kept)
        if shortage is not None:
            hint = "choose another disk, delete old runs there, or lower checkpoint.keep_last"
            self.problems.append(
                Finding(("runs_root",), shortage.what, hint, is_error=shortage.is_error)
            )


def _is_meta(module: nn.Module) -> bool:
    return any(parameter.is_meta for parameter in module.parameters())


def _on_cpu(module: nn.Module) -> nn.Module:
    """Return the module; for one on the meta device small parameters with the same dimensions.

    They have the same names. Fused optimizers accept no parameters on the meta device (torch 2.13).
    """
    if not _is_meta(module):
        return module
    stand_in = nn.Module()
    for name, value in module.named_parameters():
        small = torch.zeros([1] * value.ndim, dtype=value.dtype)
        # register_parameter() refuses the dots of a name.
        stand_in._parameters[name] = nn.Parameter(small, value.requires_grad)
    return stand_in


def main(arguments: list[str]) -> None:
    """Check a run directory, write the report, and exit without the tear-down of user's threads."""
    signal.alarm(ALARM_S)
    run_dir, report = RunDir(Path(arguments[0])), Path(arguments[1])
    spec = Spec.read(run_dir.spec)
    torch.set_num_threads(spec.launch.threads_per_rank)
    check = Check(run_dir, spec)
    check.run()
    records.write(report, CheckReport(tuple(check.problems)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
