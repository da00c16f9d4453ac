"""The command rehearse on small scripts: one without a fault, and others with one fault each."""

import contextlib
import glob
import os
import re
import signal
import subprocess
import sys

import pytest

from slurm_job_kit.jobs.__main__ import main
from tests.core.run_files import answered
from tests.core.waiting import wait_for
from tests.local.local_kit import FOREIGN, REPOSITORY

pytestmark = pytest.mark.long

GOOD = (REPOSITORY / "tests/plugins/rehearse/good.py").read_text(encoding="utf-8")
MIDDLE = ("middle",)
RANDOM = '    torch.set_rng_state(state["random"][rank % len(state["random"])])'
HANDLER = "signal.signal(signal.SIGTERM, note)"
LOAD = '    {0}.load_state_dict(state["{0}"])'
REDUCE = "    dist.all_reduce(flag, op=dist.ReduceOp.MAX)"
POSITION = '    epoch, taken = state["epoch"], state["taken"]'
TEMPORARY = '        target = f"{path}.tmp"'
ASKED, STOPS, BITS = "saves when asked", "stops when asked", "ends with the same bits"
EVALUATION, ONE_RANK = ("middle", "evaluation"), ("middle", "one rank after")
DEAF = "does not stop"
# The fault: the line of good.py, what stands in its place, the scenarios that show it, the question
# whose answer is no, and the cause.
FAULTS = {
    "no handler": (HANDLER, "pass", MIDDLE, ASKED, "no handler"),
    "handler on some ranks": (HANDLER, f"rank == 0 and {HANDLER}", MIDDLE, ASKED, "no handler"),
    "does not stop": ("    is_asked = True", "    pass", MIDDLE, STOPS, DEAF),
    "flag read in steps only": (
        *("            stop_if_asked()", "            time.sleep(is_asked)"),
        *(EVALUATION, STOPS, DEAF),
    ),
    "ranks do not agree": (REDUCE, "    pass", ONE_RANK, STOPS, DEAF),
    "exit code 0": (
        *("        os._exit(1)", "        os._exit(0)", MIDDLE, STOPS),
        "exit code 0 before the end",
    ),
    "no load": (
        *("if os.path.exists(PATH):", 'if "--resume" in sys.argv:', MIDDLE, "continues"),
        "checkpoint is not loaded",
    ),
    "scheduler": (LOAD.format("scheduler"), "    pass", MIDDLE, BITS, "scheduler not saved"),
    "loss scale": (LOAD.format("scaler"), "    pass", MIDDLE, BITS, "scaler not saved"),
    "position": (
        *(POSITION, '    epoch, taken = state["epoch"], 0', MIDDLE, "takes the same samples"),
        "position in the data not kept",
    ),
    "random state": (RANDOM, "    pass", MIDDLE, BITS, "random state not saved"),
}


COMMAND = [sys.executable, "-m", "slurm_job_kit.jobs", "rehearse"]
ENV = {k: v for k, v in os.environ.items() if not k.startswith((*FOREIGN, "COVERAGE"))}
ENV |= {"PYTHONPATH": str(REPOSITORY)}


def rehearse_in(folder, *words):
    """The finished command with these words."""
    argv = [*COMMAND, *words]
    return subprocess.run(argv, cwd=folder, env=ENV, capture_output=True, text=True, check=False)


def rehearse(folder, text, *words):
    """Rehearse a script; returns the exit status, and the verdict or the error."""
    (folder / "train.py").write_text(text, encoding="utf-8")
    done = rehearse_in(folder, "--json", *words, "--", sys.executable, "train.py")
    found = answered(done.stdout)
    return done.returncode, found.get("error", found)


def answers(verdict):
    return {each["question"]: each["answer"] for each in verdict["answers"]}


def only(*scenarios):
    return [word for scenario in scenarios for word in ("--only", scenario)]


def test_a_training_without_a_fault_gets_no_no(tmp_path):
    status, verdict = rehearse(tmp_path, GOOD, *only("middle"))
    assert (status, verdict["good"], {*answers(verdict).values()} & {"no"}) == (0, True, set())


