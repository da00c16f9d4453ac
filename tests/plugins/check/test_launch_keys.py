"""Names, options, numbers and variables of a spec that no run could use are refused at load."""

from pathlib import Path

import pytest

from slurm_job_kit.jobs.plugins.check.launch_keys import SBATCH


def test_the_stop_must_come_after_the_start(mistake, refuse, take):
    problem = mistake("name: x\nslurm:\n  nodes: 1\n  time: 0:02:00\n")
    assert (problem.place.where, problem.path) == ("x.yaml:4", ("slurm", "signal_lead_s"))
    assert problem.also == (("slurm", "time"),) and "120 s is not shorter" in problem.what
    assert "x.yaml:1: slurm.signal_lead_s" in refuse("slurm: {signal_lead_s: 3600}")
    assert take("slurm: {time: 0:02:01}").slurm.signal_lead_s == 120
    assert "signal_lead_s" not in refuse("slurm: {time: 30, signal_lead_s: 3600}")


@pytest.mark.parametrize(
    "name", ["", "a/b", "/", ".", "..", ".x", "-x", " a", "a ", "ü" * 51, "\u200b", "50%j"]
)
def test_a_name_that_cannot_be_a_folders_is_refused(refuse, name):
    assert refuse(f'name: "{name}"').startswith("x.yaml:1: name: ")


@pytest.mark.parametrize("option", sorted(SBATCH))
def test_an_option_that_the_kit_sets_is_refused_with_what_to_use(refuse, option):
    for spelled in (option, option.replace("-", "_")):
        errors = refuse(f"slurm: {{sbatch_args: {{{spelled}: x}}}}")
        assert f"--{option} belongs to the kit\n  hint: {SBATCH[option]}" in errors


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("touch", '"touch" is not an srun option'),
        ("-N2", '"-N2" is not an srun option'),
        ("--", '"--" is not an srun option'),
        ("':'", '":" is not an srun option'),
        ("--nodes=3", "--nodes belongs to the kit"),
    ],
)
def test_srun_options_cannot_smuggle_a_command_or_change_the_layout(refuse, item, message):
    assert message in refuse(f"slurm: {{srun_args: [{item}]}}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("launch: {nproc_per_node: 0}", "must be at least 1, or auto, not 0"),
        ("slurm: {ntasks_per_node: 2}", "unknown key\n  hint: one agent runs on each node and"),
        ("slurm: {gres: gpu:4}", "unknown key\n  hint: write slurm.gpus_per_node: 2 or a100:2"),
        ("launch: {args: [a]}", "launch.args: is for your own script or module, not for the train"),
        ("launch: {script: a b.ipynb}", "hint: jupyter nbconvert --to script 'a b.ipynb' writes a"),
    ],
)
def test_a_value_that_cannot_work_is_refused(refuse_one, text, message):
    refuse_one(text, message)


def test_an_interpreter_is_a_path_or_a_name(mistake, refuse):
    for wrong in (".venv/bin/python", "./python", "-c"):
        problem = mistake(f"launch: {{python: {wrong}}}")
        assert problem.path == ("launch", "python") and f'"{wrong}" is neither' in problem.what
        assert f"write {Path.cwd() / wrong}" in problem.hint


def test_an_expedited_requeue_alone_may_be_asked_for(take, refuse):
    assert take("slurm: {sbatch_args: {requeue: expedite}}").slurm.sbatch_args == {
        "requeue": "expedite"
    }
    for value in ("true", "now"):
        assert "--requeue belongs" in refuse(f"slurm: {{sbatch_args: {{requeue: {value}}}}}")
