"""Compiled code, which the next attempt uses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_job_kit.jobs.contract.spec import Spec, Train
from slurm_job_kit.trainer.plugins.compile_cache import hooks
from tests.core.ranks import context_of, place_of

REPOSITORY = Path(__file__).resolve().parents[3]
COMPILED = """
import os, sys, torch, torch.distributed as dist
from pathlib import Path
from slurm_job_kit.jobs.contract.spec import Spec, Train
from slurm_job_kit.trainer.process.watcher import Pulse
from slurm_job_kit.trainer.model import build
from slurm_job_kit.trainer.model.training_data import build_data
from slurm_job_kit.trainer.plugins.compile_cache.hooks import callbacks
from tests.core.ranks import context_of

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
train = Train(dataset="breast_cancer", model="mlp", micro_batch_size=8, compile=True)
context = context_of(Path(sys.argv[1]), Spec(train=train))
for each in callbacks(Pulse()):
    each.opened(context)
build.set_up_torch(context)
data = build_data(context)
replica = build.build_replica(context, data)
from torch._dynamo.utils import counters
hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
print(hits, "1.weight" in replica.module.state_dict(), flush=True)
os._exit(0)  # Python's end may abort after a group over gloo (torch 2.13)
"""


@pytest.mark.parametrize("is_disk_full", [False, True])
def test_compiled_code_is_kept_where_only_its_user_can_enter(tmp_path, monkeypatch, is_disk_full):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "before")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    folder = tmp_path / "compile-cache"
    if is_disk_full:  # mkdir fails
        folder.write_text("")
    spec = Spec(train=Train(compile=True))
    hooks.CompileCache().opened(context_of(tmp_path, spec, place_of(1, 2)))
    found = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    assert found == (None if is_disk_full else str(folder / "rank-00001"))
    assert is_disk_full or folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_a_second_attempt_uses_the_compiled_code_of_the_first(tmp_path):
    hits = []
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TORCHINDUCTOR")}
    for _ in range(2):
        words = [sys.executable, "-c", COMPILED, str(tmp_path)]
        done = subprocess.run(
            words, cwd=REPOSITORY, env=inherited, stdout=subprocess.PIPE, text=True, timeout=300
        )
        assert done.returncode == 0
        *_, last = done.stdout.splitlines()
        values = last.split()
        assert values[1] == "True"
        hits.append(int(values[0]))
    assert hits[0] == 0 < hits[1]
    assert any((tmp_path / "compile-cache/rank-00000").iterdir())
