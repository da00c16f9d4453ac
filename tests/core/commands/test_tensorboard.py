"""The commands that show a run's TensorBoard files on a laptop."""

import shlex

import pytest

from slurm_job_kit.jobs.commands.views import tensorboard
from slurm_job_kit.jobs.spec import Log, Spec
from tests.core.run_files import make_run


@pytest.fixture
def run(here):
    return make_run(here, name="two words")


def test_a_run_with_tensorboard_has_a_command_and_a_tunnel_to_its_port(run, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "login1.site")
    run.spec.write_text(Spec(name="two words", log=Log(tensorboard=True)).to_json())
    here, tunnel = (tensorboard.command(run) or "").splitlines()
    words = shlex.split(here)
    assert words[:2] == ["tensorboard", "--logdir"]
    assert words[2] == str(run.tensorboard)
    port = words[words.index("--port") + 1]
    tunnelled = shlex.split(tunnel, comments=True)
    assert f"{port}:localhost:{port}" in tunnelled
    assert tunnelled[-1].endswith("@login1.site")
    assert f"http://localhost:{port}" in tunnel


def test_a_damaged_spec_leaves_the_files_to_decide(run):
    run.spec.write_text("{")
    assert tensorboard.command(run) is None
    run.tensorboard.mkdir()
    assert str(run.tensorboard) in (tensorboard.command(run) or "")
