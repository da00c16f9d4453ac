"""The wrapper of a user's script: where the script starts, what it finds, why it failed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.node.torchrun import rank_command
from slurm_job_kit.jobs.procfs import children
from slurm_job_kit.jobs.records.nodes import RankError
from slurm_job_kit.jobs.records.training import read_events
from slurm_job_kit.jobs.rundir import read_jsonl
from slurm_job_kit.jobs.runs.freeze import provenance
from slurm_job_kit.jobs.spec import Launch, Spec

pytestmark = pytest.mark.long  # each test starts a rank's wrapper and a script

REPOSITORY = Path(__file__).resolve().parents[3]
# In place of torchrun: it ignores the stop signals, and exits as its rank does.
TORCHRUN = """
import signal, subprocess, sys
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, signal.SIG_IGN)
rank = subprocess.Popen([sys.executable, "-m", "slurm_job_kit.jobs.node.rank", *sys.argv[1:]])
sys.exit(rank.wait())
"""
REPORT = """
import importlib.util, os, sys
import helper
print("cwd", os.getcwd())
print("helper", helper.__file__)
print("top", importlib.util.find_spec("at_top") is not None)
open("made.txt", "w").write("x")
"""


SHOWN = """
import sys
try:
    import no_such_module
except ImportError:
    sys.excepthook(*sys.exc_info())
print("step 1")
sys.exit(1)
"""
# As a library that makes a daemon does: it closes all files, then opens its own.
CLOSED = """
import os
os.closerange(3, 256)
files = [open(f"FOLDER/own-{n}", "w") for n in range(20)]
raise ValueError("x")
"""
PICKLED = """
import pickle, sys
assert pickle.loads(pickle.dumps(sys.exit)) is sys.exit
sys.exit(4)
"""


@pytest.fixture
def run(run):
    """A run with frozen code: a script and a package."""
    run.attempt(1).path.mkdir()
    (run.code / "mine").mkdir(parents=True)
    (run.code / "at_top").mkdir()
    (run.code / "at_top/__init__.py").touch()
    (run.code / "mine/helper.py").write_text("")
    (run.code / "helper.py").write_text("")
    return run


@pytest.fixture
def start(run):
    """Starts the text as launch.script or, if `is_module`, as launch.module, under a torchrun."""
    started = []

    def begin(text, is_module=False, search_path=""):
        (run.code / "mine/run.py").write_text(text)
        launch = Launch(module="mine.run") if is_module else Launch(script="mine/run.py")
        command = [str(run.path), *rank_command(Spec(launch=launch), run)]
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(run.code), str(REPOSITORY), search_path]),
            "KIT_AGENT_PID": str(os.getpid()),
            "KIT_ATTEMPT": "1",
            "RANK": "1",
            "WORLD_SIZE": "2",
            "KIT_WORK_DIR": str(run.work),
            "KIT_RUN_DIR": str(run.path),
        }
        # Not in REPOSITORY: `python -m` puts the working directory on the search path.
        argv = [sys.executable, "-c", TORCHRUN, *command]
        started.append(subprocess.Popen(argv, env=env, cwd="/"))
        return started[0]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def log(run):
    return run.attempt(1).rank_log(1).read_text()


def error(run):
    return records.read(RankError, run.attempt(1).rank_error(1))


@pytest.mark.parametrize(
    ("is_module", "helper"), [(False, "code/mine/helper.py"), (True, "code/helper.py")]
)
def test_a_script_starts_in_its_working_directory_and_imports_frozen_code(
    run, start, is_module, helper
):
    assert start(REPORT, is_module).wait(30) == 0
    # A script does not find what lies at the top of the frozen code: the packages of the kit.
    assert f"cwd {run.work}\nhelper {run.path / helper}\ntop {is_module}\n" in log(run)
    assert os.listdir(run.work) == ["made.txt"]
    assert error(run) is None
    names = [each["event"] for each in read_jsonl(run.timeline("rank-00001"))]
    assert names == ["spawn", "exited"]
    assert not (run.code / "made.txt").exists()


def test_a_script_finds_the_top_of_the_frozen_code_if_the_user_asks_for_it(run, start):
    text = "import at_top; print(at_top.__file__)"
    assert start(text, search_path=f"{run.code}/.").wait(30) == 0
    assert f"{run.code}/at_top/__init__.py\n" in log(run)


@pytest.mark.parametrize(
    ("text", "exit_code", "message"),
    [
        ("import sys; sys.exit(3)", 3, "exited with code 3"),
        ("import os; os.kill(os.getpid(), 11)", 128 + 11, "was killed by SIGSEGV"),
        ("raise ValueError('bad')", 1, "ValueError: bad"),
        ("import nowhere", 1, "ModuleNotFoundError: No module named 'nowhere'"),
        ("import sys; sys.exit('no data')", 1, "exited with code 1: no data"),
    ],
)
def test_the_reason_of_a_failure_is_recorded(run, start, text, exit_code, message):
    assert start(text).wait(30) == exit_code
    record = error(run)
    assert record is not None
    assert (record.rank, record.error) == (1, message)
    assert ("File" in record.traceback) == ("Error" in message)


HANDLED = """
import sys, traceback
def work():
    try:
        open("/nowhere/caught")
    except OSError:
        traceback.print_exc()
