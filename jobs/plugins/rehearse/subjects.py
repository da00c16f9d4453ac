"""What is rehearsed, a command or a spec of the kit: how it starts, stops, and starts again."""

import atexit
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ...base import environment, installation
from ...base.errors import UserError
from ...base.stop_signals import send
from ...contract import records
from ...contract.records.training import Outcome, Result
from ...node import signed_torchrun
from ...runs import code_snapshot, lookup
from .landlock import restriction
from .probe.sitecustomize import OUTSIDE
from .traces import Process

_BY_MAKE = 'make rehearse CMD="python train.py --epochs 2"'
EXAMPLE = _BY_MAKE if installation.IS_BY_MAKE else "kit rehearse -- python train.py --epochs 2"
PROBE = Path(__file__).resolve().parent / "probe"
PATTERN = re.compile(r"\{(?P<name>newest|if):(?P<pattern>[^}]*)\}")
# What libraries have downloaded or compiled, by its variable; in ~/.cache, or XDG_CACHE_HOME.
CACHES = {
    "HF_HOME": "huggingface",
    "TORCH_HOME": "torch",
    "TRITON_CACHE_DIR": os.path.expanduser("~/.triton/cache"),
    "WANDB_CACHE_DIR": "wandb",
}


@dataclass(kw_only=True)
class _Subject:
    """A training that is rehearsed. All its runs have the same path, one after the other.

    ranks: of a start. folder: of the rehearsal. links: what else it may change. started_in: where
    the user started it. may_mount: a container's program does, which Landlock refuses. log: of the
    newest start.
    """

    ranks: int
    folder: Path
    links: Sequence[Path] = ()
    started_in: Path = field(default_factory=Path.cwd)
    may_mount: bool = False
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    log: Path = field(init=False)
    python: str = field(default=sys.executable, init=False)

    @property
    def place(self) -> Path:
        """The folder of the run, which is moved away after it."""
        return self.folder / "work"

    @property
    def home(self) -> Path:
        """The folder of the files that the training writes."""
        return self.place

    @property
    def cwd(self) -> Path:
        """The folder that relative paths of the training begin in."""
        return self.home

    def prepare(self) -> None:
        """Make what a run needs before its first start."""
        self.place.mkdir(parents=True)

    @cached_property
    def own(self) -> list[str]:
        """The folders that the training may write to, the rehearsal's first."""
        found = [self.folder, self.temporary, "/dev", "/proc", *self.links, *self.caches.values()]
        return [os.path.realpath(each) for each in map(str, found) if os.path.exists(each)]

    @cached_property
    def caches(self) -> dict[str, str]:
        """The caches of libraries; one that does not exist is made in the temporary folder."""
        above = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        known = {x: os.environ.get(x) or os.path.join(above, y) for x, y in CACHES.items()}
        return {x: y if os.path.isdir(y) else f"{self.temporary}/{x}" for x, y in known.items()}

    @cached_property
    def temporary(self) -> Path:
        """The folder of temporary files, with a name that is short enough for sockets."""
        (own := self.folder / "tmp").mkdir(exist_ok=True)
        if environment.temporary_folder({"TMPDIR": str(own)}) != str(own):
            own = Path(tempfile.mkdtemp(prefix="rehearse-", dir="/tmp"))
            atexit.register(shutil.rmtree, own, ignore_errors=True)
        return own

    @cached_property
    def restrict(self) -> Callable[[], None] | None:
        """What a process calls to write to `own` only; None where the kernel cannot hold it."""
        return None if self.may_mount else restriction(self.own)

    def poll(self) -> int | None:
        """Return the exit code of the start; None while it runs.

        Raises: UserError for a write to what is not the training's own.
        """
        if (asked := self.log.with_name(OUTSIDE)).is_symlink():
            path = Path(os.readlink(asked))
            place = next(each for each in path.parents if each.is_dir())
            what = f"the training writes outside of its copy: {path}"
            hint = "let an option of the script name a folder in its working directory; or --link "
            raise UserError(what, f"{hint}{shlex.quote(str(place))}, and it changes what is there")
        return None if self.process is None else self.process.poll()

    def _popen(self, command: list[str], cwd: Path, env: Mapping[str, str], log: Path) -> None:
        """Start a command whose processes find the probe, and write to what is theirs only."""
        top, kit_stop = self.place / "code", installation.KIT_STOP.parent
        paths = [str(PROBE), env.get("PYTHONPATH"), str(top), str(kit_stop)]
        ours = {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "KIT_REHEARSE_OWN": os.pathsep.join(self.own),
            "KIT_REHEARSE_PLACE": str(self.place),
            "TMPDIR": str(self.temporary),
            "MPLCONFIGDIR": str(self.temporary),  # matplotlib makes one at home
            **self.caches,
        }
        self.log = log
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                command,
                cwd=cwd,
                env={**env, **ours},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=self.restrict,
            )


