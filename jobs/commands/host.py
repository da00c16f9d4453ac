"""Runs a command of the kit on another host, over ssh: `--host user@login:DIR` or KIT_HOST.

The kit of that host does all the work, in DIR there. Nothing is copied to it: a submit takes the
spec and the code that lie in DIR. Source of the options: ssh(1), ssh_config(5).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import installation
from ..console import print_line
from ..errors import FailedError, UserError

CALLER = "KIT_CALLER"  # the version of the kit that calls this one over ssh
CONNECT_S = 20
KEEP_ALIVE_S = 15  # after three of these without an answer ssh ends
PERSIST_S = 60  # a connection is kept that long for the next command: no second log-in
CONFIG_S = 10
SSH_FAILED = 255
NO_DIRECTORY, NO_KIT = 96, 97
# bash runs this on the other host, as `SCRIPT kit VERSION IS_TERMINAL DIR WORD...`. One line: csh
# refuses a quoted line break. A terminal sends Ctrl-C and a hang-up to the command by itself.
# Without one the end of stdin means that the caller has ended: then the command gets SIGINT. With
# `set -m` it has a process group of its own and does not ignore SIGINT.
SCRIPT = (
    "exec 1>&3 3>&-; version=$1 terminal=$2 dir=$3; shift 3; "
    f'cd -- "$dir" 2>/dev/null || exit {NO_DIRECTORY}; '
    f'export KIT_HOST= {CALLER}="$version"; '
    "if [ -f jobs/__main__.py ] && [ -f slurm_job_kit/jobs/rundir.py ]; then "
    "python=.venv/bin/python; [ -x $python ] || python=python3; "
    'set -- "$python" -m jobs "$@"; '
    'elif [ -x .venv/bin/kit ]; then set -- .venv/bin/kit "$@"; '
    'elif command -v kit >/dev/null; then set -- kit "$@"; '
    f"else exit {NO_KIT}; fi; "
    'if [ "$terminal" = 1 ]; then exec "$@"; fi; '
    'set -m; "$@" </dev/null & command=$!; '
    "{ cat >/dev/null; kill -INT -- -$command; } <&0 >/dev/null 2>&1 & caller=$!; set +m; "
    "wait $command; code=$?; kill -- -$caller 2>/dev/null; exit $code"
)
# A login shell, so that PATH is as after a log-in. What its profile prints goes to stderr.
LOGIN_SHELL = 'exec 3>&1; exec bash -lc "$@" 1>&2'
HOST = r"(?:[^@:\s\[\]]+@)?(?:\[[^\]\s]+\]|[^@:\s\[\]]+)"
TARGET = re.compile(rf"(?P<login>{HOST})(?::(?P<folder>.*))?")


@dataclass(frozen=True)
class Target:
    """Another host and the folder there in which the commands run.

    login: `user@host` for ssh. folder: absolute, or below the home directory there.
    """

    login: str
    folder: str


def parse(text: str) -> Target:
    """Return the target in `user@login[:DIR]`. Raises: UserError.

    Without DIR it is this repository's folder, as seen from the home directory.
    """
    match = TARGET.fullmatch(text)
    if match is None or text.startswith("-"):
        raise UserError(f"--host {text!r} is no host\n  hint: write user@login:DIR")
    login = match["login"].replace("[", "").replace("]", "")
    folder = match["folder"].removeprefix("~/") if match["folder"] else _same_folder(login)
    return Target(login, "." if folder == "~" else folder)


def _same_folder(login: str) -> str:
    here = installation.START
    top = installation.ROOT if installation.IS_BY_MAKE else installation.top_of(here) or here
    try:
        return str(top.relative_to(Path.home().resolve()))
    except ValueError:
        raise UserError(
            f"--host {login}: which folder there? {top} is not below this home directory\n"
            f"  hint: write {login}:DIR"
        ) from None


def run(text: str, words: Sequence[str]) -> int:
    """Run a command of the kit on the host `text`; returns its exit code there.

    Raises: UserError for a host or folder that cannot be used; FailedError where ssh fails.
    """
    target = parse(text)
    ssh = shutil.which("ssh")
    if ssh is None:
        raise UserError("ssh is not on PATH\n  hint: install OpenSSH's client")
    if words[:1] in (["submit"], ["sweep"]):
        source = f"{target.folder} on {target.login}"
        print_line(f"{words[0]}: spec and code come from {source}, not from this folder")
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    code = call(
        [ssh, *options(ssh, target.login), *remote(target, words, is_terminal)], is_terminal
    )
    where = f"{target.login}:{target.folder}"
    if code == NO_DIRECTORY:
        raise UserError(f"{where} is no folder\n  hint: write --host {target.login}:DIR")
    if code == NO_KIT:
        raise UserError(
            f"{where} has no kit: it is no clone, and the command kit is not on PATH there\n"
            f"  hint: write --host {target.login}:CLONE, or pip install the kit there"
        )
    if code == SSH_FAILED:
        raise FailedError(
            f"ssh to {target.login} failed or was cut off\n"
            f"  hint: ssh {shlex.quote(target.login)} true"
        )
    return code


def call(argv: Sequence[str], is_terminal: bool) -> int:
    """Run ssh; returns its exit code.

    Without a terminal its stdin is a pipe that ends with this process, however that ends.
    """
    stdin = None if is_terminal else subprocess.PIPE
    with subprocess.Popen(argv, stdin=stdin) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # ssh got the signal, too, unless it was sent to this process
            process.terminate()
            raise


def remote(target: Target, words: Sequence[str], is_terminal: bool) -> list[str]:
    """Return the end of ssh's command line: the host, and what its login shell runs."""
    inner = [SCRIPT, "kit", version(), str(int(is_terminal)), target.folder, *words]
    command = shlex.join(["exec", "bash", "-c", LOGIN_SHELL, "kit", *inner])
    return ["-t" if is_terminal else "-T", "--", target.login, command]


