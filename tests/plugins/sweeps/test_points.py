"""The points of a sweep: grid, list; lists on the command line; all mistakes at once."""

import pytest

from slurm_job_kit.jobs.config.load import SpecError, load
from slurm_job_kit.jobs.plugins.sweeps import points

BASE = "name: tiny\nslurm: {nodes: 2}\n"


@pytest.fixture
def swept(spec_file):
    """The `KEY=VALUE` of each point."""

    def taken(text, *arguments):
        point_list = points.load(spec_file(BASE + text), arguments).points
        for point in point_list:  # the frozen overrides give the same spec as a run of its own
            single = load(spec_file(BASE), [*point.loaded.overrides])
            assert single.spec == point.loaded.spec
            assert load(spec_file(BASE + text), point.loaded.overrides, is_frozen=True).spec == (
                single.spec
            )
        return [" ".join(point.overrides) for point in point_list]

    return taken


@pytest.fixture
def refused(spec_file):
    def taken(text, *arguments):
        with pytest.raises(SpecError) as caught:
            points.load(spec_file(BASE + text), arguments)
        return str(caught.value)

    return taken


def test_a_grid_has_every_combination(swept):
    text = "sweep: {grid: {train.lr: [0.1, 1e-2], train.seed: [0, 1]}}\n"
    pairs = ["train.lr=0.1 train.seed=0", "train.lr=0.1 train.seed=1"]
    assert swept(text) == [*pairs, *(each.replace("0.1", "0.01") for each in pairs)]


def test_a_list_has_its_lines(swept):
    text = "sweep: {list: [{train.lr: 0.2, train.momentum: 0.5}, {train.seed: 1}]}\n"
    assert swept(text) == ["train.lr=0.2 train.momentum=0.5", "train.seed=1"]


def test_a_number_in_a_list_of_text_stays_as_it_is_written(swept):
    text = "sweep: {grid: {launch.env.V: [1.10, 007], setup: [[--lr, 1e-3]]}}\n"
    setup = 'setup=["--lr", "1e-3"]'
    assert swept(text) == [f'launch.env.V="1.10" {setup}', f'launch.env.V="007" {setup}']
    text = "sweep: {list: [{dir_mode: 0750, slurm.nodes: 2.0}, {slurm.sbatch_args.nice: 010}]}\n"
    assert swept(text) == ['dir_mode="0750" slurm.nodes=2', 'slurm.sbatch_args.nice="010"']


def test_the_command_line_lists_values_by_commas_outside_of_brackets_and_quotes(swept):
    lists = ("train.seed=1,2", "setup=[a,b]", "slurm.exclude='\"n1,n2\"'", "train.lr=0.3")
    assert swept("", *lists) == ["train.seed=1", "train.seed=2"]
    words = ("train.schedule=cosine", "train.epochs=5")
    inner = swept("", "slurm.srun_args=[--mpi=a,--exact],[--mpi=b]", *words)
    assert inner == ['slurm.srun_args=["--mpi=a", "--exact"]', 'slurm.srun_args=["--mpi=b"]']


def test_a_key_of_the_command_line_replaces_that_of_the_section_and_others_multiply(swept):
    text = "sweep: {grid: {train.lr: [0.1, 0.2], train.seed: [0, 1]}}\n"
    assert swept(text, "train.lr=0.3") == ["train.seed=0", "train.seed=1"]
    assert len(swept(text, "train.lr=1,2,3", "train.momentum=0.1,0.2")) == 2 * 3 * 2
    assert swept(text, "train.seed=0,1", "train.seed=4") == ["train.lr=0.1", "train.lr=0.2"]


def test_all_mistakes_of_section_and_points_are_reported_with_their_lines(refused):
    text = """train: {epochs: 0}
sweep:
  max_paralel: 3
  grid:
    train.lrr: [0.01]
    train.seed:
      - 0
      - x
    train.momentum: 3
"""
    problems = refused(text)
    lines = ("x.yaml:3: train.epochs", "x.yaml:5: sweep.max_paralel", "x.yaml:7: train.lrr")
    more = ("x.yaml:10: train.seed", "x.yaml:11: sweep.grid")
    assert [line for line in (*lines, *more) if line not in problems] == []
    assert problems.count("hint: did you mean") == 1 and "null" not in problems


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        ("launch: {script: a.py}\n", (), 'no points\n  hint: add SET="launch.env.LR=0.01,0.1'),
        ("launch: 3\n", (), "launch: must be a mapping"),
        ("sweep: 3\n", (), "must be a mapping"),
        ("sweep: {grid: {train.seed: [1]}, list: [{train.seed: 1}]}\n", (), "stands beside grid"),
        ("sweep: {grid: {train.lr: 0.1}}\n", (), "needs a list of values\n  hint: write grid"),
        ("", ("train.seed=1,,2",), 'must be a whole number, not "1,,2"'),
        ("", ("name=a,b",), "changes name or runs_root, which all points share"),
        ("sweep: {grid: {slurm.time: [4:00]}}\n", (), "x.yaml:3: slurm.time: 4:00 means 4 min"),
        ("sweep: {list: [{train: {lr: 1}}]}\n", (), "train: is a section, of which a point"),
        ("sweep: {train.lr: [1]}\n", (), "unknown key\n  hint: write grid: {train.lr: "),
        ("sweep: {max_parallel: two}\n", (), 'not "two"'),
        ("sweep: {grid: {train.seed: [0], train.lr: [1]}}\n", ("sweep.metric=loss",), "held-out"),
        ("sweep: {metric: eval_own, grid: {train.seed: [0]}}\n", (), "is no held-out metric"),
        (f"sweep: {{grid: {{train.seed: {list(range(1001))}}}}}\n", (), "has 1001 points"),
    ],
)
def test_a_mistake_is_explained(refused, text, arguments, expected):
    assert expected in refused(text, *arguments)


@pytest.mark.plugin("scripts")
def test_a_key_that_nothing_reads_is_refused_once_for_all_its_values(refused):
    text = "launch: {script: s.py}\nsweep: {grid: {train.lr: [1, 2]}}\n"
    lines = [x for x in refused(text, "train.seed=0,1").splitlines() if "nothing reads it" in x]
    assert [line.split(": ")[0] for line in lines] == ["x.yaml:4", "override train.seed=0,1"]


def test_other_commands_refuse_the_section_and_name_the_one_that_takes_it(refuse):
    problems = refuse(BASE + "sweep: {grid: {train.seed: [0, 1]}}\n")
    assert "x.yaml:3: sweep" in problems and "sweep CONFIG=x.yaml" in problems
