"""configs/examples: each is submitted as its docstring says, stopped, resumed, and exact."""

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from slurm_job_kit.jobs.base.files import read_json, read_jsonl
from slurm_job_kit.jobs.contract.rundir import RunDir
from tests.core.run_files import read_progress_steps
from tests.core.waiting import wait_for
from tests.local.local_kit import FOREIGN, REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.plugin("scripts", "integrations", "look", "hooks")]
# The package that a script needs, and where it saves its last weights.
SCRIPTS = {
    "plain": ("torch", "checkpoint.pt"),
    "hf_trainer": ("transformers", "final/model.safetensors"),
    "lightning_trainer": ("lightning", "final.ckpt"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_stopped_example_ends_with_the_bits_of_plain_torchrun(kit, tmp_path, name):
    package, final = SCRIPTS[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -r requirements-dev.lock")
    script = REPOSITORY / f"configs/examples/{name}.py"
    words, changes = typed(script)
    changes.append("""hooks.checkpoint=echo "$KIT_STEP" >>hooks""")
    process = kit.start("submit", *changes, "--cluster", "local", "--", *words)
    newest = kit.root / name / "latest"
    wait_for(lambda: read_progress_steps(newest / "progress.json")[0], f"no step of {newest}")
    process.send_signal(signal.SIGINT)
    status, _, stderr = kit.end(process)
    run = RunDir(newest.resolve())
    stopped, total = read_progress_steps(run.progress)
    assert status == 130 and stopped and total and stopped < total, stderr
    assert f"stopped after step {stopped} of {total}, saved; next: " in stderr

    status, _, stderr = kit.run("resume", run.run_id, "--cluster", "local")
    assert status == 0, stderr
    first, second = read_jsonl(run.attempts)
    assert (first["last_step"], second["first_step"]) == (stopped, stopped + 1)
    result = read_json(run.result)
    assert (result["global_step"], result["steps_redone"]) == (total, 0)
    saved = [e["step"] for e in read_jsonl(run.timeline("rank-00000")) if e["event"] == "save"]
    hooked = [*map(int, (run.path / "hooks").read_text().split())]
    assert hooked == saved != []
    status, stdout, _ = kit.run("status", run.run_id)
    assert status == 0 and f"step {total}/{total}\n" in stdout and "loss " in stdout

    expected = weights(undisturbed(tmp_path / "plain", script, words[2:]), final)
    resumed = weights(run.checkpoints, final)
    assert expected.keys() == resumed.keys()
    assert [key for key in expected if not torch.equal(expected[key], resumed[key])] == []


def typed(script):
    """The command and the overrides of the line that the docstring says to type."""
    [line] = re.findall(r"(?m)^ +make submit (.*)", script.read_text())
    given = dict(word.split("=", 1) for word in shlex.split(line))
    return given.pop("CMD").split(), given.pop("SET").split()


def undisturbed(folder, script, words):
    """The checkpoints of a training without the kit, whose variables it must not need."""
    folder.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    # Where it is installed, or as here: its folder is on the search path.
    env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    argv = [*torchrun, "--nproc-per-node=2", script, *words]
    subprocess.run(argv, cwd=folder, env=env, check=True, timeout=200)
    return folder / "out" if (folder / "out").is_dir() else folder


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    if name.endswith(".safetensors"):
        return load_file(folder / name)
    state = torch.load(folder / name, weights_only=False)
    found: dict[str, torch.Tensor] = state.get("state_dict") or state["model"]
    return found
