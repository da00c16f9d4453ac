"""Checks train.init_from."""

from collections.abc import Iterator

from ...contract.problems import Problem, format_value
from ...contract.spec import Spec


def problems(spec: Spec) -> Iterator[Problem]:
    """Yield a problem where the name of the weights is that of a pickle."""
    path = spec.train.init_from
    if path and path.endswith((".pt", ".pth", ".bin", ".ckpt", ".pkl")):
        what = f"{format_value(path)} is neither .safetensors nor a directory"
        hint = "write its state_dict with safetensors.torch.save_file, or name a run directory"
        yield Problem(("train", "init_from"), what, hint)