@dataclass(kw_only=True)
class CommandSubject(_Subject):
    """A command that knows nothing of the kit: `python SCRIPT WORDS`, started by torchrun.

    again: words for the later starts; `{newest:PATTERN}` is the newest file that fits, and
    `{if:PATTERN}` nothing. No word is given while there is no such file.
    """

    words: Sequence[str]
    again: Sequence[str] = ()
    attempt: Path = field(init=False)  # the folder of kit_stop's files of this start

    def __post_init__(self) -> None:
        if not Path(self.words[0]).name.startswith("python") or len(self.words) < 2:
            what = f"cannot rehearse {shlex.join(self.words)}: only Python under torchrun"
            raise UserError(what, f"write the script and its flags as in {EXAMPLE}")
        command, script, *words = self.words
        if (python := shutil.which(command)) is None:
            raise UserError(f"{command}: command not found")
        if Path(script).is_absolute() and self.started_in in Path(script).parents:
            # Its copy, so that what it writes beside itself is in the copy, too.
            script = os.path.relpath(script, self.started_in)
        self.python, self.words = os.path.abspath(python), [script, *words]

    @cached_property
    def _source(self) -> tuple[Path, dict[str, Path]]:
        """The top of the repository, or the working directory, and its files. Raises: UserError."""
        top = installation.top_of(self.started_in) or self.started_in
        if top in (Path.home(), Path("/")):
            raise UserError(f"{top} is no repository", "run it in the folder of your code")
        out = [*(self.started_in / link for link in self.links), lookup.runs_root()]
        left_out = [os.path.relpath(each, top) for each in out]
        return top, code_snapshot.source_files(top, self.folder, left_out)

    @property
    def cwd(self) -> Path:
        """The copy of the working directory."""
        return self.place / "code" / self.started_in.relative_to(self._source[0])

    def prepare(self) -> None:
        """Copy the files that submit would freeze, as they were before the first run."""
        if not (frozen := self.folder / "source").exists():
            code_snapshot.copy(self._source[1], frozen)
        shutil.copytree(frozen, self.place / "code", symlinks=True)
        self.cwd.mkdir(parents=True, exist_ok=True)
        for name in ("checkpoints", "timeline"):
            (self.place / "kit" / name).mkdir(parents=True)
        for link in self.links:
            target = Path(os.path.normpath(self.cwd / os.path.relpath(link, self.started_in)))
            if target.is_relative_to(self.place) and not target.exists():  # else it stays outside
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(link.resolve())

    def start(self, number: int, env: Mapping[str, str], log: Path, ranks: int) -> None:
        """Start the run, or start it again, from `number` 2 on."""
        self.attempt = self.place / "kit" / f"attempt-{number}"
        self.attempt.mkdir()
        env = {
            **env,
            "KIT_RUN_DIR": str(self.place / "kit"),
            "KIT_CHECKPOINT_DIR": str(self.place / "kit/checkpoints"),
            "KIT_WORK_DIR": str(self.cwd),
            "KIT_ATTEMPT": str(number),
            "KIT_STOP_FILE": str(self.attempt / "stop_requested"),
            "KIT_DEADLINE": "",
            "OMP_NUM_THREADS": env.get("OMP_NUM_THREADS", "1"),  # as torchrun does
            "PYTHONUNBUFFERED": "1",
        }
        argv = ["--standalone", f"--nproc-per-node={ranks}", *self.words_of(number, self.cwd)]
        self._popen([self.python, signed_torchrun.__file__, *argv], self.cwd, env, log)

    def words_of(self, number: int, cwd: Path) -> list[str]:
        """Return the words of a start, filled in; as of the first without a file to fill in."""
        words = []
        for word in self.again if number > 1 else ():
            if (found := PATTERN.search(word)) is None:
                words.append(word)
                continue
            paths = sorted(cwd.glob(found["pattern"]), key=lambda path: path.stat().st_mtime)
            if not paths:  # a start that has nothing to load is like the first one
                return [*self.words]
            newest = str(paths[-1]) if found["name"] == "newest" else ""
            words.append(word[: found.start()] + newest + word[found.end() :])
        return [*self.words, *filter(None, words)]

    def stop(self, processes: Iterable[Process]) -> None:
        """Create KIT_STOP_FILE, and send SIGTERM to the ranks, not to their torchrun."""
        (self.attempt / "stop_requested").touch()
        send(signal.SIGTERM, [process.pid for process in processes])

    def marker(self) -> str:
        """Return what the training recorded at its end: stopped, completed, or nothing."""
        ended = records.read_leniently(Outcome, self.attempt / "outcome.json")
        return (ended and ended.status) or ""


@dataclass(kw_only=True)
class SpecSubject(_Subject):
    """A spec of the kit: `submit --cluster local`, and later `resume`."""

    config: Path
    overrides: Sequence[str] = ()

    @property
    def home(self) -> Path:
        """The run directory; the runs root before there is one."""
        return next(self.place.glob("[!.]*/*/spec.json"), self.place / "x").parent.resolve()

    def start(self, number: int, env: Mapping[str, str], log: Path, ranks: int) -> None:
        words = ["submit", str(self.config), *self.overrides]
        if number > 1:
            words = ["resume", str(self.home)]
            words += [] if ranks == self.ranks else [f"slurm.nodes={ranks}", "--yes"]
        # A clone is on no search path, and the frozen code of its runs does not have the kit.
        kit = f"import sys; sys.path.append({str(installation.ROOT)!r}); "
        kit += "from slurm_job_kit.jobs.__main__ import command; sys.exit(command())"
        command = [sys.executable, "-P", "-c", kit, *words, "--cluster", "local"]
        self._popen(command, self.started_in, {**env, "KIT_RUNS": str(self.place)}, log)

    def stop(self, processes: Iterable[Process]) -> None:
        """Do what Ctrl-C does."""
        if self.process is not None:
            self.process.terminate()

    def marker(self) -> str:
        ended = records.read_leniently(Result, self.home / "result.json")
        return ended.status if ended else "stopped"


Subject = CommandSubject | SpecSubject
