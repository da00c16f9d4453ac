"""Loading a spec: any content of a file is either accepted, or refused with all its mistakes."""

import random
from pathlib import Path

import pytest
import yaml

from slurm_job_kit.jobs.config import yaml_reader
from slurm_job_kit.jobs.config.keys import keys, type_name
from slurm_job_kit.jobs.config.load import SpecError, load
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.jobs.plugins import PLUGINS

ROOT = Path(__file__).resolve().parents[3]


def test_a_key_that_is_not_written_has_its_default(take):
    assert take("name: x\n") == Spec(name="x", slurm=take("name: y").slurm)
    assert take("name: x\n").slurm.time == "01:00:00"


def test_sections_and_lists_that_are_all_commented_out_count_as_left_out(take):
    sections = "slurm:\n  # nodes: 2\ntrain:\n  model_args:\nlaunch:\n  env:\n  args:\nsetup:\n"
    assert take(f"name: x\n{sections}") == take("name: x\n")


def test_all_mistakes_are_listed_at_once_in_the_order_of_the_file(refuse):
    text = """\
name: 5
slurm:
  nodes: two
  time: 4:00
  acount: x
launch:
  nproc_per_node: two
train:
  lr: -1
nodes: 3
"""
    assert refuse(text, "slurm.node=3", "oops") == (
        "x.yaml:1: name: must be text, not 5\n"
        '  hint: quote it: "5"\n'
        'x.yaml:3: slurm.nodes: cannot be "two"\n'
        "  hint: write a number, or a range such as 6-8\n"
        "x.yaml:4: slurm.time: 4:00 means 4 min to Slurm\n"
        '  hint: write "04:00:00" for 4 h, or "0:04:00" if you meant minutes\n'
        "x.yaml:5: slurm.acount: unknown key\n"
        "  hint: did you mean slurm.account?\n"
        'x.yaml:7: launch.nproc_per_node: must be a whole number or auto, not "two"\n'
        "x.yaml:9: train.lr: must be greater than 0, not -1\n"
        "x.yaml:10: nodes: unknown key\n"
        "  hint: did you mean slurm.nodes?\n"
        "override slurm.node=3: slurm.node: unknown key\n"
        "  hint: did you mean slurm.nodes?\n"
        "override oops: is not KEY=VALUE\n"
        "  hint: write KEY=VALUE without spaces, such as slurm.nodes=2"
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("slurm: 5", "slurm: must be a mapping, not 5"),
        ("slurm: {nodes: true}", "slurm.nodes: must be a whole number or text, not true"),
        ("slurm: {signal_lead_s: 65536}", "slurm.signal_lead_s: must be at most 65535, not 65536"),
        ("slurm: {time: 0}", "slurm.time: 0 is not a time"),
        ("slurm: {time: UNLIMITED}", 'slurm.time: "UNLIMITED" is not supported: the run must'),
        ("slurm: {account: 0123}", 'must be text, not 0123\n  hint: quote it: "0123"'),
        ("train: lr:0.1", 'train: must be a mapping, not "lr:0.1"\n  hint: write lr: 0.1'),
        ("slurm: {mem: 64}", 'not 64\n  hint: write a unit, such as 64G; "64" in quotes is MiB'),
        (
            "slurm: {sbatch_args: {a-b: [1]}}",
            "slurm.sbatch_args.a-b: must be text, a number, or true or false",
        ),
        ("slurm: {comment: x}", "slurm.comment: unknown key\n  hint: write other sbatch options"),
        ("slurm.nodes: 2", "unknown key\n  hint: write it nested, such as {slurm"),
        ("slrum: {nodes: 2}", "slrum: unknown key\n  hint: did you mean slurm?"),
        ("epoch: 3", "epoch: unknown key\n  hint: did you mean train.epochs?"),
        ("launch: {args: --lr 0.1}", 'not "--lr 0.1"\n  hint: write a list, such as [--lr, 0.1]'),
        ("train: {LR: 1}", "unknown key\n  hint: did you mean train.lr?"),
        ("train: {size: 8}", "train.micro_batch_size, train.global_batch_size, train.eval_ba"),
        ('train: {lr: "1e-3"}', "hint: write 1e-3, without quotes"),
        ("train: {lr: '0,1'}", "hint: write 0.1, without quotes"),
        ('setup: ["a\\nb"]', "line break in it\n  hint: write one list item per line"),
        ("setup: [a: b]", "hint: quote text that has a colon in it"),
        ("launch: {env: [A=b]}", "hint: write a mapping, such as {a: 1, b: 2}"),
        ("train: {max_steps: 1.5}", "train.max_steps: must be a whole number, not 1.5"),
        ("train: {max_steps: 1e300}", "train.max_steps: must be a whole number, not 1e300"),
        ("launch: {env: {A: null}}", "launch.env.A: must be text, not null"),
        ("launch: {nproc_per_node: atuo}", 'not "atuo"\n  hint: did you mean auto?'),
        ("train: {nesterov: yes}", 'train.nesterov: must be true or false, not "yes"'),
        ("train: {momentum: 1}", "train.momentum: must be less than 1, not 1"),
        ("train: {lr: .nan}", "train.lr: must be a finite number"),
        ("train: {model_args: {x: [.inf]}}", "train.model_args.x[0]: must be a finite number"),
        (
            "dir_mode: 0770",
            "hint: write 0700, 0750 or 0755: only its owner writes a run; submit --from",
        ),
        ("dir_mode: true", "dir_mode: must be text, not true\n  hint: write 0700"),
        ("5", "this is not a mapping of keys"),
    ],
)
def test_a_wrong_value_is_named_with_its_line_and_a_hint(refuse_one, value, message):
    refuse_one(value, message)


