"""One's site file and the files that a spec extends: which value wins, and what a run keeps."""

import os
from pathlib import Path

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.config.keys import keys
from slurm_job_kit.jobs.config.load import SpecError, load
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.jobs.runs import frozen_spec, lookup
from tests.core import run_files

FILES = {
    "site.yaml": "slurm: {partition: a, account: '08'}\nsetup: [site]\nlaunch: {python: /py}\n",
    "far.yaml": "train:\n  lr: 0.1\nlaunch: {env: {A: 1, B: 1}}\nsetup: [far]\n",
    "sub/low.yaml": "train: {lr: 0.3, seed: 1}\n",
    "sub/near.yaml": "extends: low.yaml\ntrain:\n  lr: 0.2\nlaunch: {env: {B: 2}}\nx-y: 3\n",
    "own.yaml": """extends: [far.yaml, sub/near.yaml]
name: own
slurm: {partition: b}
train: # all commented out
launch:
  env: {C: 3}
""",
}


def write(name: str, text: str) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(text)
    Path(name).chmod(0o644)


@pytest.fixture(autouse=True)
def _files(here, monkeypatch):
    monkeypatch.setenv("KIT_SITE", "site.yaml")
    for name, text in FILES.items():
        write(name, text)


def test_the_later_layer_wins_and_mappings_are_merged():
    spec = load(Path("own.yaml"), ["slurm.qos=x"]).spec
    assert (spec.slurm.partition, spec.slurm.account, spec.slurm.qos) == ("b", "08", "x")
    assert (spec.train.lr, spec.train.seed, spec.setup) == (0.2, 1, ["far"])
    assert spec.launch.env == {"A": "1", "B": "2", "C": "3"}
    write("own.yaml", "extends: far.yaml\nsetup:\nlaunch: {env: null}\nslurm: {account: null}\n")
    spec = load(Path("own.yaml")).spec
    assert (spec.setup, spec.launch.env, spec.slurm.account) == ([], {}, None)
    assert load(Path("own.yaml"), ["launch.env.A=2"]).spec.launch.env == {"A": "2"}
    write("own.yaml", "name: a\nextends: []\n")
    assert load(Path("own.yaml")).spec.slurm.account == "08"
    typed = load(Path("behind --"), ["slurm.qos=x"], "launch: {module: a}\n")
    assert (typed.spec.slurm.account, typed.spec.launch.module) == ("08", "a")
    assert '"account": "08"' in typed.text and '"qos": "x"' in typed.text


def test_the_site_file_lies_in_the_home_folder_and_can_be_turned_off(here, monkeypatch):
    (home := here / ".config/slurm-job-kit").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(here))
    monkeypatch.delenv("KIT_SITE")
    for text, qos in {"# slurm:\n": None, "slurm: {qos: q}\nlaunch:\n": "q"}.items():
        write(str(home / "site.yaml"), text)
        assert load(Path("tiny.yaml")).spec.slurm.qos == qos
    for nothing in ("", "/dev/null"):
        monkeypatch.setenv("KIT_SITE", nothing)
        assert load(Path("tiny.yaml")).spec.slurm.qos is None


