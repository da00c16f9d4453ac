"""What is wrong with the keys of a user's script or module, and with launchers in them."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ...contract.problems import Problem, format_value
from ...contract.spec import Launch

# Programs that start ranks, each of which would start all ranks of the job once more, and modules
# that do. `accelerate` and `colossalai` have other commands, too, which are no training either.
_LAUNCHERS = re.compile(
    "torchrun|accelerate(-launch)?|deepspeed|horovodrun|colossalai|composer"
    "|mpirun|mpiexec(.hydra)?|orterun|prterun|srun|jsrun|aprun|ibrun"
)
_MODULES = (
    *(f"torch.distributed.{name}" for name in ("run", "launch", "launcher", "elastic")),
    *("accelerate.commands", "deepspeed.launcher", "horovod.runner", "colossalai.cli"),
    *("lightning.fabric.cli", "lightning_fabric.cli", "composer.cli.launcher"),
)
_OWN = (
    "the kit starts the ranks, launch.nproc_per_node on each node: give launch.script or "
    "launch.module, and only its own options in launch.args"
)


def problems_of(launch: Launch) -> Iterator[Problem]:
    if launch.module is not None and launch.script is not None:
        also = (("launch", "module"),)
        yield Problem(("launch", "script"), "excludes launch.module", "keep one of them", also)
    if launch.module and not re.fullmatch(r"[^\W\d]\w*(\.(?!py$)[^\W\d]\w*)*", launch.module):
        what = f"{format_value(launch.module)} is not a module name"
        hint = "write package.train as for python -m; the key of a file is launch.script"
        yield Problem(("launch", "module"), what, hint)
    if re.match(r"(\S+\.py|\S*python\S*|torchrun)\s+\S", launch.script or ""):
        what = f"{format_value(launch.script)} is several words"
        yield Problem(("launch", "script"), what, "write its options into launch.args, as a list")
    is_of_trainer = "is for your own script or module, not for the trainer"
    yield from launchers_in(launch)
    for index, name in enumerate(launch.inputs):
        path = ("launch", "inputs", index)
        if launch.is_trainer:
            yield Problem(path, is_of_trainer, "leave it out")
        elif os.path.isabs(name) or os.path.normpath(name).split("/")[0] in (".", ".."):
            what = f"{format_value(name)} is no path inside of the repository"
            hint = "your script opens an absolute path as it is; leave it out here"
            yield Problem(path, what, hint)
    if launch.is_trainer and launch.stop_signal != "none":
        own = (("launch", "script"), ("launch", "module"))
        what = f"{launch.stop_signal} {is_of_trainer}"
        yield Problem(("launch", "stop_signal"), what, "leave it out", own)


def launchers_in(launch: Launch) -> Iterator[Problem]:
    """Yield each program that would start ranks, where the kit starts one rank or one agent."""
    for key, name, is_wrong in (
        ("module", launch.module, launch.module == "torchrun" or is_launcher(launch.module)),
        ("script", launch.script, _LAUNCHERS.fullmatch(Path(launch.script or "").name)),
    ):
        if is_wrong:
            what = f"{format_value(name)} starts ranks, and each rank would start all of them"
            yield Problem(("launch", key), what, _OWN)
    prefix = launch.command_prefix
    for index, word in enumerate(prefix):
        # Behind the first word a path may be that of an image, or of a folder.
        name = Path(word).name if index == 0 or "/bin/" in word else word
        is_module = is_launcher(re.sub("^-m", "", word))
        if is_module or (_LAUNCHERS.fullmatch(name) and word not in prefix[:index]):
            what = f"{format_value(word)} starts ranks: each would be an agent of its own"
            hint = "the kit starts the ranks: leave out the launcher and its options"
            yield Problem(("launch", "command_prefix", index), what, hint)


def is_launcher(module: str | None) -> bool:
    return any(f"{module}.".startswith(f"{each}.") for each in _MODULES)