@pytest.mark.plugin("scripts")
def test_a_key_that_the_users_program_does_not_read_is_refused_wherever_it_is_written(refuse, take):
    text = "launch:\n  script: a.py\n  fork: auto\ntrain:\n  lr: fast\n"
    errors = refuse(text, "profile.steps=[1]", "log.every_steps=10")
    lines = [line for line in errors.splitlines() if "nothing reads it: launch.script runs" in line]
    places = ["x.yaml:3", "x.yaml:5", "override profile.steps=[1]", "override log.every_steps=10"]
    assert [line.split(": ")[0] for line in lines] == places
    assert "launch.module runs in" in refuse("launch: {module: a.b}", "checkpoint.every_steps=5")
    take("launch: {script: a.py}\ncheckpoint: {best: eval_f1, best_mode: max}\ntrain:\n  # lr: 1\n")


@pytest.mark.plugin("health", "profiler")
@pytest.mark.parametrize("written", ["1e5", "100000.0", "1.0e+5", "1000e2", "100000"])
def test_a_whole_number_may_be_written_with_a_point_or_an_exponent(take, written):
    for spec in (
        take(f"train: {{max_steps: {written}}}"),
        take("{}", f"train.max_steps={written}"),
    ):
        assert spec.train.max_steps == 100_000
        assert type(spec.train.max_steps) is int
    spec = take("slurm: {nodes: 2.0}\nlaunch: {hang_timeout_s: 6e1}\nprofile: {steps: [2e1, 25.0]}")
    assert repr((spec.slurm.nodes, spec.launch.hang_timeout_s)) == "(2, 60)"
    assert repr(spec.profile.steps) == "[20, 25]"


@pytest.mark.parametrize("written", ["0750", "0o750", "750", "'0750'", "'750'", '"0o750"'])
def test_a_mode_is_octal_however_it_is_written(take, written):
    assert take(f"dir_mode: {written}").dir_mode == "0750"
    assert take("{}", f"dir_mode={written}").dir_mode == "0750"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"name: x\nslurm: \xff\n", "x.yaml:2: is not UTF-8: byte 0xff"),
        ("name: ü".encode("utf-16"), "is not UTF-8"),
        (b"a: " + b"x" * 65536, "is larger than 64 KiB"),
        (b'name: "\\ud800"', "x.yaml:1: "),
        (b'name: "\\0"', "name: "),
    ],
)
def test_no_content_of_a_file_makes_a_traceback(refuse, data, message):
    assert message in refuse(data)


def test_a_byte_order_mark_is_accepted(take):
    assert take("\ufeffname: x").name == "x"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("resnt.yaml", "resnt.yaml: cannot be read: No such file or directory\n  hint: . has res"),
        ("configs/x.yaml", "hint: configs has cancer.yaml"),
        ("nowhere/x.yaml", "cannot be read: No such file or directory"),
        (".", "cannot be read: Is a directory\n  hint: . has resnet.yaml"),
        ("run", "cannot be read: Is a directory\n  hint: it is a run, which "),
        ("a\0b", "cannot be read: embedded null byte"),
        ("x" * 5000, "cannot be read: File name too long"),
        ("a\nb\x1b[31m", "a\\nb\\x1b[31m: cannot be read"),
    ],
)
def test_a_path_that_cannot_be_read_is_named(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "run").mkdir()
    for name in ("resnet.yaml", ".hidden.yaml", "configs/cancer.yaml", "run/spec.json"):
        (tmp_path / name).write_text("name: x")
    with pytest.raises(SpecError) as caught:
        load(Path(path))
    assert message in str(caught.value)


