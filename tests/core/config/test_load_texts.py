"""Times, names, options and variables of a spec: they reach Slurm intact or are refused."""

import sys
from pathlib import Path

import pytest

from slurm_job_kit.jobs.config.reserved import SBATCH


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("4:00:00", "04:00:00"),
        ("'4:00:00'", "04:00:00"),
        ("'4:00'", "00:04:00"),
        ('"30"', "00:30:00"),
        ("1-12", "1-12:00:00"),
        ("2-0:30", "2-00:30:00"),
        ("100:00:00", "4-04:00:00"),
    ],
)
def test_a_time_is_frozen_in_its_canonical_form(take, written, text):
    assert take(f"slurm: {{time: {written}}}").slurm.time == text
    assert take("name: x", f"slurm.time={written}").slurm.time == text


@pytest.mark.parametrize("written", ["30", "4:00", "14400", "030"])
def test_a_number_is_never_mistaken_for_minutes(refuse, written):
    assert f"slurm.time: {written} means" in refuse(f"slurm: {{time: {written}}}")
    assert f"slurm.time: {written} means" in refuse("name: x", f"slurm.time={written}")
    assert "min to Slurm" in refuse("slurm: {sbatch_args: {time_min: 30}}")
    assert "min to Slurm" in refuse("slurm: {sbatch_args: {delay-boot: 30}}")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("0", "0 is not a time"),
        ("-5", "-5 is not a time"),
        ("1.5", "1.5 is not a time"),
        ("'0:00'", '"0:00" is zero seconds'),
        ("UNLIMITED", '"UNLIMITED" is not supported: the run must'),
        ("4h", '"4h" is none of Slurm\'s forms'),
        ("true", "must be text, not true"),
    ],
)
def test_what_is_not_a_time_is_refused(refuse, written, message):
    assert message in refuse(f"slurm: {{time: {written}}}")


def test_the_stop_must_come_after_the_start(mistake, refuse, take):
    problem = mistake("name: x\nslurm:\n  nodes: 1\n  time: 0:02:00\n")
    assert (problem.place.where, problem.path) == ("x.yaml:4", ("slurm", "signal_lead_s"))
    assert problem.also == (("slurm", "time"),) and "120 s is not shorter" in problem.what
    assert "x.yaml:1: slurm.signal_lead_s" in refuse("slurm: {signal_lead_s: 3600}")
    assert take("slurm: {time: 0:02:01}").slurm.signal_lead_s == 120
    assert "signal_lead_s" not in refuse("slurm: {time: 30, signal_lead_s: 3600}")


HARMLESS = ["mit Leerzeichen", "ümläut", "日本", "it's", 'a "b"', "`x`", "5$", "a$1", "a;b|c&d"]
HARMLESS += ["a\\nb", "*", "~x", "#1", "=", "x" * 100, "\U0001f600"]


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_text_stays_what_it_is(take, name):
    quoted = "'" + name.replace("'", "''") + "'"
    text = f"name: {quoted}\nslurm: {{partition: {quoted}}}\nlaunch: {{args: [{quoted}]}}\n"
    spec = take(text)
    assert (spec.name, spec.slurm.partition, spec.launch.args) == (name, name, [name])
    assert take("name: x", f"name={quoted}").name == name


def test_a_percent_sign_which_slurm_replaces_in_paths_is_refused_in_a_name(take, refuse):
    assert 'name: "50%j" has "%" in it' in refuse("name: 50%j")
    assert take("name: x\nslurm: {partition: 50%j}").slurm.partition == "50%j"


@pytest.mark.parametrize("char", ["\\n", "\\r", "\\0", "\\x1b", "\\x7f", "\\x85", "\\L", "\\P"])
@pytest.mark.parametrize(
    "key",
    [
        "name: ",
        "runs_root: ",
        "slurm: {partition: ",
        "slurm: {sbatch_args: {comment: ",
        "slurm: {srun_args: [",
        "launch: {args: [",
        "launch: {env: {A: ",
        "launch: {command_prefix: [",
        "train: {model: ",
        "train: {model_args: {a: [{b: ",
        "setup: [",
    ],
)
def test_control_characters_are_refused_everywhere(refuse, key, char):
    closing = "".join("]" if char == "[" else "}" for char in reversed(key) if char in "[{")
    errors = refuse(f'{key}"a{char}b"{closing}')
    assert "has a line break in it" in errors or "has the character U+" in errors


def test_control_characters_are_refused_in_keys_and_overrides(refuse):
    assert "the key has a line break in it" in refuse('launch: {env: {"A\\nB": x}}')
    assert "line break or control character" in refuse("name: x", "name=a\nb")
    assert "line break or control character" in refuse("name: x", "name=a\0b")
    assert "line break or control character" in refuse("name: x", "name=a\udc80b")
    assert "launch.env" in refuse("name: x", 'launch.env.X="a\\nb"')


def test_a_tab_is_fine_in_setup_lines_only(take, refuse):
    assert take('setup: ["a\\tb"]').setup == ["a\tb"]
    assert "U+0009" in refuse('name: "a\\tb"')


def test_several_setup_lines_in_one_item_are_refused_with_a_hint(refuse):
    errors = refuse("setup:\n  - |\n    module load a\n    module load b\n")
    assert "setup[0]" in errors
    assert "hint: write one list item per line" in errors


@pytest.mark.parametrize(
    "name", ["", "a/b", "/", ".", "..", ".x", "-x", " a", "a ", "ü" * 51, "\u200b"]
)
def test_a_name_that_cannot_be_a_folders_is_refused(refuse, name):
    assert refuse(f'name: "{name}"').startswith("x.yaml:1: name: ")