def options(ssh: str, login: str) -> list[str]:
    """Return ssh's options: time limits, and a connection that the next command takes over.

    The user's own ControlMaster or ControlPath stays. Where stderr is no terminal, a connection is
    used but not left behind: before OpenSSH 8.7 it kept a pipe open.
    """
    arguments = [f"-oConnectTimeout={CONNECT_S}", f"-oServerAliveInterval={KEEP_ALIVE_S}"]
    folder = socket_folder()
    if folder is None or _has_own_master(ssh, login):
        return arguments
    arguments.append(f"-oControlPath={folder}/kit-%C")
    if sys.stderr.isatty():
        arguments += ["-oControlMaster=auto", f"-oControlPersist={PERSIST_S}"]
    return arguments


def _has_own_master(ssh: str, login: str) -> bool:
    """Return whether the user's configuration shares connections to this host; True if unknown."""
    asked = [ssh, "-G", "--", login]
    try:
        answer = subprocess.run(
            asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CONFIG_S
        )
    except subprocess.TimeoutExpired:  # a `Match exec` that waits; ssh itself may, too
        return True
    settings = dict(line.partition(" ")[::2] for line in answer.stdout.splitlines())
    has_path = settings.get("controlpath", "none") != "none"
    return has_path or settings.get("controlmaster", "false") != "false"


def socket_folder() -> str | None:
    """Return a folder of this user alone for the socket of a connection; None if there is none."""
    for folder in (os.environ.get("XDG_RUNTIME_DIR"), str(Path.home() / ".ssh")):
        if not folder or len(folder) > 40 or "%" in folder:  # a socket's path has 104 characters
            continue
        try:
            status = os.stat(folder)
        except OSError:
            continue
        is_private = stat.S_IMODE(status.st_mode) & 0o077 == 0
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and is_private:
            return folder
    return None


def version() -> str:
    """Return the version of this kit, for a comparison of two hosts."""
    if not installation.IS_CLONE:
        import importlib.metadata

        return importlib.metadata.version(installation.DISTRIBUTION)
    import tomllib

    with open(installation.ROOT / "pyproject.toml", "rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def compare(caller: str) -> None:
    """Warn if the kit that calls this one over ssh has another version."""
    if caller != version():
        print_line(
            f"warning: here is kit {version()}, and {caller} calls it: their options may differ"
        )
