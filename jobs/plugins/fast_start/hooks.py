"""The hook of this plugin: torchrun beside a process that imports what the ranks need."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...base import gpus
from ...base.environment import Program
from ...contract.spec import Spec
from ...node.signed_torchrun import FORKED, LAUNCHER
from .. import PLUGINS

FORKED_RANK = Path(__file__).with_name("forked_rank.py")
# With it torch counts GPUs without CUDA, which a fork could not use after that.
COUNTS_WITHOUT_CUDA = "PYTORCH_NVML_BASED_CUDA_CHECK"


def launch_command(
    program: Program, argv: Sequence[str], environ: Mapping[str, str], spec: Spec | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return torchrun's command with `preload` before it, and with forks as its ranks."""
    words, variables = [*argv], {**environ}
    if program is not Program.TORCHRUN or spec is None:
        return words, variables
    modules = modules_for(spec)
    if modules:
        variables[COUNTS_WITHOUT_CUDA] = spec.launch.env.get(COUNTS_WITHOUT_CUDA, "1")
        end = words.index("--")  # OPTIONS -m -- slurm_job_kit.trainer RUN_DIR
        words[end - 1 : end + 2] = [FORKED, "--run-path", "--", str(FORKED_RANK)]
    at = words.index(LAUNCHER)
    words[at:at] = ["slurm_job_kit.jobs.plugins.fast_start.preload", ",".join(modules)]
    return words, variables


def modules_for(spec: Spec) -> list[str]:
    """Return what forked ranks need imported; none where ranks start by exec, as launch.fork says.

    With a GPU they are not forked by default: this was tried without GPUs only. A fork cannot use
    CUDA where its parent has initialised it.
    Of each plugin the hooks, which each rank calls: an import costs operations on a shared disk.
    DistributedDataParallel imports torch._dynamo. With train.compile each rank does: at the import
    torch stores the directory for compiled code, and each rank has its own.
    """
    fork = spec.launch.fork
    fork = not (gpus.of_machine() or spec.slurm.num_gpus) if fork == "auto" else fork
    # For a rank the fork server gets two descriptors per rank, in a message that has 253 at most.
    # Source: unix(7), SCM_RIGHTS.
    if not fork or not spec.launch.is_trainer or spec.nproc_per_node > 124:
        return []
    plugins = [f"plugins.{name}.hooks" for name, each in PLUGINS.items() if each.trainer_hooks]
    own = ["training.run", "__main__", *plugins]
    modules = [f"slurm_job_kit.trainer.{name}" for name in own]
    return [*modules, *([] if spec.train.compile else ["torch._dynamo"])]