@pytest.mark.parametrize("option", sorted(SBATCH))
def test_an_option_that_the_kit_sets_is_refused_with_what_to_use(refuse, option):
    for spelled in (option, option.replace("-", "_")):
        errors = refuse(f"slurm: {{sbatch_args: {{{spelled}: x}}}}")
        assert f"--{option} belongs to the kit\n  hint: {SBATCH[option]}" in errors


@pytest.mark.parametrize("short", ["job_nam", "par", "outp", "nod", "n", "gpus_per"])
def test_abbreviations_and_short_options_are_refused(refuse, short):
    assert f"slurm.sbatch_args.{short}: " in refuse(f"slurm: {{sbatch_args: {{{short}: x}}}}")


@pytest.mark.parametrize("name", ["--comment", "mail type", "a=b", "Comment", "a--b", "", "-", "ä"])
def test_other_texts_than_names_of_options_are_refused(refuse, name):
    assert "is not the name of a long sbatch option" in refuse(
        f'slurm: {{sbatch_args: {{"{name}": x}}}}'
    )


def test_extra_options_are_frozen_in_sbatchs_spelling_and_as_written(take, mistake):
    text = (
        "slurm: {sbatch_args: {mail_type: END, exclusive: true, hold: false, nice: 5, begin: 010}}"
    )
    extra = {"mail-type": "END", "exclusive": True, "nice": 5, "begin": "010"}
    assert take(text).slurm.sbatch_args == extra
    assert take("slurm: {sbatch_args: {time_min: '4:00'}}").slurm.sbatch_args == {
        "time-min": "00:04:00"
    }
    twice = mistake("slurm: {sbatch_args: {mail_type: END, mail-type: ALL}}")
    assert twice.path == ("slurm", "sbatch_args", "mail-type")
    assert twice.what == "is the same option as mail_type"


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("touch", '"touch" is not an srun option'),
        ("-N2", '"-N2" is not an srun option'),
        ("--", '"--" is not an srun option'),
        ("':'", '":" is not an srun option'),
        ("--nodes=3", "--nodes belongs to the kit"),
        ("--nod=3", "--nod could mean --nodes, which belongs to the kit"),
        ("--chdir=/", "--chdir belongs to the kit"),
    ],
)
def test_srun_options_cannot_smuggle_a_command_or_change_the_layout(refuse, item, message):
    assert message in refuse(f"slurm: {{srun_args: [{item}]}}")


def test_srun_options_and_a_command_prefix_stay_unchanged(take):
    spec = take(
        'slurm: {srun_args: [--mpi=none]}\nlaunch: {command_prefix: [numactl, "--mem=0", $(x)]}'
    )
    assert spec.slurm.srun_args == ["--mpi=none"]
    assert spec.launch.command_prefix == ["numactl", "--mem=0", "$(x)"]


def test_the_interpreter_is_a_path_or_a_name(take, mistake, refuse, monkeypatch):
    monkeypatch.setenv("ENVS", "/opt/envs")
    assert take("launch: {python: $ENVS/a b/bin/python}").interpreter == "/opt/envs/a b/bin/python"
    assert take("launch: {python: python3.12}").interpreter == "python3.12"
    for wrong in (".venv/bin/python", "./python", "-c"):
        problem = mistake(f"launch: {{python: {wrong}}}")
        assert problem.path == ("launch", "python") and f'"{wrong}" is neither' in problem.what
        assert f"write {Path.cwd() / wrong}" in problem.hint
    assert "launch.python: is empty" in refuse("launch: {python: ''}")


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("{}", sys.executable),
        ("setup: [module load x]", sys.executable),
        ("slurm: {srun_args: [--mpi=none]}", sys.executable),
        ("launch: {command_prefix: [apptainer, exec, x.sif]}", "python3"),
        ("slurm: {srun_args: [--container-image=x]}", "python3"),
        ("launch: {command_prefix: [numactl], python: /x/python}", "/x/python"),
    ],
)
def test_the_hosts_interpreter_is_never_the_default_inside_of_a_prefix(take, text, python):
    assert take(text).interpreter == python


@pytest.mark.parametrize("wrap", ["[a, ':']", "[--nodes=3]", "['']", "[-n]"])
def test_a_command_prefix_cannot_become_an_option_or_a_second_srun_step(refuse, wrap):
    assert "launch.command_prefix[" in refuse(f"launch: {{command_prefix: {wrap}}}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("A B", '"A B" is not the name of a variable'),
        ("A=B", "is not the name of a variable"),
        ("1A", "is not the name of a variable"),
        ("Ä", "is not the name of a variable"),
        ("", "is not the name of a variable"),
    ],
)
def test_a_wrong_name_of_a_variable_is_refused(refuse, name, message):
    assert message in refuse(f'launch: {{env: {{"{name}": x}}}}')


def test_unquoted_numbers_are_text_as_written_where_text_is_listed(take):
    spec = take("launch: {args: [--lr, 1e-3, 0123, true], env: {A: 1, B: 1.50, C: off}}")
    assert spec.launch.args == ["--lr", "1e-3", "0123", "true"]
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


def test_an_expedited_requeue_alone_may_be_asked_for(take, refuse):
    assert take("slurm: {sbatch_args: {requeue: expedite}}").slurm.sbatch_args == {
        "requeue": "expedite"
    }
    for value in ("true", "now"):
        assert "--requeue belongs" in refuse(f"slurm: {{sbatch_args: {{requeue: {value}}}}}")
