"""A run on Slurm goes on with mended code from an older checkpoint; another begins from it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from slurm_job_kit.jobs.rundir import RunDir
from tests.checkout import copy_checkout

from ..kit import Kit, Run
from . import harm_storage, oracles
from .rows import Row
from .scenario import SPEC, STEPS, ReferenceRuns, start


def test_mended_code_an_older_checkpoint_and_a_run_from_its_state(
    kit: Kit, reference: ReferenceRuns, row: Row, tmp_path: Path
) -> None:
    checkout = tmp_path / "checkout"
    copy_checkout(checkout)
    kit = replace(kit, repository=checkout, runs_root=tmp_path / "runs")
    paced = start(kit, "checkpoint.every_steps=2", "checkpoint.keep_last=100")
    run, model = paced.run, checkout / "trainer/model/models.py"
    row.record(run)
    run.wait_for_step(5)
    harm_storage.stop(run)
    model.write_text(f"{model.read_text()}\n# mended\n")
    old = run.dir.kit.resolve()

    words = ("--code", "--checkpoint", "2")
    refused = kit.jobs("resume", run.dir.path, *words, check=False)
    assert refused.returncode == 2
    assert re.search(r"trainer/model/models\.py +\| +2 \+\+", refused.stderr), refused.stderr
    assert run.dir.kit.resolve() == old
    paced = replace(paced, run=kit.resume(run, *words, "--yes"))
    paced.finish()
    row.record(paced.run)
    assert run.dir.kit.resolve() != old
    result = paced.run.result()
    assert (result["exactness"], result["exactness_reason"]) == (
        "same samples",
        "the code changed after step 2",
    )
    # The change has no effect: weights and metrics are those of a run without it.
    expected = reference().result()
    for name in ("global_step", "weights_sha256", "optimizer_sha256"):
        assert result[name] == expected[name]
    assert (run.dir.checkpoints / "aside-step-00000004").is_dir()

    begin = ("submit", "--json", *SPEC, "checkpoint.every_steps=2", "checkpoint.keep_last=100")
    pace = f"launch.env.PACE_FILE={paced.pace}"
    said = json.loads(kit.jobs(*begin, pace, "--from", f"{run.dir.run_id}@step-4").stdout)
    begun = Run(kit.cluster, said["job_id"], RunDir(Path(said["run_dir"])))
    begun.wait()
    assert begun.result()["global_step"] == STEPS
    assert begun.result()["weights_sha256"] == result["weights_sha256"]
    oracles.nothing_left(begun)