work()
try:
    {}["also caught"]
except KeyError:
    traceback.print_exc()
print("going on")
"""
LOADER = """
import sys, traceback
def fetch(index):
    raise ValueError(f"sample {index} is bad\\nin its second line")
def step():
    try:
        fetch(7)
    except ValueError:
        text = "".join(traceback.format_exception(*sys.exc_info()))
    raise ValueError("Caught ValueError in DataLoader worker process 0.\\nOriginal " + text)
step()
"""
RICH = """
import sys
def show(kind, error, trace):
    out = sys.stderr
    print("\u256d\u2500\u2500 Traceback (most recent call last) \u2500\u2500\u256e", file=out)
    print("\u2502 \x1b[33mrun.py\x1b[0m:9 in <module>        \u2502", file=out)
    print("\u2570" + "\u2500" * 40 + "\u256f", file=out)
    print(f"\x1b[1;31mValueError: \x1b[0m{error}", file=sys.stderr)
sys.excepthook = show
raise ValueError("red text\\nin two lines")
"""
HYDRA = """
import sys, traceback
def main():
    raise ValueError("no such optimizer")
try:
    main()
except Exception as error:
    print("Error executing job with overrides: ['lr=1']", file=sys.stderr)
    traceback.print_exception(error.__class__, error, error.__traceback__.tb_next)
    print(file=sys.stderr)
    print("Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
          file=sys.stderr)
    sys.exit(1)
"""
# As loguru shows an error that it logs.
MARKED = """
import sys
print('''2026-11-25 22:11:23.080 | ERROR    | __main__:<module>:9 - training failed
Traceback (most recent call last):

> File "run.py", line 7, in <module>
    try: main()
         \u2514 <function main at 0x7ff7ed23dc60>

  File "run.py", line 6, in main
    return x["weights"]
           \u2514 {}

KeyError: 'weights'
''', file=sys.stderr)
sys.exit(1)
"""
HYDRA_WORDS = """
import sys
print("utils.py:233: UserWarning: old", file=sys.stderr)
print("  register(", file=sys.stderr)
print('''Could not override 'lr'.
To append to your config use +lr=3
Key 'lr' is not in struct
    full_key: lr

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.''', file=sys.stderr)
sys.exit(1)
"""
HYDRA_TARGET = """
import sys
print('''Error executing job with overrides: []
Error locating target 'no.Thing', set env var HYDRA_FULL_ERROR=1 to see chained exception.

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.''', file=sys.stderr)
sys.exit(1)
"""
DUMPED = """
import faulthandler, os, sys
faulthandler.enable()
print("F1125 22:11:10.025606 1406308 run.py:5] no data in /d", file=sys.stderr, flush=True)
os.abort()
"""
THROWN = """
import faulthandler, os, sys
faulthandler.enable()
print('''terminate called after throwing an instance of 'std::runtime_error'
  what():  no such codec''', file=sys.stderr, flush=True)