@pytest.mark.slow
def test_all_scenarios_are_tried_on_a_training_without_a_fault(tmp_path):
    status, verdict = rehearse(tmp_path, GOOD, "--resize", "3")
    assert not [name for name, scenario in verdict["scenarios"].items() if "untried" in scenario]
    causes = [scenario["causes"] for scenario in verdict["scenarios"].values()]
    kills = [name for name in verdict["scenarios"] if name.startswith("SIGKILL during a save: ")]
    assert (status, causes, len(kills)) == (0, [[]] * (9 + 5), 5)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault, tmp_path):
    line, instead, scenarios, question, cause = FAULTS[fault]
    assert GOOD.count(f"{line}\n") == 1
    text = GOOD.replace(f"{line}\n", f"{instead}\n").replace("import sys\n", "import sys, time\n")
    status, verdict = rehearse(tmp_path, text, *only(*scenarios), "--grace", "10")
    assert (status, answers(verdict)[question]) == (1, "no")
    causes = {each for scenario in verdict["scenarios"].values() for each in scenario["causes"]}
    assert causes == {cause}, verdict


REPRODUCED = {  # what is replaced, the scenario, the cause, and how the last start ends
    "a stop": (LOAD.format("optimizer"), "    pass", "middle", "save optimizer.state_dict()", 0),
    "kill": (TEMPORARY, "        target = path", "during a save", "a kill in a save leaves no", 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REPRODUCED)
def test_a_script_and_an_issue_repeat_a_no_without_the_kit(name, tmp_path):
    line, instead, scenario, cause, code = REPRODUCED[name]
    where = "os.chdir(os.path.dirname(os.path.abspath(__file__)))\nEPOCHS, STEPS"
    (home := tmp_path / "code").mkdir()
    (home / "train.py").write_text(GOOD.replace(line, instead).replace("EPOCHS, STEPS", where))
    words = [*only(scenario), "--keep", "../kept", "--", sys.executable, f"{home}/train.py"]
    done = rehearse_in(home, *words)
    assert (done.returncode, cause in done.stdout, os.listdir(home)) == (1, True, ["train.py"])
    sent = (tmp_path / "kept").rename(tmp_path / "sent")
    env = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    text = subprocess.check_output(["bash", "repro.sh"], cwd=sent, env=env, text=True)
    _, undisturbed, after = text.split("== from ")
    assert "exit code 0\n" in undisturbed and f"exit code {code}\n" in after
    assert '"most": "code/checkpoint.pt: ' in after  # a tensor differs
    issue = (sent / "issue.md").read_text()
    assert "torchrun --nproc-per-node=2 train.py" in issue and "torch 2." in issue
    assert str(tmp_path) not in issue + (sent / "repro.sh").read_text()


INPUTS = "        loss = (model("
SAVE = "    if rank == 0:\n        state = {"
EPOCH = "    sampler.set_epoch(epoch)\n"
EXACT = {"continues": "yes", BITS: "yes", "takes the same samples": "yes"}
OWN_FILE = '    torch.save(torch.get_rng_state(), f"{epoch}.{taken}.{rank}")\n'
OWN_STATE = "    torch.set_rng_state(torch.load('{epoch}.{taken}.'.format(**state) + str(rank)))"
# What is replaced in good.py, the scenario, and what the verdict then has: answers and causes.
ODD: dict[str, tuple[dict[str, str], str, dict[str, str], list[str] | None]] = {
    "more inputs in some steps, and a forward pass in training mode that is no step": (
        {
            INPUTS: f"        taken % 3 or network(inputs)\n{INPUTS}",
            "    epoch, taken = epoch + 1, 0": "    network(data)\n    epoch, taken = epoch + 1, 0",
        },
        *("middle", EXACT, []),
    ),
    "the position counts from the start of the process": (
        {
            '"taken": taken,': '"taken": max(0, taken - began),',
            EPOCH: f"    began = taken\n{EPOCH}",
        },
        *("twice", {"takes the same samples": "no"}, ["position in the data not kept"]),
    ),
    "workers that begin again": (
        {
            "sampler=sampler,": "sampler=sampler, num_workers=1, collate_fn=noisy,",
            "is_asked = False\n": "is_asked = False\nnoisy = lambda items: "
            "[torch.stack(x) + torch.rand(1) for x in zip(*items)]\n",
        },
        *("middle", {BITS: "no"}, ["random state not saved"]),
    ),
    "data from a generator that begins again": (
        {f"{RANDOM}\n": "", INPUTS: f"        inputs = torch.randn(8, 20)\n{INPUTS}"},
        *("middle", {}, ["position in the data not kept", "random state not saved"]),
    ),
    # Lightning switches the mode of the wrapped model, and leaves that of the wrapper.
    "inputs of a wrapper in another mode": (
        {EPOCH: f"{EPOCH}    model.training = False\n"},
        *("middle", {"takes the same samples": "yes"}, None),
    ),
    "an evaluation in training mode": ({"    model.eval()\n": ""}, "evaluation", {}, None),
    "a file of each rank, and no barrier before that of all": (
        {SAVE: f"{OWN_FILE}{SAVE}", RANDOM: OWN_STATE},
        *("it saves", {"continues": "no"}, ["saved to the final name"]),
    ),
    "a file of each rank, and a barrier": (
        {SAVE: f"{OWN_FILE}    dist.barrier()\n{SAVE}", RANDOM: OWN_STATE},
        *("it saves", EXACT, []),
    ),
    "an order that hash() makes": (
        {"torch.manual_seed(0)": "torch.manual_seed(hash('a') % 10**6)"},
        *("middle", {"repeats itself undisturbed": "no", BITS: "yes"}, []),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
def test_an_odd_training_is_judged(name, tmp_path):
    replaced, scenario, expected, causes = ODD[name]
    text = GOOD
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    _, verdict = rehearse(tmp_path, text, *only(scenario))
    tried = [each for key, each in verdict["scenarios"].items() if scenario in key]
    assert len(tried) == 1 + (scenario == "it saves")
    assert all("causes" in each and causes in (None, each["causes"]) for each in tried)
    assert causes != [] or not any(each["differs"] for each in tried)
    assert expected.items() <= answers(verdict).items()


IMPORTS = "import torch\nimport time\n"
STEPS = """
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range({steps}):
    optimizer.zero_grad(), (weight**2).sum().backward(), optimizer.step()
"""
SAVED = "\ntorch.save(weight.detach(), 'end.pt')\n"
ENOUGH, AS_RANK_0 = IMPORTS + STEPS.format(steps=9), "import os\nos.environ['RANK'] = '0'\n"
REFUSED = {  # the script, options, and words of the reason
    "ends at once": ("print('done')", (), "without a step"),
    "takes too long": (f"{IMPORTS}time.sleep(100)", ("--limit", "8"), "--limit"),
    "takes few steps": (IMPORTS + STEPS.format(steps=2), (), "2 optimizer steps"),
    "trains apart": (ENOUGH, ("--ranks", "2"), "2 separate trainings"),
    "trains apart as rank 0": (f"{AS_RANK_0}{ENOUGH}", ("--ranks", "2"), "2 separate trainings"),
    "cannot be harmed": (ENOUGH + SAVED, only("evaluation"), "no evaluation between two steps"),
}


@pytest.mark.slow
@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_rehearsed_is_refused_in_one_line(reason, tmp_path):
    text, options, words = REFUSED[reason]
    status, output = rehearse(tmp_path, text, "--ranks", "1", *options)
    assert (status, words in output.partition("\n  hint: ")[0]) == (2, True), output


@pytest.mark.slow
def test_one_rank_will_do_where_a_script_opens_no_process_group(tmp_path):
    status, verdict = rehearse(tmp_path, ENOUGH, *only("SIGKILL"))
    assert any("one rank, as the script opens no process group" in x for x in verdict["notes"])
    assert (status, {answers(verdict)[each] for each in ("continues", BITS)}) == (0, {"not tried"})


GROUPS = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
def train(steps):
    group = dist.new_group()
    model = DistributedDataParallel(torch.nn.Linear(8, 1), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(8, 8)).sum().backward()
        optimizer.step()
    torch.save(model.state_dict(), "end.pt")
    dist.destroy_process_group(group)
dist.init_process_group("gloo")
for _ in range(12):
    torch.manual_seed(0)
    train(9)
os._exit(0)
"""


@pytest.mark.slow
def test_a_start_does_not_hang_where_torch_ends_its_groups(tmp_path):
    """The destructor of a gloo group hangs now and then in plain torch (2.13)."""
    _, verdict = rehearse(tmp_path, GROUPS, *only("SIGKILL of"), "--limit", "60")
    assert verdict["scenarios"]["SIGKILL of one rank"]["exit_codes"] == [1, 0]


@pytest.mark.parametrize("option", [("--final", "/tmp/*.pt"), ("--again", "it's")])
def test_an_option_that_cannot_be_meant_is_named(option, tmp_path, capsys):
    assert main(["rehearse", *option, "--", sys.executable, "train.py"]) == 2
    assert f"error: {option[0]} " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--resume {newest:*.pt}", "--resume {if:*.pt}"])
def test_a_flag_is_given_to_later_starts_once_there_is_a_checkpoint(tmp_path, words):
    text = GOOD.replace("if os.path.exists(PATH):", 'if "--resume" in sys.argv:')
    status, verdict = rehearse(tmp_path, text, *only("start-up", "middle"), "--again", words)
    assert status == 0, verdict


@pytest.mark.slow
def test_a_run_of_a_script_is_rehearsed_with_its_inputs(tmp_path):
    (code := tmp_path / "code").mkdir()
    spec = "name: a\nruns_root: ../runs\nlaunch: {script: train.py, inputs: [x, x]}\n"
    for name, text in {"a.yaml": spec, "train.py": "open('x')", "x": ""}.items():
        (code / name).write_text(text)
    submit = [*COMMAND[:-1], "submit", "a.yaml", "--cluster", "local"]
    subprocess.run(submit, cwd=code, env=ENV, check=True)
    done = rehearse_in(code, str(tmp_path / "runs/a/latest"), *only("middle"))
    assert "undisturbed it ends without a step" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_after_a_signal_what_was_seen_is_shown_and_nothing_else_stays(number, tmp_path):
    """A job of CI that is cancelled gets SIGTERM."""
    (code := tmp_path / "code").mkdir()  # not the folder of temporary files itself
    (code / "train.py").write_text(GOOD)
    words = [*COMMAND, *only("in the middle", "start-up"), "--", sys.executable, "train.py"]
    env, pipe = ENV | {"TMPDIR": str(tmp_path)}, subprocess.PIPE
    with subprocess.Popen(words, cwd=code, env=env, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(5)]
        wait_for(lambda: ranks_in(tmp_path), "the next scenario has begun")
        process.send_signal(number)
        verdict, _ = process.communicate(timeout=30)
    assert (process.returncode, [*tmp_path.glob("rehearse-*")]) == (130, [])
    assert "up to 13" in lines[0] and lines[3] == "2 scenarios or more to try\n"
    assert re.search(f"{ASKED} +yes", verdict)
    assert "not tried: stop after the start-up: stopped by Ctrl-C" in verdict
    wait_for(lambda: not ranks_in(tmp_path), "all ranks have ended", 10)


def ranks_in(folder):
    """The processes whose working directory is below a folder, also a deleted one."""
    found = []
    for place in glob.glob("/proc/[0-9]*/cwd"):
        with contextlib.suppress(OSError):  # it has ended, or may not be read
            found.append(os.readlink(place))
    return [each for each in found if each.startswith(f"{folder}/rehearse-")]
