"""How the tests are collected, by each pytest process for all files, and a limit of their time."""

import gc
import os
import random
import signal
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

from slurm_job_kit.jobs.plugins import PLUGINS

_STARTED = time.monotonic()
_LONG = ("slow", "fault")
os.environ["KIT_SITE"] = ""  # no test reads the site file of who runs it
# `make test &` in a script ignores Ctrl-C, and so would each program that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The garbage collector rests, and ignores later what was collected: tests and torch stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("time")
    group.addoption("--minutes", type=float, help="begin no slow or fault test after so many")
    group.addoption("--part", help="seed of their order then; the commit if not given")


class _ByFile(LoadScopeScheduling):
    """Hands out a file to one process, and all of tests/slurm to one: it alone starts a Slurm."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "cluster" if path.startswith("tests/slurm/") else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> _ByFile | None:
    """Return the scheduler of `make test`."""
    return _ByFile(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --minutes: files with long tests come in an order that differs at each commit.

    So each of these tests comes first some time. Those that share no training come one by one.
    """
    if config.getoption("--minutes") is None:
        return
    chance, order = random.Random(_part(config)), dict[object, float]()
    for item in items:
        is_alone = item.get_closest_marker("fault") or item.path.name == "test_core_only.py"
        key = item if is_alone else item.path
        order.setdefault(key, chance.random() if _is_long(item) else -1.0)
    items.sort(key=lambda item: order.get(item, order.get(item.path, 0.0)))


def _is_long(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in _LONG)


def _part(config: pytest.Config) -> str:
    """The seed of the order."""
    if seed := config.getoption("--part"):
        return str(seed)
    argv, here = ["git", "rev-parse", "HEAD"], Path(__file__).parent
    return subprocess.run(argv, cwd=here, capture_output=True, text=True).stdout.strip()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    missing = {name for mark in item.iter_markers("plugin") for name in mark.args} - {*PLUGINS}
    if missing:
        pytest.skip(f"needs the plugins {', '.join(sorted(missing))}")
    minutes = item.config.getoption("--minutes")
    if minutes is not None and time.monotonic() - _STARTED > 60 * minutes and _is_long(item):
        pytest.skip(f"{minutes:g} minutes are used up; part {_part(item.config)[:12]}")
