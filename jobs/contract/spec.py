"""The experiment spec: typed, frozen, standard library only.

`jobs.config.load` checks a YAML file once, at submit, and makes these objects of it. Attempts,
agents and ranks read the frozen `spec.json` with `Spec.from_json`, which checks nothing again. The
constraints in the metadata are the limits of a value: `ge`, `gt`, `le`, `lt`, `pattern`. `plugin`
in the metadata names the plugin that the key needs, or that some values need: by a pattern.
"""

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from ..base import files
from ..base.errors import RecordError, UserError
from . import records
from .rundir import FORMAT

Scalar = str | int | float | bool

# The built-in values of the keys of the section train that also take an import path; ZOO_ those of
# the plugin zoo.
ZOO_MODELS = ("resnet18", "resnet50", "gpt")
ZOO_DATASETS = ("cifar10", "image_folder", "python_source", "tokens")
ZOO_OBJECTIVES = ("regression", "language_model")
MODELS = ("mini_resnet", "mlp", *ZOO_MODELS)
DATASETS = ("digits", "breast_cancer", *ZOO_DATASETS)
OBJECTIVES = ("classification", *ZOO_OBJECTIVES)
TRANSFORMS = ("image",)
TRACKERS = ("tensorboard", "wandb", "mlflow")
OPTIMIZERS = ("sgd", "adamw")
SCHEDULES = ("constant", "cosine", "wsd")
STRATEGIES = ("ddp", "fsdp", "hsdp")
# Which value of a built-in metric is better.
METRIC_MODES = {
    "eval_accuracy": "max",
    **dict.fromkeys(("eval_loss", "eval_mse", "eval_mae", "eval_rmse"), "min"),
    **dict.fromkeys(("eval_perplexity", "eval_bits_per_byte"), "min"),
}
# The beginnings of the keys that the trainer alone reads.
OF_TRAINER = (
    *("train.", "checkpoint.", "log.", "profile."),
    *("launch.num_workers", "launch.stop_check_steps", "launch.fork"),
)
_OR_YOURS = "or your own package.module:callable."


