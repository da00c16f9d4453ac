"""The trackers of the kit, each with its optional package, and what a tracker gets. No torch.

A tracker has start(run, step), log(step, values) and finish(state). None shows a row twice:
TensorBoard hides what it has of the steps that are done again; the others keep that.
"""

import contextlib
import importlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

from ...contract import RunDir, Spec, files, installation
from ...errors import log

State = Literal["finished", "failed", "killed", "stopped"]  # stopped: another attempt continues
CLOSE_LIMIT_S = 10.0  # of all trackers; a stop must fit into the grace that Slurm gives
# W&B sends its own errors to a host on the internet, even offline. Only this variable, set before
# the import, prevents that. MLflow since 3.12 refuses a store in files without the other one.
VARIABLES = {"WANDB_ERROR_REPORTING": "false", "MLFLOW_ALLOW_FILE_STORE": "true"}


class Run(NamedTuple):
    """A run, as a tracker gets it."""

    dir: RunDir
    spec: Spec


class TensorBoard:
    """Writes event files to RUN_DIR/tensorboard, a new one in each attempt."""

    def __init__(self, **args: Any) -> None:
        self._package, self._args = importlib.import_module("torch.utils.tensorboard"), args

    def start(self, run: Run, step: int) -> None:
        # TensorBoard hides the values that earlier attempts wrote for the steps from here on.
        folder = str(run.dir.tensorboard)
        self._writer = self._package.SummaryWriter(folder, purge_step=step, **self._args)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # a kill loses no value

    def finish(self, state: State) -> None:
        self._writer.close()


class WeightsAndBiases:
    """One W&B run for all attempts; offline, each attempt writes a directory in RUN_DIR/wandb.

    args: of wandb.init. The x axis is global_step and not W&B's own step. RUN_DIR/wandb/sent.json
    has the last step of each value that was sent: offline nothing else knows it.
    """

    exit_codes = {"finished": 0, "failed": 1, "killed": 255, "stopped": 1}  # 255: as Ctrl-C

    def __init__(self, **args: Any) -> None:
        self._package, self._args = importlib.import_module("wandb"), args

    def start(self, run: Run, step: int) -> None:
        # W&B's default raises KeyboardInterrupt in rank 0: a crash, which would be retried.
        cancel = installation.command("cancel", "...")
        no_stop = f"warning: a stop in W&B does not stop the run: use `{cancel}`"
        given = {
            "project": os.environ.get("WANDB_PROJECT", run.spec.name),
            "id": run.dir.run_id,
            "name": run.dir.run_id,
            "dir": str(run.dir.path),
            "resume": "allow",
            # Not the whole spec, because launch.env may hold secrets.
            "config": asdict(run.spec.train),
        }
        settings = self._package.Settings(
            console="off",  # the run directory has the logs
            disable_git=True,
            silent=True,  # the log line below has all that a user needs
            quiet=True,
            init_timeout=60.0,
            finish_timeout=CLOSE_LIMIT_S / 2,
            stop_fn=lambda: log(no_stop),
            x_transaction_log_flush_interval=1.0,  # the most that a kill may lose
        )
        self._sent_file = run.dir.path / "wandb/sent.json"
        self._sent: dict[str, int] = {}
        with contextlib.suppress(OSError, ValueError):
            self._sent = json.loads(self._sent_file.read_text())
        self._run = self._package.init(settings=settings, **given | self._args)
        self._run.define_metric("*", step_metric="global_step")
        upload = f"upload it with: wandb sync {run.dir.path}/wandb/offline-run-*"
        log(f"wandb: {upload if self._run.offline else self._run.url}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        new = {name: each for name, each in values.items() if step > self._sent.get(name, 0)}
        if new:
            self._run.log({"global_step": step, **new})
            self._sent |= dict.fromkeys(new, step)
            with files.replacing(self._sent_file) as temporary:
                temporary.write_text(json.dumps(self._sent))

    def finish(self, state: State) -> None:
        if state == "stopped":
            self._run.mark_preempting()
        self._run.finish(exit_code=self.exit_codes[state])  # W&B's own process ends with rank 0


class MLflow:
    """One MLflow run for all attempts, known by its tag; without a server in RUN_DIR/mlruns."""

    def __init__(self, tracking_uri: str | None = None, experiment: str | None = None) -> None:
        self._package = importlib.import_module("mlflow")
        self._uri, self._experiment = tracking_uri, experiment
        self._last: dict[str, int] = {}  # step of each metric that MLflow has

    def start(self, run: Run, step: int) -> None:
        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI") or f"{run.dir.path}/mlruns"
        self._client = client = self._package.MlflowClient(uri)
        name = self._experiment or run.spec.name
        found = client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else client.create_experiment(name)
        runs = client.search_runs([experiment], f"tags.run_id = '{run.dir.run_id}'")
        if runs:
            self._id = runs[0].info.run_id
            client.update_run(self._id, "RUNNING")
            return
        tags = {"run_id": run.dir.run_id, "run_dir": str(run.dir.path)}
        self._id = client.create_run(experiment, tags=tags, run_name=run.dir.run_id).info.run_id
        for key, value in asdict(run.spec.train).items():
            client.log_param(self._id, key, str(value)[:500])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name in values.keys() - self._last:
            history = self._client.get_metric_history(self._id, name)
            self._last[name] = max((each.step for each in history), default=0)
        now, kind = int(time.time() * 1000), self._package.entities.Metric
        new = {name: each for name, each in values.items() if step > self._last[name]}
        if new:
            self._client.log_batch(self._id, [kind(*each, now, step) for each in new.items()])
            self._last |= dict.fromkeys(new, step)

    def finish(self, state: State) -> None:
        if state != "stopped":
            self._client.set_terminated(self._id, state.upper())


BUILT_IN: dict[str, Any] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}
