"""The command lines of the docs as they are typed: in a clone, or with the kit installed.

They run in the order of the pages, in one folder. What cannot run here has a reason in ELSEWHERE.
"""

import os
import re
import shutil
import subprocess
import sys

import pytest

from slurm_job_kit.jobs.commands.catalogue import all_commands
from slurm_job_kit.jobs.commands.make_words import TARGETS, make_variables
from tests.checkout import copy_checkout
from tests.installed import install, make_repository
from tests.local.local_kit import FOREIGN, REPOSITORY
from tests.repository.test_readme import commands

PLUGINS = (
    *("changes", "clean", "compare", "explain", "export", "init", "look", "nodes", "rehearse"),
    *("report", "schema", "scripts", "sweeps", "zoo"),
)
pytestmark = [pytest.mark.slow, pytest.mark.plugin(*PLUGINS)]
ELSEWHERE = {
    "make (test|lint|chaos|bench|release)": "CI runs it",
    "make cluster-up|sbatch|python -m docs": "tests/slurm starts a Slurm",
    "(make|kit) doctor": "a host with Slurm's programs alone is a FAIL: tests/plugins/sites",
    "make shell": "no rank runs: tests/plugins/shell",
    "make cancel": "no run is left to cancel: test_make.py",
    "pip|git clone": "it downloads; tests/installed.py installs the kit",
    ".*gpus_per_node=4": "no GPUs",
    r"\S*python -m( jobs rehearse)?$|.* \[--": "it is a part of a command line",
}
FILLED = {
    r"CONFIG=\.\.\.": "CONFIG=configs/cancer.yaml",
    r"=(\.\.\.|NAME|resnet|undisturbed|RUN(?=@)|2026[-\d\w]+)": "=cancer",
    "step-1200": "best YES=1",
    r'CMD="python train.py( --lr 0.1)?': 'CMD="python configs/examples/plain.py --epochs 1',
    "CODE=1": "CODE=1 CHECKPOINT=best",  # other code alone continues no complete run
    "freeze CONFIG": "freeze configs/first.yaml",
    "kit why RUN": "kit why first",
    "make export$": "make export RUN=cancer",  # the newest run is one of a script
    # The host of the tests may have programs of Slurm, but no cluster.
    "^(make (dry-run|submit|resume|sweep)(?!.*(FLAGS|DRY)).*)": r'\1 FLAGS="--cluster local"',
    "^kit submit": "kit submit --cluster local",
}


def is_whole(command):
    """Whether it is no name of a target that needs more words."""
    name = command.removeprefix("make ")
    return name not in {*TARGETS, *all_commands()} or not make_variables(name)[0]


TYPED = [*filter(is_whole, dict.fromkeys(each.values[0] for each in commands()))]


def environment(*folders, **variables):
    """The variables of a user's shell, with these folders first on its PATH."""
    own = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "FLAGS", *FOREIGN)
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(own)}
    return inherited | {"PATH": ":".join([*map(str, folders), os.environ["PATH"]])} | variables


def typed(command, folder, env):
    """The exit code and output of a command line."""
    words = ["bash", "-c", command]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """The folder of a clone whose run `cancer` is complete, and the environment for it."""
    folder = tmp_path_factory.mktemp("clone") / "kit"
    copy_checkout(folder)
    shutil.copy(REPOSITORY / ".gitignore", folder)
    (folder / ".venv").symlink_to(sys.prefix)
    env = environment(f"{sys.prefix}/bin", VIRTUAL_ENV=sys.prefix)
    made = 'make submit CONFIG=configs/cancer.yaml SET=train.epochs=2 FLAGS="--cluster local"'
    status, output = typed(f"git init -q && {made}", folder, env)
    assert status == 0, output
    return folder, env


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """The folder of a user's repository with a train.py, and an environment with kit."""
    folder = tmp_path_factory.mktemp("mine")
    make_repository(folder / "code")
    shutil.copy(REPOSITORY / "tests/plugins/rehearse/good.py", folder / "code/train.py")
    place = folder / "code", environment(install(folder / "installed").parent)
    status, output = typed("kit init && kit submit --cluster local configs/first.yaml", *place)
    assert status == 0, output
    return place


@pytest.mark.parametrize("command", TYPED)
def test_a_command_line_of_the_docs_runs_as_it_is_typed(command, request):
    for pattern, reason in ELSEWHERE.items():
        if re.match(pattern, command):
            pytest.skip(reason)
    place = request.getfixturevalue("mine" if command.startswith("kit") else "clone")
    for pattern, text in FILLED.items():
        command = re.sub(pattern, text, command)
    status, output = typed(command, *place)
    assert status == 0, output
