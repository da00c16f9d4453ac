"""Times, names, options and variables of a spec: they reach Slurm intact or are refused."""

import sys

import pytest


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("4:00:00", "04:00:00"),
        ("'4:00:00'", "04:00:00"),
        ("'4:00'", "00:04:00"),
        ('"30"', "00:30:00"),
        ("100:00:00", "4-04:00:00"),
        ("1-0", "1-00:00:00"),
        ("1-12:30", "1-12:30:00"),
        ("1-2:03:04", "1-02:03:04"),
    ],
)
def test_a_time_is_frozen_in_its_canonical_form(take, written, text):
    assert take(f"slurm: {{time: {written}}}").slurm.time == text
    assert take("name: x", f"slurm.time={written}").slurm.time == text


@pytest.mark.parametrize("written", ["4:00", "030"])
def test_a_number_is_never_mistaken_for_minutes(refuse, written):
    assert f"slurm.time: {written} means" in refuse(f"slurm: {{time: {written}}}")
    assert f"slurm.time: {written} means" in refuse("name: x", f"slurm.time={written}")


HARMLESS = ["mit Leerzeichen", "ümläut", "日本", "it's", 'a "b"', "`x`", "5$", "a$1", "a;b|c&d"]
HARMLESS += ["a\\nb", "*", "~x", "#1", "=", "x" * 100, "\U0001f600"]


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_text_stays_what_it_is(take, name):
    quoted = "'" + name.replace("'", "''") + "'"
    text = (
        f"name: {quoted}\nslurm: {{partition: {quoted}}}\nlaunch: {{command_prefix: [{quoted}]}}\n"
    )
    spec = take(text)
    assert (spec.name, spec.slurm.partition, spec.launch.command_prefix) == (name, name, [name])
    assert take("name: x", f"name={quoted}").name == name


@pytest.mark.parametrize("char", ["\\n", "\\r", "\\0", "\\x1b", "\\x7f", "\\x85", "\\L", "\\P"])
@pytest.mark.parametrize(
    "key",
    [
        *("name: ", "runs_root: ", "slurm: {partition: ", "slurm: {sbatch_args: {comment: "),
        *("slurm: {srun_args: [", "launch: {args: [", "launch: {env: {A: ", "setup: ["),
        *("launch: {command_prefix: [", "train: {model: ", "train: {model_args: {a: [{b: "),
    ],
)
def test_control_characters_are_refused_everywhere(refuse, key, char):
    closing = "".join("]" if char == "[" else "}" for char in reversed(key) if char in "[{")
    errors = refuse(f'{key}"a{char}b"{closing}')
    assert "has a line break in it" in errors or "has the character U+" in errors


def test_control_characters_are_refused_in_keys_and_overrides(refuse):
    assert "the key has a line break in it" in refuse('launch: {env: {"A\\nB": x}}')
    for argument in ("name=a\nb", "name=a\udc80b"):
        assert "without control characters" in refuse("name: x", argument)
    assert "launch.env" in refuse("name: x", 'launch.env.X="a\\nb"')


def test_a_tab_is_fine_in_setup_lines_only(take, refuse):
    assert take('setup: ["a\\tb"]').setup == ["a\tb"]
    assert "U+0009" in refuse('name: "a\\tb"')


def test_extra_options_are_frozen_in_sbatchs_spelling_and_as_written(take):
    options = "mail_type: END, exclusive: true, hold: false, nice: 5, begin: 010"
    extra = {"mail-type": "END", "exclusive": True, "nice": 5, "begin": "010"}
    assert take(f"slurm: {{sbatch_args: {{{options}}}}}").slurm.sbatch_args == extra


def test_the_interpreter_is_a_path_or_a_name(take, monkeypatch):
    monkeypatch.setenv("ENVS", "/opt/envs")
    assert take("launch: {python: $ENVS/a b/bin/python}").interpreter == "/opt/envs/a b/bin/python"
    assert take("launch: {python: python3.12}").interpreter == "python3.12"


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("{}", sys.executable),
        ("slurm: {srun_args: [--mpi=none]}", sys.executable),
        ("launch: {command_prefix: [apptainer, exec, x.sif]}", "python3"),
        ("slurm: {srun_args: [--container-image=x]}", "python3"),
        ("launch: {command_prefix: [numactl], python: /x/python}", "/x/python"),
    ],
)
def test_the_hosts_interpreter_is_never_the_default_inside_of_a_prefix(take, text, python):
    assert take(text).interpreter == python


def test_unquoted_numbers_are_text_as_written_where_text_is_listed(take):
    spec = take("setup: [--lr, 1e-3, 1e5, 0123, true]\nlaunch: {env: {A: 1, B: 1.50, C: off}}")
    assert spec.setup == ["--lr", "1e-3", "1e5", "0123", "true"]
    assert spec.launch.env == {"A": "1", "B": "1.50", "C": "off"}


def test_runs_root_has_its_variables_expanded(take, refuse, monkeypatch):
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("UNSET", raising=False)
    assert take("runs_root: $SCRATCH/runs").runs_root == "/scratch/me/runs"
    assert take("runs_root: ${SCRATCH}/a b").runs_root == "/scratch/me/a b"
    assert take("runs_root: ~/runs").runs_root == "/home/me/runs"
    for stays in ("$UNSET/x", "a$(touch x)", "${SCRATCH##*/}", "${SCRATCH", "$1/x", "a$"):
        assert "has a variable in it that is not set" in refuse(f"runs_root: '{stays}'")
    monkeypatch.setenv("SCRATCH", "a\nb")
    assert "has a line break in it" in refuse("runs_root: $SCRATCH")