def key(default: Any, description: str, **constraints: Any) -> Any:
    """Return a dataclass field for a key: default, description of one line, constraints."""
    metadata = {"description": description, **constraints}
    if isinstance(default, (dict, list)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Slurm:
    """What the job requests from Slurm. The kit passes each key as one argument to sbatch."""

    nodes: int | str = key(
        1,
        "Number of nodes that train. 6-8: each start uses all that Slurm gives it, and after the "
        "loss of a node the run continues on the others, as long as 6 are left.",
        pattern="^[1-9][0-9]*(-[1-9][0-9]*)?$",
        plugin={r"\d+-\d+": "nodes"},
    )
    spare_nodes: int = key(0, "Reserve nodes: one replaces a lost node.", ge=0, plugin="nodes")
    gpus_per_node: int | str = key(0, "GPUs of each node, such as 2 or a100:2; 0 requests none.")
    cpus_per_task: int = key(1, "CPU cores on each node, shared by its ranks.", ge=1)
    time: str = key("1:00:00", "Time limit as H:M:S or D-H:M:S; a longer run continues after it.")
    partition: str | None = key(None, "Partition; the site's default if unset.")
    account: str | None = key(None, "Account to charge.")
    qos: str | None = key(None, "Quality of service.")
    mem: str | None = key(None, "Memory per node, such as 64G.")
    constraint: str | None = key(None, "Node features, such as a100.")
    exclude: str | None = key(None, "Nodes not to use, such as n[3-4].")
    signal_lead_s: int = key(120, "Seconds before the time limit to stop and save.", ge=1, le=65535)
    restart: Literal["auto", "requeue", "successor"] = key(
        "auto",
        "How the run continues. requeue: Slurm starts its job again. successor: a second job waits "
        "for the end of the first. auto: a successor only if a requeue cannot continue the run.",
        plugin={"successor": "sites"},
    )
    max_restarts: int | None = key(
        None,
        "How often the run continues after preemptions, time limits and lost nodes; unset: 200, or "
        "20 for your own script if none of its attempts saves where the kit sees it.",
        ge=0,
    )
    suspect_hours: int = key(24, "Hours to leave out a suspected node.", ge=0, plugin="nodes")
    sbatch_args: dict[str, Scalar] = key(
        {},
        "Other sbatch options by long name; true: without a value, false: not at all. "
        "requeue: expedite asks for Slurm's expedited requeue (25.11).",
    )
    srun_args: list[str] = key([], "Other options of the agents' srun, such as --mpi=none.")

    @property
    def most_nodes(self) -> int:
        return int(str(self.nodes).rpartition("-")[2])

    @property
    def fewest_nodes(self) -> int:
        return int(str(self.nodes).partition("-")[0])

    @property
    def job_nodes(self) -> int:
        """Number of nodes that the job asks for, at most."""
        return self.most_nodes + self.spare_nodes

    @property
    def fewest_job_nodes(self) -> int:
        """Number of nodes with which the job starts, at least."""
        return self.fewest_nodes if self.is_range else self.job_nodes

    @property
    def is_range(self) -> bool:
        """Whether attempts may differ in their number of nodes."""
        return self.fewest_nodes < self.most_nodes

    @property
    def num_gpus(self) -> int:
        number = str(self.gpus_per_node).rpartition(":")[2]
        return int(number) if number.isdecimal() else 0

    @property
    def gpus_are(self) -> str:
        """`slurm.gpus_per_node is 2`."""
        return f"slurm.gpus_per_node is {self.gpus_per_node}"


@dataclass(frozen=True)
class Launch:
    """How the processes of one node are started."""

    nproc_per_node: int | Literal["auto"] = key(
        "auto", "Ranks per node; auto: one per GPU, or 1.", ge=1
    )
    threads_per_rank: int = key(1, "CPU threads of each rank; results depend on them.", ge=1)
    module: str | None = key(None, "Your own module, as for `python -m`.", plugin="scripts")
    script: str | None = key(None, "Your own torchrun script, a file.", plugin="scripts")
    args: list[str] = key([], "Arguments of your module or script.")
    inputs: list[str] = key(
        [], "What git ignores and the script reads, such as data; it gets links.", plugin="scripts"
    )
    env: dict[str, str] = key({}, "Environment variables of the ranks.")
    allow_public_rendezvous: bool = key(
        False, "Allow a public address for the rendezvous, whose store accepts all who can connect."
    )
    interface: str | None = key(
        None,
        "Network interface of the rendezvous, gloo and NCCL: its name or the beginning of it, such "
        "as ib0 or hsn; unset: the one with the first node's address.",
    )
    command_prefix: list[str] = key([], "Command before agents, such as [apptainer, exec, x.sif].")
    python: str | None = key(
        None,
        "Interpreter of agents and ranks, a path or a name on PATH after setup and inside of "
        "command_prefix; unset: the one that submits, python3 of PATH if that one has no torch, or "
        "python3 inside of a prefix or container.",
    )
    num_workers: int = key(0, "Processes of each rank that read samples.", ge=0, plugin="samples")
    stop_signal: Literal["none", "TERM", "USR1", "USR2"] = key(
        "none", "Signal at which your script stops; TERM for kit_stop.py.", plugin="scripts"
    )
    stop_check_steps: int | Literal["auto"] = key(
        "auto", "Steps between the ranks' agreements on a stop; auto: about every 50 ms.", ge=1
    )
    hang_timeout_s: int | Literal["auto"] = key(
        "auto",
        "Seconds without progress before a run is hung (10 times that before the first step); "
        "auto: 540 and 1800. Your script: without output or report of any rank; auto: no limit.",
        ge=1,
        plugin="health",
    )
    fork: bool | Literal["auto"] = key(
        "auto",
        "Fork the trainer's ranks out of one process with torch; auto: on nodes without GPUs.",
        plugin={"True": "fast_start"},
    )
    max_crashes: int = key(3, "Crashes within 24 hours without progress that hold the run.", ge=1)

    @property
    def is_trainer(self) -> bool:
        """Whether the ranks are our trainer, which stops and saves at a signal."""
        return self.script is None and self.module is None


@dataclass(frozen=True)
class Train:
    """What the weights depend on; a checkpoint fits only the section that it was made with."""

    model: str = key(
        "mini_resnet", f"{', '.join(MODELS)}, {_OR_YOURS}", plugin=dict.fromkeys(ZOO_MODELS, "zoo")
    )
    model_args: dict[str, Any] = key({}, "Arguments of the model.")
    init_from: str | None = key(
        None, "Weights of a new run: a run, checkpoint, .safetensors or an index.", plugin="weights"
    )
    init_from_prefix: str = key("", "Prefix to remove from its names: `module.`", plugin="weights")
    objective: str = key(
        "classification",
        f"How loss and metrics of a batch are computed: {', '.join(OBJECTIVES)}, {_OR_YOURS}",
        plugin=dict.fromkeys(ZOO_OBJECTIVES, "zoo"),
    )
    objective_args: dict[str, Any] = key({}, "Arguments of the objective.")
    dataset: str = key(
        "digits", f"{', '.join(DATASETS)}, {_OR_YOURS}", plugin=dict.fromkeys(ZOO_DATASETS, "zoo")
    )
    dataset_args: dict[str, Any] = key({}, "Arguments of the dataset.")
    collate: str | None = key(
        None, "Your package.module:callable from a list of samples to a batch.", plugin="samples"
    )
    transform: str | None = key(
        None,
        f"{', '.join(TRANSFORMS)} (crop, flip, normalise), {_OR_YOURS}",
        plugin=dict.fromkeys(TRANSFORMS, "zoo"),
    )
    transform_args: dict[str, Any] = key({}, "Arguments of the transform.")
    strategy: str = key(
        "ddp",
        "What the ranks divide among them: ddp (the batches), fsdp (also weights, gradients and "
        "optimizer state), hsdp (as fsdp, but within each group of shard_size ranks).",
        plugin=dict.fromkeys(("fsdp", "hsdp"), "sharded"),
    )
    shard_size: int | None = key(
        None, "hsdp: ranks that share weights; those of a node if unset.", ge=2, plugin="sharded"
    )
    shard_modules: list[str] = key(
        [],
        "Classes of the model's blocks, which are sharded, compiled and checkpointed one by one; "
        "unset: the class of the longest nn.ModuleList or nn.Sequential of one class.",
        plugin="sharded",
    )
    reshard_after_forward: bool = key(
        True, "fsdp, hsdp: free blocks' weights until backward; false is faster.", plugin="sharded"
    )
    offload_optimizer: bool = key(
        False, "fsdp, hsdp: shards and optimizer in host memory; on GPUs only.", plugin="sharded"
    )
    activation_checkpointing: bool = key(
        False, "Compute blocks again in the backward pass; keep no activations.", plugin="sharded"
    )
    epochs: int = key(1, "Passes over the training set.", ge=1)
    max_steps: int | None = key(None, "Optimizer steps in all, not epochs; streams need it.", ge=1)
    micro_batch_size: int = key(32, "Samples per rank and forward pass.", ge=1)
    grad_accum_steps: int = key(1, "Forward passes per optimizer step.", ge=1)
    global_batch_size: int | None = key(
        None,
        "Samples per optimizer step on all ranks together, kept when their number changes; "
        "micro_batch_size is then an upper bound.",
        ge=1,
    )
    optimizer: str = key("sgd", f"{', '.join(OPTIMIZERS)}, {_OR_YOURS}")
    optimizer_args: dict[str, Any] = key({}, "More arguments of the optimizer, such as betas.")
    lr: float = key(0.1, "Peak learning rate.", gt=0)
    momentum: float = key(0.9, "Momentum of sgd.", ge=0, lt=1)
    nesterov: bool = key(False, "Nesterov momentum of sgd.")
    weight_decay: float = key(0.0, "Weight decay.", ge=0)
    weight_decay_on: Literal["matrices", "all"] = key(
        "matrices", "Parameters with weight decay; matrices: none for biases and norms."
    )
    schedule: str = key(
        "constant",
        f"After warm-up: constant, cosine to 0, wsd (constant, then linear to 0), {_OR_YOURS}",
        plugin={"wsd": "zoo"},
    )
    schedule_args: dict[str, Any] = key({}, "Arguments of your own schedule.")
    warmup_steps: int = key(0, "Steps of linear warm-up from 0 to lr.", ge=0)
    lr_decay_fraction: float = key(
        0.2, "wsd: share of the steps, at the end, in which it goes to 0.", gt=0, le=1, plugin="zoo"
    )
    grad_clip_norm: float | None = key(None, "Largest norm of all gradients; null: no limit.", gt=0)
    label_smoothing: float = key(0.0, "Label smoothing of classification.", ge=0, lt=1)
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = key(
        "fp32",
        "fp32, tf32, or autocast to bf16 or fp16 (with a gradient scaler). With bf16 fsdp and hsdp "
        "also gather weights in it; shards, reduction and optimizer stay fp32.",
    )
    channels_last: bool = key(False, "Images and weights in channels-last memory format.")
    compile: bool | Literal["blocks"] = key(
        False,
        "Compile the model, or each block; fsdp and hsdp: always blocks. Requeues keep the cache.",
        plugin={"blocks": "sharded"},
    )
    gradient_as_bucket_view: bool = key(True, "DDP: gradients are views into its buckets.")
    static_graph: bool = key(False, "DDP: the graph is the same in every step.")
    find_unused_parameters: bool = key(False, "Allow parameters without a gradient in a step.")
    bucket_cap_mb: int = key(25, "DDP: size of a gradient bucket, in MiB.", ge=1)
    sync_batchnorm: bool = key(False, "BatchNorm over all ranks; on GPUs only.")
    seed: int = key(0, "Seed of weights, data order, augmentation and dropout.", ge=0, lt=2**32)
    deterministic: bool | Literal["auto"] = key(
        "auto", "Only deterministic operators, so that a resume is bitwise; auto: on the CPU."
    )
    eval_every_epochs: int | None = key(1, "Epochs between evaluations; one is at the end.", ge=1)
    eval_every_steps: int | None = key(None, "Steps between two held-out evaluations.", ge=1)
    eval_batch_size: int = key(256, "Held-out samples per rank and forward pass.", ge=1)
    early_stop_patience: int | None = key(
        None, "End after so many evaluations in a row without a better checkpoint.best.", ge=1
    )
    stop_on_nan: bool = key(True, "Stop, and commit nothing, when loss or weights are not finite.")


@dataclass(frozen=True)
class Checkpoint:
    """When a checkpoint is saved, apart from a stop and the end, and which are kept."""

    interval: Literal["auto"] | None = key(
        "auto",
        "auto: if no every_... key is set, every 60 s, or at 20 times the pause that a save makes "
        "in the training, whichever is longer. null: none by time.",
    )
    every_epochs: int | None = key(None, "Epochs between two checkpoints.", ge=1)
    every_steps: int | None = key(None, "Steps between two checkpoints.", ge=1)
    every_minutes: float | None = key(None, "Minutes between two checkpoints.", gt=0)
    keep_last: int = key(2, "Number of newest checkpoints to keep.", ge=1)
    keep_every_steps: int | None = key(None, "Keep checkpoints at multiples of this step.", ge=1)
    keep_every_epochs: int | None = key(None, "Keep checkpoints at multiples of this epoch.", ge=1)
    best: str | None = key(
        "auto",
        "Held-out metric whose best checkpoint is also kept, such as eval_loss; auto: "
        "eval_accuracy if there is one, else eval_loss; null: none.",
    )
    best_mode: Literal["auto", "min", "max"] = key(
        "auto", "Which value of that metric is better; auto: known for the built-in metrics."
    )


@dataclass(frozen=True)
class Log:
    """What is logged, and where."""

    every_steps: int = key(10, "Optimizer steps between two log lines.", ge=1)
    trackers: list[str] = key(
        [], "tensorboard, wandb, mlflow, or your own package.module:Class.", plugin="trackers"
    )
    tracker_args: dict[str, dict[str, Any]] = key(
        {}, "Their arguments, such as {wandb: {mode: offline}}.", plugin="trackers"
    )


@dataclass(frozen=True)
class Profile:
    """Which steps torch's profiler traces, into RUN_DIR/tensorboard/profile."""

    steps: list[int] = key([], "First and last step to trace, such as [20, 25].", plugin="profiler")
    ranks: list[int] = key([0], "Ranks that trace.", plugin="profiler")


@dataclass(frozen=True)
class Hooks:
    """Shell lines that the first node runs in the run directory, for 60 s at most."""

    checkpoint: str | None = key(None, "Once for each committed checkpoint.", plugin="hooks")
    end: str | None = key(None, "Once when the run is complete, held or cancelled.", plugin="hooks")


@dataclass(frozen=True)
class Notify:
    """Who is notified."""

    mail: str | None = key(None, "Address for Slurm's mail at the end or a hold, not at a requeue.")


@dataclass(frozen=True)
class Spec:
    """One experiment: YAML at submit, `spec.json` in its run directory afterwards."""

    name: str = key("run", "Name of the run: its directory and its name in squeue.")
    runs_root: str | None = key(
        None,
        "Folder of the run directories; unset: the variable KIT_RUNS names it, or it is ./runs "
        "(for the command kit: runs at the top of the repository).",
    )
    dir_mode: str = key(
        "0700",
        "Permissions of the run directory, in octal; others may read (0750, 0755), never write.",
        pattern="^(0o?)?7[0145][0145]$",
    )
    slurm: Slurm = dataclasses.field(default_factory=Slurm)
    launch: Launch = dataclasses.field(default_factory=Launch)
    train: Train = dataclasses.field(default_factory=Train)
    checkpoint: Checkpoint = dataclasses.field(default_factory=Checkpoint)
    log: Log = dataclasses.field(default_factory=Log)
    profile: Profile = dataclasses.field(default_factory=Profile)
    hooks: Hooks = dataclasses.field(default_factory=Hooks)
    notify: Notify = dataclasses.field(default_factory=Notify)
    setup: list[str] = key(
        [],
        "Shell lines that each node sources before its agent starts, outside of command_prefix, "
        "such as module load; each must exit with 0.",
    )

    @property
    def nproc_per_node(self) -> int:
        """Ranks of each node, as far as the spec says: one where it asks for no number or GPUs."""
        nproc = self.launch.nproc_per_node
        return max(1, self.slurm.num_gpus) if nproc == "auto" else nproc

    @property
    def num_ranks(self) -> int:
        """Ranks of all nodes, as far as the spec says; of a range of nodes, those of most."""
        return self.slurm.most_nodes * self.nproc_per_node

    @property
    def runs_inside(self) -> bool:
        """Whether a command prefix or a container of srun may hide the host's files from agents."""
        # Options of pyxis (--container-image, --container-name), and Slurm's own.
        has_container = any(each.startswith("--container") for each in self.slurm.srun_args)
        return bool(self.launch.command_prefix) or has_container

    @property
    def interpreter(self) -> str:
        """The interpreter of agents and ranks, a path or a name on PATH.

        The host's interpreter is never the default inside of a prefix or a container: its path may
        be missing there, or belong to other libraries.
        """
        return self.launch.python or ("python3" if self.runs_inside else sys.executable)

    def to_json(self) -> str:
        """Return the text of `spec.json`."""
        values = {"format": FORMAT, **dataclasses.asdict(self)}
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the frozen spec of a run, from its `spec.json`.

        Raises: UserError, RecordError, OSError.
        """
        return cls.from_json(files.read_text(path), str(path.parent))

    @classmethod
    def from_json(cls, text: str, run_dir: str = "the run directory") -> Self:
        """Return the spec of a `spec.json` that `to_json` wrote; `jobs.config.load` checked it.

        Raises: UserError, RecordError.
        """
        where = f"{run_dir}/spec.json"
        values = files.parse_json(text, where)
        if isinstance(values, dict):
            if (number := values.get("format", 0)) != FORMAT:
                what = f"format {number or 'unknown'}, and this kit reads format {FORMAT}"
                hint = "use the version of the kit that submitted it, or submit it again"
                raise UserError(f"{run_dir}: {what}", hint)
            for name in SECTIONS.keys() - values:
                raise RecordError(f"{where}: the section {name} is missing")
        spec = records.decode(cls, values, where)
        try:
            spec.slurm.job_nodes, spec.slurm.fewest_nodes, int(spec.dir_mode, 8)
        except ValueError as error:
            raise RecordError(f"{where}: {error}") from None
        return spec


SECTIONS: dict[str, Any] = {
    each.name: each.default_factory
    for each in dataclasses.fields(Spec)
    if dataclasses.is_dataclass(each.default_factory)
}
