"""What types cannot say about a spec: keys that depend on each other, names, owned options.

Pure: each check takes a spec of correct types and yields what it finds.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from jobs import owned, slurm_time
from jobs.problem import CONTROL, Path, shown
from jobs.spec import Launch, Slurm, Spec, Train
from jobs.spec_keys import nearest

MODELS = ("mini_resnet", "resnet18", "resnet50", "mlp")
DATASETS = ("digits", "breast_cancer", "synthetic_images", "cifar10", "image_folder")
TRANSFORMS = ("image",)
MAX_NAME_BYTES = 100
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_CONTROL = re.compile(f"[{CONTROL}]")
_LATER_STRATEGIES = ("fsdp", "fsdp2", "deepspeed")


@dataclasses.dataclass(frozen=True)
class Finding:
    """What is wrong with a key; `also` are the keys it was compared with."""

    path: Path
    what: str
    hint: str
    also: tuple[Path, ...] = ()


def check(spec: Spec) -> Iterator[Finding]:
    """Everything that is wrong with a spec whose types are right."""
    yield from _name(spec.name)
    yield from _dir_mode(spec.dir_mode)
    yield from _empty((), spec)
    yield from _empty(("slurm",), spec.slurm)
    yield from _empty(("launch",), spec.launch)
    yield from _slurm(spec.slurm)
    yield from _srun(spec.slurm.srun, spec.launch.wrap)
    yield from _launch(spec.launch)
    yield from _env(spec.launch.env)
    yield from _train(spec.train)


def _name(name: str) -> Iterator[Finding]:
    """Spaces, quotes, `$()`, % and umlauts are fine: a name travels as one argument and as a
    folder name, never through a shell, nor in a path in which Slurm replaces % patterns.
    """
    path = ("name",)
    if not 1 <= len(name.encode()) <= MAX_NAME_BYTES:
        what = f"has {len(name.encode())} bytes"
        yield Finding(path, what, f"a name has 1 to {MAX_NAME_BYTES} bytes")
    elif wrong := next((char for char in name if char in "/:" or not char.isprintable()), None):
        what = f"{shown(name)} has {shown(wrong)} in it"
        yield Finding(path, what, "leave it out: the name is a folder's and the job's")
    elif name[0] in ".-" or name != name.strip():
        what = f"{shown(name)} starts with . or -, or begins or ends with a space"
        yield Finding(path, what, "begin and end it with a letter or digit")


def _dir_mode(mode: str) -> Iterator[Finding]:
    if (int(mode, 8) & 0o700) != 0o700:
        hint = 'start with 07, such as "0700" or "0750"'
        yield Finding(("dir_mode",), f"{shown(mode)} locks you out yourself", hint)


def _empty(section: Path, values: Spec | Slurm | Launch) -> Iterator[Finding]:
    for field in dataclasses.fields(values):
        if field.default is None and getattr(values, field.name) == "":
            yield Finding((*section, field.name), "is empty", "leave the key out, or write null")


def _slurm(slurm: Slurm) -> Iterator[Finding]:
    limit_s = slurm_time.parse_or_zero(slurm.time)
    if slurm.signal_lead_s >= limit_s:
        what = f"{slurm.signal_lead_s} s is not shorter than the time limit, {slurm.time}"
        also = (("slurm", "time"),)
        hint = "ranks must get to train before they are told to stop: raise slurm.time, or lower it"
        yield Finding(("slurm", "signal_lead_s"), what, hint, also)
    for name in slurm.extra:
        yield from _extra(("slurm", "extra", name), name.replace("_", "-"))


def _extra(path: Path, name: str) -> Iterator[Finding]:
    if not owned.OPTION.fullmatch(name) or len(name) == 1:
        hint = "write the long name without its dashes, such as mail_type"
        yield Finding(path, "is not the name of a long sbatch option", hint)
    elif found := owned.owned_option(name, owned.SBATCH):
        yield Finding(path, _belongs(name, found[0]), found[1])


def _belongs(name: str, full: str) -> str:
    option = f"--{name}" if name == full else f"--{name} could mean --{full}, which"
    return f"{option} belongs to the kit"


def _srun(options: list[str], wrap: list[str]) -> Iterator[Finding]:
    """A word without -- would be the command that srun runs, and ":" would start another one."""
    for index, option in enumerate(options):
        path, name = ("slurm", "srun", index), option[2:].partition("=")[0]
        if not option.startswith("--") or not owned.OPTION.fullmatch(name):
            hint = "write each as one long option, such as --mpi=none"
            yield Finding(path, f"{shown(option)} is not an srun option", hint)
        elif found := owned.owned_option(name, owned.SRUN):
            yield Finding(path, _belongs(name, found[0]), found[1])
    for index, word in enumerate(wrap):
        if word == ":" or (index == 0 and (not word or word.startswith("-"))):
            hint = "begin with a command; a lone : would start a second srun command"
            yield Finding(("launch", "wrap", index), f"{shown(word)} cannot stand here", hint)


def _launch(launch: Launch) -> Iterator[Finding]:
    if isinstance(launch.nproc_per_node, int) and launch.nproc_per_node < 1:
        what = f"must be at least 1, or auto, not {launch.nproc_per_node}"
        yield Finding(("launch", "nproc_per_node"), what, "auto is one rank per GPU, or one")
    if isinstance(launch.stop_check_steps, int) and launch.stop_check_steps < 1:
        what = f"must be at least 1, or auto, not {launch.stop_check_steps}"
        yield Finding(("launch", "stop_check_steps"), what, "auto is about every 50 ms")
    if launch.module is not None and launch.script is not None:
        also = (("launch", "module"),)
        yield Finding(("launch", "script"), "excludes launch.module", "keep one of them", also)
    if launch.module and not _is_dotted(launch.module):
        hint = "write it as after python -m, such as package.train; a file is launch.script"
        yield Finding(("launch", "module"), f"{shown(launch.module)} is not a module name", hint)
    if launch.script and launch.script.startswith("-"):
        hint = f"write ./{launch.script}"
        yield Finding(("launch", "script"), f"{shown(launch.script)} is no path", hint)


def _env(env: dict[str, str]) -> Iterator[Finding]:
    for name in env:
        path = ("launch", "env", name)
        if not _VARIABLE.fullmatch(name):
            hint = "use letters, digits and _, and start with a letter or _"
            yield Finding(path, f"{shown(name)} is not the name of a variable", hint)
        elif hint_owned := owned.owned_variable(name):
            yield Finding(path, f"{name} belongs to the kit", hint_owned)


def _train(train: Train) -> Iterator[Finding]:
    if train.strategy in _LATER_STRATEGIES:
        what = f"{train.strategy} is not there yet; ddp is"
        yield Finding(("train", "strategy"), what, "write ddp, or leave the key out")
    elif train.strategy != "ddp":
        yield Finding(("train", "strategy"), f"must be ddp, not {shown(train.strategy)}", "")
    yield from _plugin("model", train.model, MODELS)
    yield from _plugin("dataset", train.dataset, DATASETS)
    if train.transform is not None:
        yield from _plugin("transform", train.transform, TRANSFORMS)


def _plugin(kind: str, name: str, known: tuple[str, ...]) -> Iterator[Finding]:
    module, colon, attribute = name.partition(":")
    if name in known or (colon and _is_dotted(module) and _is_dotted(attribute)):
        return
    guess = nearest(name, known)
    hint = f"known: {', '.join(known)}; or your own package.module:callable"
    hint = f"did you mean {guess}? {hint}" if guess else hint
    yield Finding(("train", kind), f"there is no {kind} {shown(name)}", hint)


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def text_problem(text: str, is_tab_fine: bool = False) -> str | None:
    """Why a text cannot travel to Slurm as it is: a line break, a NUL, half of a character."""
    if "\n" in text or "\r" in text:
        return "has a line break in it"
    wrong = _CONTROL.search(text.replace("\t", "") if is_tab_fine else text)
    return f"has the character U+{ord(wrong[0]):04X} in it" if wrong else None
