"""Pipelines of a user's script whose exit code hides that the training failed: said at submit."""

import pytest

from slurm_job_kit.jobs.config import pipelines
from slurm_job_kit.jobs.spec import Launch

RUN_SH = 'import subprocess, sys\nsubprocess.run(["bash", "scripts/train.sh"], check=True)\n'


@pytest.fixture
def code(tmp_path):
    """Frozen code with a script that starts another one."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "run.py").write_text(RUN_SH)
    return tmp_path


def lines(code, text, run=RUN_SH, **launch):
    (code / "run.py").write_text(run)
    (code / "scripts/train.sh").write_text(text)
    return pipelines.hiding(Launch(script="run.py", **launch), code / "run.py", code)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("cd /w\npython train.py | tee log\n", 2),
        ("cd /w\npython train.py \\\n  --lr 1 2>&1 | tee -a log\n", 2),
        ("torchrun --nproc-per-node 2 train.py |& grep -v warning\n", 1),
        ('"$PYTHON" train.py 2>&1 | tee "$LOG"\n', 1),
    ],
)
def test_a_pipeline_that_hides_the_end_of_a_training_is_named_with_its_line(code, text, number):
    (line,) = lines(code, text)
    assert f"scripts/train.sh:{number}: " in line and "pipefail" in line


@pytest.mark.parametrize(
    "text",
    [
        "python train.py > log 2>&1\n",
        "set -euo pipefail\npython train.py | tee log\n",
        "#!/bin/bash\n# python train.py | tee log\n",
        "python train.py || exit 1\nls | wc -l\n",
        "python train.py | tee log\nexit ${PIPESTATUS[0]}\n",
    ],
)
def test_other_lines_are_not_named(code, text):
    assert lines(code, text) == []


def test_the_script_itself_is_read_and_no_file_that_it_does_not_name(code):
    run = 'import os\nos.system("cd /w && python train.py | tee log")\n'
    (line,) = lines(code, "python train.py | tee log\n", run)
    assert "run.py:2: " in line


def test_a_shell_that_is_told_by_the_environment_needs_no_line(code):
    assert lines(code, "python train.py | tee log\n", env={"SHELLOPTS": "pipefail"}) == []


def test_a_module_and_a_file_that_cannot_be_read_are_passed_over(code):
    (code / "run.py").write_bytes(b"\xff\xfe | tee log")
    assert pipelines.hiding(Launch(script="run.py"), code / "run.py", code) is not None
    assert pipelines.hiding(Launch(module="mine.run"), code / "missing.py", code) == []