os.abort()
"""
EXITED_WORKER = """
import sys
print("no data in /d", file=sys.stderr)
raise RuntimeError("DataLoader worker (pid(s) 3462) exited unexpectedly")
"""
ABORT = """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.free(libc.malloc(64) + 1)
"""
GROUP = """
first = ValueError("of a")
first.add_note("a note on it")
raise ExceptionGroup("several", [first, TypeError("of b\\nin two lines")])
"""
CHAIN = """
def load():
    try:
        {}["weights"]
    except KeyError as error:
        raise RuntimeError("cannot load\\nthe file") from error
try:
    load()
except RuntimeError:
    raise OSError(5, "while cleaning up")
"""
USAGE = """
import argparse
parser = argparse.ArgumentParser("train.py")
parser.add_argument("--lr", type=float, required=True)
parser.parse_args()
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "raise ValueError('shapes differ:\\n  a 3\\n\\n  b 4')",
            "ValueError: shapes differ:\n  a 3\n\n  b 4",
        ),
        (
            "e = ValueError('x'); e.add_note('sample 7\\nof b'); raise e",
            "ValueError: x\nsample 7\nof b",
        ),
        (
            GROUP,
            "ExceptionGroup: several (2 sub-exceptions)\n  ValueError: of a\n"
            "  a note on it\n  TypeError: of b\n  in two lines",
        ),
        (CHAIN, "OSError: [Errno 5] while cleaning up\nfirst cause: KeyError: 'weights'"),
        ("try:\n    1/0\nexcept Exception:\n    raise ValueError('x') from None", "ValueError: x"),
        (
            "import sys; print('step 1'); sys.exit('no data\\nin /data\\nfor a')",
            "exited with code 1: no data\nin /data\nfor a",
        ),
        ("raise SystemExit('fatal: no data')", "exited with code 1: fatal: no data"),
        (
            "print('step 1'); raise SystemExit('no data\\nin /data')",
            "exited with code 1: no data\nin /data",
        ),
        ("print('step 1'); exit('no data\\nin /data')", "exited with code 1: no data\nin /data"),
        (
            "import sys\nclass Tee:\n    write, flush = sys.stderr.write, sys.stderr.flush\n"
            "sys.stderr = Tee()\nsys.exit('no data\\nin /data')",
            "exited with code 1: no data\nin /data",
        ),
        (
            "import atexit\natexit.register(lambda: 1 / 0)\nraise SystemExit('no data\\nin it')",
            "exited with code 1: no data\nin it",
        ),
        (HANDLED + "sys.exit('the end')", "exited with code 1: the end"),
        (HANDLED + "raise ValueError('another end')", "ValueError: another end"),
        (HANDLED + "raise SystemExit('cannot go on')", "exited with code 1: cannot go on"),
        (
            HANDLED + "import os; print('fatal: disk', file=sys.stderr); os._exit(3)",
            "exited with code 3: fatal: disk",
        ),
        (HANDLED + "import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        (
            "import os, sys; print('gave up', file=sys.stderr); os._exit(3)",
            "exited with code 3; its last output: gave up",
        ),
        (
            LOADER,
            "ValueError: sample 7 is bad\nin its second line\n(ValueError: Caught "
            "ValueError in DataLoader worker process 0.)",
        ),
        (RICH, "ValueError: red text\nin two lines"),
        (HYDRA, "ValueError: no such optimizer"),
        (
            HYDRA_WORDS,
            "exited with code 1: Could not override 'lr'.\nTo append to your config use +lr=3\n"
            "Key 'lr' is not in struct\n    full_key: lr",
        ),
        (HYDRA_TARGET, "exited with code 1: Error locating target 'no.Thing'"),
        (MARKED, "KeyError: 'weights'"),
        (
            DUMPED,
            "was killed by SIGABRT: F1125 22:11:10.025606 1406308 run.py:5] no data in /d\n"
            "Fatal Python error: Aborted",
        ),
        (
            THROWN,
            "was killed by SIGABRT: terminate called after throwing an instance of "
            "'std::runtime_error'\n  what():  no such codec\nFatal Python error: Aborted",
        ),
        (
            EXITED_WORKER,
            "RuntimeError: DataLoader worker (pid(s) 3462) exited unexpectedly\n"
            "the last output before it: no data in /d",
        ),
        # As of os.system("false"): the exit code has 8 bits.
        (
            "print('largest error: 0.5'); raise SystemExit(3)",
            "exited with code 3; its last output: ",
        ),
        (
            "import os; print('solver: no convergence', flush=True); os.abort()",
            "was killed by SIGABRT; its last output: solver: no convergence",
        ),
        ("import sys; sys.exit(256)", "exited with code 1: sys.exit(256)"),
        (ABORT, "was killed by SIGABRT: free(): invalid pointer"),
        (
            "import faulthandler as f, os; f.enable(); os.kill(os.getpid(), 7)",
            "was killed by SIGBUS: Fatal Python error: Bus error",
        ),
        ("x =", 'SyntaxError: invalid syntax\n  File "{code}", line 1\n    x =\n       ^'),
        (
            "raise KeyError(type('C', (), {'__repr__': lambda s: 'C(\\n  a=1\\n)'})())",
            "KeyError: C(\n  a=1\n)",
        ),
        (
            "b'\\xff'.decode()",
            "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position "
            "0: invalid start byte",
        ),
        (
            "import sys; sys.stderr.buffer.write(b'error: caf\\xe9\\n'); sys.exit(5)",
            "exited with code 5: error: caf\ufffd",
        ),
        (
            "import threading, sys\nt = threading.Thread(target=lambda: 1/0); "
            "t.start(); t.join()\nsys.exit('the end')",
            "exited with code 1: the end",
        ),
        (
            "import atexit\natexit.register(print, 'wrote 7 files')\nraise ValueError('x')",
            "ValueError: x",
        ),
        ("raise ValueError('x' * 5_000_000)", None),
        ("raise ValueError('\\n'.join(map(str, range(10_000))))", None),
    ],
)
def test_the_reason_is_the_errors_own_words(run, start, text, words):
    start(text).wait(30)
    record = error(run)
    assert record is not None
    shown = record.error.partition("\n  cause: ")[0].partition("\n  hint: ")[0]
    if words is None:
        assert shown.startswith("ValueError: ") and "left out" not in shown
        assert len(shown) < 10_000 and len(shown.split("\n")) <= 24
    else:
        words = words.replace("{code}", str(run.code / "mine/run.py"))
        assert shown[: len(words)] == words
        assert "caught" not in shown and len(shown) < len(words) + 200


