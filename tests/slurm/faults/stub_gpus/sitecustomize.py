"""Stands for GPUs, which this machine does not have: put this folder on PYTHONPATH of the agents.

STUB_GPUS is the number of GPUs that the driver of a node shows, STUB_GPUS_OF that of single ones as
`n2=1`. The build of torch for CPUs says that it is one for CUDA. Nothing computes on them.
"""

import ctypes
import os
import pathlib
from unittest import mock


class Driver:
    """The two functions of libcuda.so.1 that the kit calls."""

    def cuInit(self, _flags):
        return 0

    def cuDeviceGetCount(self, count):
        known = dict(word.split("=") for word in os.environ.get("STUB_GPUS_OF", "").split())
        node = os.environ.get("SLURMD_NODENAME", "")
        count._obj.value = int(known.get(node, os.environ["STUB_GPUS"]))
        return 0


if "STUB_GPUS" in os.environ:
    library, read_text = ctypes.CDLL, pathlib.Path.read_text

    def with_driver(name=None, *args, **kwargs):
        return Driver() if name == "libcuda.so.1" else library(name, *args, **kwargs)

    def with_build(path, *args, **kwargs):
        """Return the text of a file; of torch's version.py that of a build for CUDA."""
        is_torchs = path.match("torch/version.py")
        return "cuda: str = '12.4'\n" if is_torchs else read_text(path, *args, **kwargs)

    mock.patch.object(ctypes, "CDLL", with_driver).start()
    mock.patch.object(pathlib.Path, "read_text", with_build).start()
