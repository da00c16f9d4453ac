"""Recognises a file of another tool that is given as CONFIG: what it is, and where it goes."""

import re
from pathlib import Path
from typing import Any

from .keys import sections

_SCRIPT = (
    "a Python script",
    "write a file NAME.yaml with the line `launch: {{script: {path}}}`, its arguments in "
    "launch.args; CONFIG is NAME.yaml",
)
_SHELL = (
    "a shell script",
    "in a spec its #SBATCH lines are keys of slurm, module load and activate are lines of setup, "
    "and what srun or torchrun starts is launch.script with launch.args",
)
_NOTEBOOK = ("a notebook", "jupyter nbconvert --to script makes a file for launch.script of it")
_BY_SUFFIX = {
    **dict.fromkeys((".py", ".pyw"), _SCRIPT),
    **dict.fromkeys((".sh", ".bash", ".zsh", ".sbatch", ".slurm"), _SHELL),
    ".ipynb": _NOTEBOOK,
}
_READER = "in a spec name the script that reads it in launch.script, with launch.args: "
# A pattern of keys at the top or, if special, anywhere; whose they are; where the file goes.
_BY_KEYS = (
    (
        "compute_environment|distributed_type|num_machines|machine_rank",
        "a config of accelerate",
        "the kit takes the place of accelerate launch: num_machines is slurm.nodes of a spec, the "
        "processes of a machine are launch.nproc_per_node, and mixed_precision goes into the "
        "script's Accelerator(); docs/integrations.md",
    ),
    (
        "zero_optimization|train_micro_batch_size_per_gpu|train_batch_size",
        "a config of DeepSpeed",
        _READER + "[--deepspeed, {path}]",
    ),
    ("defaults|hydra|_target_", "a config of Hydra", _READER + "[--config-name={stem}]"),
    ("_component_", "a config of torchtune", _READER + "[--config, {path}]"),
    (
        "trainer|seed_everything|class_path",
        "a config of Lightning's command line",
        _READER + "[fit, --config={path}]; docs/integrations.md",
    ),
    (
        "output_dir|(per_device_)?(train|eval)_batch_size|num_train_epochs|do_train|report_to"
        "|(model_name_or_path|base_model)|gradient_accumulation_steps|lr_scheduler_type"
        "|(save|eval|logging)_(strategy|steps|total_limit)|training_args",
        "a file of arguments of Hugging Face's Trainer",
        _READER + "[{path}], or [--config, {path}] as the script takes it; docs/integrations.md",
    ),
)
_ANYWHERE = re.compile(
    r"\b(_target_|_component_|class_path|per_device_(?:train|eval)_batch_size)[\"']?\s*:"
)
_AT_TOP = re.compile(r"^[\"']?(\w+)[\"']?\s*:", re.MULTILINE)


def of_script(path: Path, data: bytes) -> tuple[str, str] | None:
    """Return what a script is, and where it goes; None for another file."""
    known = _BY_SUFFIX.get(path.suffix.lower())
    if known is None and data.startswith(b"#!/"):
        known = _SCRIPT if b"python" in data.partition(b"\n")[0] else _SHELL
    return known and _told(path, *known)


def of_keys(path: Path, text: str, values: Any) -> tuple[str, str] | None:
    """Return what a config of another tool is, and where it goes; None for a spec.

    values: what the text has, None if that is no YAML 1.2 or has aliases.
    """
    keys = {*map(str, values)} if isinstance(values, dict) else {*_AT_TOP.findall(text)}
    known = keys.intersection(sections()[""])
    is_spec = len(known) >= len(keys - known) or not known.isdisjoint(("slurm", "launch"))
    if is_spec and keys.isdisjoint(("defaults", "hydra")):
        return None
    keys.update(_ANYWHERE.findall(text))
    for pattern, what, where in _BY_KEYS:
        if found := sorted(key for key in keys if re.fullmatch(pattern, key)):
            return _told(path, f"{what} (it has {found[0]})", where)
    return None


def _told(path: Path, what: str, where: str) -> tuple[str, str]:
    return f"is {what}, and CONFIG is a spec", where.format(path=path, stem=path.stem)