# A wrapper: the training is its child, and writes to the same log.
CHILD = """
def work():
    raise ValueError("of the child\\nin two lines")
print("step 1")
work()
"""
WRAPPER = f"""
import logging, subprocess, sys
open("child.py", "w").write({CHILD!r})
command = [sys.executable, "child.py"]
"""
OWN_WORDS = "ValueError: of the child\nin two lines"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sys.exit(subprocess.call(command))", OWN_WORDS),
        (
            "sys.exit(subprocess.call(['bash', '-c', f'set -e; {sys.executable} child.py']))",
            OWN_WORDS,
        ),
        ("subprocess.run(command, check=True)", f"{OWN_WORDS}\n(subprocess.CalledProcessError: "),
        ("subprocess.run(command, check=True, capture_output=True)", OWN_WORDS),
        (
            "if subprocess.call(command): print('training failed'); sys.exit(1)",
            f"{OWN_WORDS}\ntraining failed",
        ),
        (
            "p = subprocess.Popen(command, stdout=-1, stderr=subprocess.STDOUT, text=True)\n"
            "for n, line in enumerate(p.stdout): print(f'[train {n}] {line}', end='')\n"
            "sys.exit(p.wait())",
            OWN_WORDS,
        ),
        (
            "if subprocess.call(command): print('going on without')\n"
            "for n in range(20): print('step', n)\nsys.exit('the end')",
            "exited with code 1: the end",
        ),
        (
            "import multiprocessing, runpy\n"
            "p = multiprocessing.Process(target=runpy.run_path, args=['child.py'])\n"
            "p.start(); p.join(); sys.exit(p.exitcode)",
            OWN_WORDS,
        ),
        (
            "from concurrent.futures import ProcessPoolExecutor as Pool\nimport runpy\n"
            "with Pool(1) as pool: pool.submit(runpy.run_path, 'child.py').result()",
            OWN_WORDS,
        ),
        (
            "sys.exit(subprocess.call([sys.executable, '-c', 'import os; os.abort()']))",
            "exited with code 250: a process that it started was killed by SIGABRT",
        ),
        (
            "logging.error('no data'); logging.info('the end'); sys.exit(1)",
            "exited with code 1: ERROR:root:no data",
        ),
    ],
)
def test_the_reason_of_a_wrapper_is_the_error_of_the_process_that_it_started(
    run, start, text, words
):
    start(WRAPPER + text).wait(30)
    record = error(run)
    assert record is not None and record.error.startswith(words)
    assert "RemoteTraceback" not in record.error
    if words.startswith(OWN_WORDS):
        assert 'child.py", line 3, in work' in record.traceback