@pytest.mark.plugin("explain")
def test_explain_shows_the_file_and_line_of_each_layer(capsys):
    assert main(["explain", "own.yaml", "launch.env.D=2"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    origin = {key: rest.rpartition("  ")[2] for key, rest in lines}
    assert origin["slurm.account"] == "site.yaml:1" and origin["slurm.partition"] == "own.yaml:3"
    assert origin["train.lr"] == "sub/near.yaml:3" and origin["setup"] == "far.yaml:4"
    files = "far.yaml:3, sub/near.yaml:4, own.yaml:6"
    assert origin["launch.env"] == f"{files}, command line: launch.env.D=2"
    assert origin["slurm.qos"] == "default" and len(lines) == 1 + len(keys())


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("far.yaml", "train:\n  epochs: x\n", "far.yaml:2: train.epochs: must be a whole num"),
        ("far.yaml", "name: a\nslurm:\n  time: 4:00\n", "far.yaml:3: slurm.time: 4:00 means"),
        ("far.yaml", "a: [\nb: 1", "far.yaml:1: the [ of line 1 is not closed"),
        ("far.yaml", "\nextends: own.yaml", "far.yaml:2: own.yaml extends this file, which is a"),
        ("own.yaml", "name: a\nextends: no.yaml", "own.yaml:2: no.yaml: cannot be read: No such"),
        ("own.yaml", "extends:\n- far.yaml\n- 5", "own.yaml:3: 5: cannot be read: No such"),
        ("own.yaml", "extends: $NO/a.yaml", 'own.yaml:1: "$NO/a.yaml" has a variable in'),
        ("site.yaml", "\nslurm: {time: 4:00}", "site.yaml:2: slurm.time: 4:00 means"),
        ("site.yaml", "train:\n  lr: 1", "site.yaml:1: train: cannot stand in a site file\n"),
        ("site.yaml", "account: a", "site.yaml:1: account: unknown key\n  hint: did"),
        ("site.yaml", "- a", "site.yaml:1: this is not a mapping"),
    ],
)
def test_a_mistake_is_shown_where_the_value_stands(name, text, message):
    write(name, text)
    with pytest.raises(SpecError) as caught:
        load(Path("own.yaml"))
    assert str(caught.value).startswith(message)
    assert [line[:7] for line in str(caught.value).splitlines()[1:]] in ([], ["  hint:"])


def test_a_site_file_that_is_missing_or_that_others_may_write_is_refused(monkeypatch):
    Path("site.yaml").chmod(0o664)
    with pytest.raises(SpecError, match="may write site.yaml .*\n  hint: chmod go-w site.yaml$"):
        load(Path("own.yaml"))
    if os.getuid() == 0:  # who may give files away
        os.chown("site.yaml", 4001, -1)
        with pytest.raises(SpecError, match="site file: site.yaml belongs to user 4001\n  hint: "):
            load(Path("own.yaml"))
    monkeypatch.setenv("KIT_SITE", "/no/site.yaml")
    with pytest.raises(SpecError, match="^site file: /no/site.yaml: cannot be read: No such file"):
        load(Path("tiny.yaml"))


def change() -> None:
    """Make the site file wrong and remove the others."""
    write("site.yaml", "oops: 1\n")
    for name in ("far.yaml", "sub/low.yaml", "sub/near.yaml", "own.yaml"):
        Path(name).unlink()


def check_frozen(run: RunDir) -> None:
    was = Spec.read(run.spec)
    assert (was.slurm.account, was.train.lr, was.launch.env["A"]) == ("08", 0.2, "1")
    assert frozen_spec.reload(run, []).spec == was
    now = frozen_spec.reload(run, ["train.seed=7"]).spec
    assert [*frozen_spec.differences(was, now)] == [("train", "seed")]


@pytest.mark.plugin("changes", "sweeps")
@pytest.mark.parametrize("words", [["submit", "own.yaml"], ["sweep", "own.yaml", "train.seed=2,3"]])
def test_a_run_keeps_its_spec_when_the_files_change(slurm, words):
    assert main(words) == 0
    change()
    for run in lookup.all_runs():
        check_frozen(run)
    if words[0] == "submit":
        slurm.set_state("4711", "CANCELLED")
        assert main(["resume", "own", "slurm.time=3:00:00"]) == 0
        check_frozen(lookup.find("own"))


def test_a_job_of_plain_sbatch_reads_the_files_at_its_first_start_only(slurm):
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}
    first = run_files.kit("adopt", "own.yaml", **job)
    change()
    check_frozen(RunDir(Path(first.stdout.strip())))
    again = run_files.kit("adopt", "own.yaml", **job, SLURM_RESTART_COUNT="1")
    assert again.stdout == first.stdout, first.stderr + again.stderr
