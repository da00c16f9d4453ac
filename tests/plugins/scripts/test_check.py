"""What is wrong with the keys of a user's script or module."""

import pytest

REFUSED = {
    "launch: {module: a.b, script: c.py}": "launch.script: excludes launch.module",
    "launch: {module: a/b.py}": 'launch.module: "a/b.py" is not a module name',
    "launch: {script: 'a/x.py --lr 0.1'}": "hint: write its options into launch.args",
    "launch: {inputs: [data]}": "launch.inputs[0]: is for your own script or module, not for",
    "launch: {script: x.py, inputs: [/data]}": '"/data" is no path inside of the repository',
    "launch: {script: x.py, inputs: [a/../..]}": "is no path inside of the repository",
    "launch: {stop_signal: TERM}": "launch.stop_signal: TERM is for your own script or module, not",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_wrong_key_is_named_with_its_line_and_a_hint(refuse_one, text):
    refuse_one(text, REFUSED[text])


def test_a_script_and_its_inputs_are_expanded_and_other_texts_are_not(take, monkeypatch):
    monkeypatch.setenv("CODE", "src")
    text = "launch: {script: $CODE/x.py, inputs: ['${CODE}/a'], args: [$CODE, ~/x]}"
    launch = take(text).launch
    assert (launch.script, launch.inputs) == ("src/x.py", ["src/a"])
    assert launch.args == ["$CODE", "~/x"]


# Of a script or module the kit starts the ranks; of the prefix of an agent they are no ranks.
@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("module: torch.distributed.run, args: [--standalone, inner.py]", "launch.nproc_per_node"),
        ("module: torchrun, args: [inner.py]", "launch.nproc_per_node"),
        ("script: /opt/env/bin/torchrun, args: [x.py]", "launch.nproc_per_node"),
        ("command_prefix: [apptainer, exec, i.sif, torchrun]", "leave out the launcher"),
        ("command_prefix: [/usr/bin/srun, -n1]", "leave out the launcher"),
        ("command_prefix: [/usr/bin/env, python, -mtorch.distributed.run]", "leave out the launch"),
    ],
)
def test_a_program_that_starts_ranks_is_refused(refuse_one, text, hint):
    assert "starts ranks" in refuse_one(f"launch: {{{text}}}", hint)


@pytest.mark.parametrize(
    "text",
    [
        "script: my/torchrun.py",
        "module: mine.accelerate",
        "command_prefix: [apptainer, exec, --bind, /opt/deepspeed, /images/accelerate]",
    ],
)
def test_a_name_like_that_of_a_launcher_is_taken(take, text):
    take(f"launch: {{{text}}}")