PIECES = ["[", "]", "{", "}", ": ", ":", "- ", "\n", "  ", "\t", '"', "'", "|", "&a", "*a", "!!x"]
PIECES += ["%", "---\n", "#", "\\", "\0", "\x85", "\u2028", "é", "\U0001f600", "null", "true", "0x"]
PIECES += ["9" * 30, ".inf", "1e999", "<<", "? ", "@", "$HOME", "~", '"\\ud800"', '"\\U00110000"']
PIECES += [",", "\r", "\ufeff", "4:00", "30", "slurm", "time", "sbatch_args", "env", "name"]
STARTS = [
    *("slurm.time=", "slurm", "=", "a.b=", "launch.env.X=", "launch.args=", "train.lr.x=", "."),
    *("train.model_args.a.b=", "slurm.sbatch_args.a-b=", "slurm=", "name="),
]


def damaged(rng, text):
    """The text with a few pieces put into it, or nothing but pieces."""
    if rng.random() < 0.3:
        return "".join(rng.choices(PIECES, k=rng.randrange(50)))
    for _ in range(rng.randrange(3)):
        start = rng.randrange(len(text) + 1)
        stop = start + rng.choice([0, 1, 3, 10])
        text = text[:start] + rng.choice(PIECES) * rng.choice([1, 1, 40]) + text[stop:]
    return text


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
def test_any_content_of_a_file_or_an_override_is_accepted_or_refused(
    spec_file, monkeypatch, loader
):
    monkeypatch.setattr(yaml_reader, "LOADER", getattr(yaml, loader, yaml.SafeLoader))
    rng = random.Random(20260101)
    good = (ROOT / "configs" / "resnet.yaml").read_text() + FULL
    outcomes = {"accepted": 0, "refused": 0}
    for _ in range(250):
        text = damaged(rng, rng.choice([good, FULL, "name: x\n"]))
        arguments = [
            rng.choice(STARTS) + damaged(rng, "5")[:20] for _ in range(rng.choice([0, 0, 1, 2]))
        ]
        data = rng.randbytes(100) if rng.random() < 0.05 else text.encode()
        try:
            loaded = load(spec_file(data), arguments)
        except SpecError as error:
            outcomes["refused"] += 1
            assert all(char.isprintable() or char == "\n" for char in str(error))
            assert "\n  hint: \n" not in str(error)
        else:
            outcomes["accepted"] += 1
            assert load(spec_file(loaded.text), loaded.overrides).spec == loaded.spec
    assert min(outcomes.values()) > 10, outcomes


FULL = """
launch:
  env: {A: b}
  command_prefix:
    - "x"
setup:
  - module load cuda
"""


EXAMPLES = {"train.collate": "a.b:c", "train.init_from": "/runs/a", "train.transform": "a.b:c"}
EXAMPLES["slurm.mem"] = "64G"
# Without a plugin its keys are refused.
KEYS = [
    key
    for key in keys().values()
    if not isinstance(key.plugin, str) or key.plugin in ("", *PLUGINS)
]
NEEDED = {"train.shard_size": "train.strategy=hsdp"}


def test_every_key_of_the_dataclasses_can_be_written_and_overridden(take):
    for key in KEYS:
        example = EXAMPLES.get(key.dotted, "x" if "text" in type_name(key.type) else 5)
        value = example if key.default is None else key.default
        written = str(value).lower() if isinstance(value, bool) else value
        section = f"{key.path[0]}: {{{key.path[1]}: " if len(key.path) > 1 else f"{key.path[0]}: "
        quoted = f"'{written}'" if isinstance(value, str) else written
        text = f"{section}{quoted}{'}' if len(key.path) > 1 else ''}"
        needed = [NEEDED[key.dotted]] if key.dotted in NEEDED else []
        assert take(text, *needed) == take("name: run", f"{key.dotted}={quoted}", *needed)
