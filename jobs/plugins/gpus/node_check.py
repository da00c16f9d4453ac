"""Finds out before torchrun starts whether the ranks of this node will see the GPUs asked for.

Without it a script that takes the CPU where there is no GPU would train there for days. torch is
not imported: its file version.py has for what it was built, and CUDA's driver counts the GPUs.
"""

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ...base import files, gpus
from ...base.console import BestEffort, quantity
from ...base.errors import HINT, FailedError, UserError
from ...contract import records
from ...contract.records.nodes import NODE, AgentRecord, AttemptPlan
from ...contract.rundir import RunDir
from ...contract.spec import Spec

COUNT_LIMIT_S = 10.0  # until the agents of an attempt have written their first records
PROBE_TIMEOUT_S = 120  # the first use of a GPU loads its driver
_BUILT_FOR = re.compile(r"^(cuda|hip|xpu)\b[^=\n]*=\s*['\"]([^'\"]*)", re.MULTILINE)
# In a process of its own: the agent must not hold a GPU. Source: CUDA driver API, cuInit,
# cuDeviceGetCount.
PROBE = """
import ctypes
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
print(driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)), count.value)
"""
ADVICE = (
    "look at nvidia-smi on the node, at setup, launch.env and your shell's start-up files; "
    "slurm.gpus_per_node: 0 trains on the CPU"
)


def check(spec: Spec, environ: Mapping[str, str]) -> None:
    """Check the GPUs of this node, if an agent asks. environ: of the ranks.

    Raises: UserError for a mistake that each start would repeat; FailedError where the node may be
        at fault.
    """
    torch = importlib.util.find_spec("torch")
    if NODE not in environ or torch is None or torch.origin is None:
        return
    if found := problem(spec, environ, Path(torch.origin)):
        reason, count = found
        text = f"{environ[NODE]}: {reason}{HINT}{ADVICE}"
        if count is None:  # another node has no more GPUs then
            raise UserError(text)
        record_count(count, environ)
        raise FailedError(text)


def record_count(count: int, environ: Mapping[str, str]) -> None:
    """Record the GPUs of a node that has too few, and wait until the other nodes recorded theirs.

    `attempt.close` compares them: a node that has fewer than the others is left out. When this
    agent ends, srun ends the others.
    """
    host = environ[NODE]
    attempt_dir = RunDir(Path(environ["KIT_RUN_DIR"])).attempt(int(environ["KIT_ATTEMPT"]))
    with BestEffort(f"agent on {host}")():
        plan = records.read(AttemptPlan, attempt_dir.plan)
        if plan is None or host not in plan.nodes:
            return  # of a local run, whose nodes have the GPUs of one machine
        step_id, now = os.environ.get("SLURM_STEP_ID"), round(time.time(), 3)
        record = AgentRecord(host, step_id=step_id, end=now, gpus=count)
        records.write(attempt_dir.agent(plan.nodes.index(host)), record)
        deadline = time.monotonic() + COUNT_LIMIT_S
        while time.monotonic() < deadline:
            if all(files.exists(attempt_dir.agent(n)) for n in range(len(plan.nodes))):
                return
            time.sleep(0.25)


def problem(spec: Spec, environ: Mapping[str, str], torch: Path) -> tuple[str, int | None] | None:
    """Return why the ranks would see fewer GPUs than the job has; None if they see them.

    With the number that the node's driver shows; None where that is not why. environ:
    of the ranks. torch: the file of the package torch. A user who names the devices in launch.env
    means fewer of them than the job has.
    """
    wanted = spec.slurm.num_gpus or gpus.allocated_gpus(environ) or 0
    count, fault = None, ""
    if not wanted or gpus.visible(spec.launch.env)[0]:
        return None
    built_for = dict(_BUILT_FOR.findall(torch.with_name("version.py").read_text(encoding="utf-8")))
    if not built_for:
        fault = f"torch of {sys.executable} is a CPU build ({torch.parent})"
    elif limit := gpus.limiting_variable(environ, wanted):
        fault = limit
    elif "cuda" in built_for and (seen := _of_driver(environ)) is not None and seen[0] < wanted:
        count, fault = seen
    asked = spec.slurm.gpus_are if spec.slurm.num_gpus else f"the job has {quantity(wanted, 'GPU')}"
    return (f"{asked}, but {fault}", count) if fault else None


def _of_driver(environ: Mapping[str, str]) -> tuple[int, str] | None:
    """Return (GPUs that CUDA's driver shows a process, what it reports); None if it hangs."""
    argv = [sys.executable, "-c", PROBE]
    try:
        done = subprocess.run(
            argv, env=dict(environ), capture_output=True, text=True, timeout=PROBE_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = done.stdout.split()
    if len(words) != 2:
        return 0, "libcuda.so.1 is missing: no NVIDIA driver here, or the container hides it"
    count = int(words[1])
    return count, f"CUDA's driver shows {quantity(count, 'GPU')} (its error is {words[0]})"