def test_a_refused_command_line_is_shown_with_its_usage_and_is_not_tried_again(run, start):
    assert start(USAGE).wait(30) == 2
    record = error(run)
    assert record is not None
    words = "train.py: error: the following arguments are required: --lr\nusage: train.py [-h] --lr"
    assert record.error.startswith(f"exited with code 2: {words}")
    assert (record.kind, record.mistake, record.would_repeat) == ("usage", "spec", True)


def test_a_script_finds_the_environment_as_if_nothing_reported_its_error(run, start):
    text = """
import os, sys
print("path", os.environ.get("PYTHONPATH"), [each for each in sys.path if "uncaught" in each])
print("pipe", os.environ.get("KIT_ERROR_PIPE"), "sitecustomize" in sys.modules)
"""
    assert start(text, search_path="/somewhere").wait(30) == 0
    # The frozen code and the kit are left out.
    assert f"path {REPOSITORY}:/somewhere []\npipe None True\n" in log(run)


def test_the_own_sitecustomize_of_an_environment_still_runs(run, start, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text("import sys; sys.mine = __file__")
    text = "import sys; print(sys.mine); raise ValueError('one\\ntwo')"
    assert start(text, search_path=str(tmp_path / "site")).wait(30) == 1
    assert f"{tmp_path}/site/sitecustomize.py\n" in log(run)
    record = error(run)
    assert record is not None and record.error == "ValueError: one\ntwo"


LIMITS = """
import resource, errno
def limit(name, soft):
    number = getattr(resource, name)
    resource.setrlimit(number, (soft, resource.getrlimit(number)[1]))
"""


def test_an_error_that_the_script_caught_and_showed_is_not_its_end(run, start):
    start(SHOWN).wait(30)
    record = error(run)
    assert record is not None
    assert not record.error.startswith("ModuleNotFoundError") and not record.would_repeat


def test_no_report_is_written_into_a_file_of_the_script(run, start):
    start(CLOSED.replace("FOLDER", str(run.path))).wait(30)
    assert [path.read_text() for path in run.path.glob("own-*")] == [""] * 20


def test_sys_exit_can_be_pickled_as_the_function_can(run, start):
    start(PICKLED).wait(30)
    record = error(run)
    assert record is not None and record.exit_code == 4


def wait_for(condition, limit_s=15):
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value


def test_a_signal_of_the_agent_reaches_the_script_and_the_wrapper_stays(run, start):
    text = (
        "import signal, sys\nsignal.signal(10, lambda *_: sys.exit(4))\nprint('there', flush=True)"
    )
    torchrun = start(text + "\nsignal.pause()")
    wait_for(lambda: run.attempt(1).rank_log(1).exists() and "there" in log(run))
    (wrapper,) = children(torchrun.pid)
    (rank,) = children(wrapper)
    (spawned,) = read_jsonl(run.timeline("rank-00001"))
    assert spawned["pid"] == rank
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(wrapper, number)
    os.kill(rank, signal.SIGUSR1)
    assert torchrun.wait(15) == 4
    record = error(run)
    assert record is not None and record.exit_code == 4


BACKGROUND = """
import subprocess, sys
code = "import time; print('step 1'); time.sleep(2); print('step 2', flush=True); END"
subprocess.Popen(["bash", "-c", f'nohup {sys.executable} -c "{code}" & exit 0'])
"""


@pytest.mark.parametrize(
    ("end", "exit_code"), [("pass", 0), ("raise ValueError('of the training')", 1)]
)
def test_exit_0_of_a_script_is_not_the_end_of_the_training_that_it_started(
    run, start, end, exit_code
):
    assert start(BACKGROUND.replace("END", end)).wait(30) == exit_code
    assert "step 2\n" in log(run)
    record = error(run)
    assert (record is None) == (exit_code == 0)
    assert record is None or record.error == "ValueError: of the training"


def test_what_a_script_left_running_is_named(run, start):
    run.attempt(1).stop_requested.touch()  # then it is not looked at for long
    assert start("import subprocess; subprocess.Popen(['sleep', '987'])").wait(30) == 0
    (left,) = [each for each in read_events(run.timeline("rank-00001")) if each.left]
    assert (left.event, left.left) == ("exited", "sleep 987")


def test_a_script_dies_with_the_torchrun_that_is_killed(run, start):
    torchrun = start("import signal; print('there', flush=True); signal.pause()")
    wait_for(lambda: run.attempt(1).rank_log(1).exists() and "there" in log(run))
    (wrapper,) = children(torchrun.pid)
    (rank,) = children(wrapper)
    torchrun.kill()
    torchrun.wait()
    wait_for(lambda: not Path(f"/proc/{rank}/exe").exists())  # a zombie has none


@pytest.mark.parametrize(
    ("text", "exit_code"),
    [
        ("sys.path.insert(0, LIVE); import at_top", 1),
        ("sys.path.insert(0, str(LIVE)); importlib.import_module('at_' + 'top')", 1),
        ("sys.path.insert(0, LIVE + '/sub'); import cached", 0),  # has no frozen copy
        ("sys.path.insert(0, CODE); import at_top", 0),
        ("import helper, json, http.client", 0),
    ],
)
def test_a_script_that_imports_the_live_repository_is_stopped(
    run, start, tmp_path_factory, text, exit_code
):
    """Whatever leads there: a name made at run time, a path from the environment, setup lines."""
    live = tmp_path_factory.mktemp("live")
    for name in ("at_top/__init__.py", "sub/cached.py"):
        (live / name).parent.mkdir(parents=True)
        (live / name).touch()
    records.write(run.provenance, provenance(live, "x", "python3"))
    text = text.replace("LIVE", repr(str(live))).replace("CODE", repr(str(run.code)))
    assert start(f"import importlib, sys; {text}").wait(30) == exit_code
    if exit_code:
        assert (
            f"at_top is imported from {live}/at_top/__init__.py, which is not" in error(run).error
        )
    assert ("warning: cached is imported from" in log(run)) == ("cached" in text)


OTHERS = """
import sys
class Others:
    def find_spec(self, *args):
        found = (each.find_spec(*args) for each in sys.meta_path if each is not self)
        return next(filter(None, found), None)
sys.meta_path.insert(0, Others())
import colorsys
"""


def test_an_import_hook_of_a_script_may_ask_all_other_finders(run, start, tmp_path):
    """As this kit's own finder does: the two must not ask each other without end."""
    records.write(run.provenance, provenance(tmp_path / "live", "x", "python3"))
    assert start(OTHERS).wait(30) == 0
