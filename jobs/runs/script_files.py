"""What a file of a user's script is by its name: a checkpoint, a log, a left-over, a secret.

And the newest checkpoint that a script wrote, wherever it writes. Standard library only.
"""

from __future__ import annotations

import heapq
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from .. import shared_files
from ..rundir import RunDir


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# How torch.save and others name their files. A file with one of these counts whatever its size.
CHECKPOINT_SUFFIXES = _words(
    ".pt .pth .ckpt .safetensors .distcp .bin .npz .npy .pkl .pickle .h5 .hdf5 .onnx .msgpack "
    ".joblib .keras"
)
MIN_BYTES = 64  # of a checkpoint with another suffix, or without one: not of a flag or a pid
LOG_SUFFIXES = _words(".log .out .err .lock .pid .tmp .part .swp .prof .nsys-rep")
# Sources, texts, tables and pictures: no checkpoints, and no left-overs of a training either.
TEXT_SUFFIXES = _words(
    ".py .pyi .pyx .ipynb .so .pyd .c .h .cc .cpp .cxx .hpp .cu .cuh .rs .go .jl .r .lua "
    ".proto .sh .bash .zsh .sbatch .slurm .mk .cmake .txt .md .rst .tex .html .css .js .ts "
    ".json .jsonl .ndjson .yaml .yml .toml .ini .cfg .conf .csv .tsv .xml .sql .diff .patch "
    ".vocab .bpe .model .parquet .arrow .feather .svg .png .jpg .jpeg .gif .bmp .tif .tiff "
    ".webp .pdf .ico .mp3 .wav .flac .ogg .mp4 .avi .mov .db .sqlite .sqlite3"
)
# Of these nothing goes on from another run, wherever they lie: a new spec in experiments/, say.
SOURCE_SUFFIXES = _words(
    ".py .pyi .pyx .ipynb .c .h .cc .cpp .cxx .hpp .cu .cuh .rs .go .jl .r .lua .proto .sh .bash "
    ".zsh .sbatch .slurm .mk .cmake .md .rst .yaml .yml .toml .ini .cfg .conf"
)
# Folders in which a script finds no checkpoint of its own: caches and what trackers write.
CACHE_FOLDERS = frozenset({"__pycache__", "node_modules", "wandb", "mlruns", "aim"})
# How people name the folder that a training writes to.
OUTPUT_FOLDERS = (
    *("checkpoint*", "ckpt*", "output*", "out", "outs", "results", "result", "runs", "run"),
    *("logs", "log", "lightning_logs", "tensorboard", "tb_logs", "snapshots", "saved*", "save"),
    *("exp", "exps", "experiment*", "multirun", "work_dir*", "weights", "wandb", "mlruns"),
)
# How people name the folder with data, whose files may have the suffixes of CHECKPOINT_SUFFIXES.
DATA_FOLDERS = ("data*", "input*", "assets", "corpus", "raw", "vocab*", "tokenizer*", "resources")
_WEIGHTS = _words(".pt .pth .ckpt .safetensors .distcp")
SECRETS = (
    *(".env", ".env.*", "*.env", ".envrc", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.ppk"),
    *("*.keystore", "*.kdbx", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".netrc"),
    *("_netrc", ".pgpass", ".my.cnf", ".htpasswd", "credentials", "credentials.*", ".boto"),
    *("*credentials*.json", "service[-_]account*.json", "client_secret*.json", "kubeconfig*"),
    *("*.kubeconfig", ".npmrc", ".pypirc", ".git-credentials", ".vault-token", "token"),
    *("token.txt", "*.token", ".*token", "*api_key*", "*apikey*", "secret", "secret.*", "secrets"),
    *("*_token", "*-token", "*_token.txt", "*-token.txt", "*_token.json", "*password*", "*passwd*"),
    *("*private*key*", "*access*key*", "wandb*key*", "*[-_]key.json", "auth.json", "cookies.txt"),
    *("*.env.*", "*.pem.*", "*credentials", "*credentials.*"),
    *("secrets.*", ".s3cfg", "kaggle.json", "rclone.conf", "*.tfstate", ".dockercfg"),
)
SECRET_FOLDERS = frozenset({".ssh", ".aws", ".kube", ".gnupg", ".docker", ".azure", ".gcloud"})
MAX_KEY_BYTES = 1 << 15
NO_SECRETS = (
    *("*.pub", "*.example", "*.sample", "*.template", "*.dist", "*.py", "*.pyi", "*.md"),
    "*to_token.*",  # a vocabulary
)
_ROTATED = re.compile(r"\.(log|out|err)\.\d+(\.gz)?$")
_CORE = re.compile(r"core(\.\d+)?")
# The walk ends after so many names and seconds: a working directory may have a data set in it, on
# a file system that takes milliseconds for each file.
MAX_NAMES = 100_000
MAX_NAMES_OF_FOLDER = 5_000
MAX_S = 10.0
# What the kit itself writes into the run directory, beside texts and logs.
_OF_THE_KIT = _words(
    "checkpoints work code kit script_code submitit logs timeline tensorboard wandb "
    "compile-cache cancelled"
)


def is_log(name: str) -> bool:
    """Return whether a file is one that grows beside a training: a log, events, a core dump."""
    low = name.lower()
    is_hidden = name[0] == "." or name[-1] == "~"
    is_events = "tfevents" in low or low.endswith((".trace.json.gz", ".pt.trace.json"))
    suffix = PurePosixPath(low).suffix
    return (
        is_hidden
        or is_events
        or suffix in LOG_SUFFIXES
        or _ROTATED.search(low) is not None
        or _CORE.fullmatch(low) is not None
    )


def may_be_checkpoint(name: str) -> bool:
    """Return whether a file of this name may be a checkpoint: every file but logs and texts."""
    return not is_log(name) and PurePosixPath(name.lower()).suffix not in TEXT_SUFFIXES


def is_secret(name: str) -> bool:
    """Return whether a file is named like a password, key or token. `name`: relative path."""
    path = PurePosixPath(name)
    low = path.name.lower()
    if any(fnmatchcase(low, pattern) for pattern in NO_SECRETS):
        return False
    is_in_folder = not SECRET_FOLDERS.isdisjoint(path.parts[:-1])
    return is_in_folder or any(fnmatchcase(low, pattern) for pattern in SECRETS)


def has_private_key(path: Path) -> bool:
    """Return whether a small file of any name holds a private key of ssh, TLS, or an account."""
    if path.suffix.lower() in SOURCE_SUFFIXES:
        return False
    try:
        if path.is_symlink() or path.stat().st_size > MAX_KEY_BYTES or not path.is_file():
            return False
        return b" PRIVATE KEY-----" in path.read_bytes()
    except OSError:
        return False


def leftover_files(top: Path, untracked: Iterable[str]) -> list[str]:
    """Return those of the untracked files that look like the output of an earlier training.

    Checkpoints and logs, what lies beside a checkpoint, and all below a folder with the name of an
    output. untracked: relative to `top`.
    """
    names = sorted(untracked)
    made = {name for name in names if _is_made(top, name)}
    with_code = {str(PurePosixPath(name).parent) for name in names if name.endswith(".py")}
    saved = {str(PurePosixPath(name).parent) for name in made if not is_log(_last(name))}
    beside = saved - with_code - {"."}
    return [
        name
        for name in names
        if name in made
        or (
            PurePosixPath(name).suffix.lower() not in SOURCE_SUFFIXES
            and beside & {*map(str, PurePosixPath(name).parents)}
        )
    ]


def _is_made(top: Path, name: str) -> bool:
    path = PurePosixPath(name)
    folders = path.parts if (top / name).is_symlink() else path.parts[:-1]
    if any(fnmatchcase(each.lower(), known) for each in folders for known in OUTPUT_FOLDERS):
        return path.suffix.lower() not in SOURCE_SUFFIXES
    if path.name[0] == ".":
        return False
    if is_log(path.name) or _suffixes(path.name) & _WEIGHTS:
        return True
    if any(fnmatchcase(each.lower(), known) for each in folders for known in DATA_FOLDERS):
        return False
    if _suffixes(path.name) & CHECKPOINT_SUFFIXES:
        return True
    return may_be_checkpoint(path.name) and _is_binary(top / name)


def _last(name: str) -> str:
    return PurePosixPath(name).name


def _suffixes(name: str) -> set[str]:
    return set(PurePosixPath(name.lower()).suffixes)


def _is_binary(path: Path) -> bool:
    """Return whether the beginning of a file is no text; False for one that cannot be read."""
    try:
        if not path.is_file() or path.is_symlink():
            return False
        with open(path, "rb") as file:
            return b"\0" in file.read(1024)
    except OSError:
        return False


def newest(run_dir: RunDir, outputs: Sequence[str]) -> str | None:
    """Return time and path of the newest checkpoint that a script wrote; None without one.

    In the folder of checkpoints any file counts but logs; in the working directory, in the run
    directory and in `outputs` (relative to the working directory) one that may be a checkpoint.
    Only files that changed after the run was frozen count: others are inputs. The times come from
    the file system alone and are compared with each other only.
    """
    try:
        since = run_dir.spec_yaml.stat().st_mtime_ns
    except OSError:
        since = 0
    roots = [run_dir.checkpoints, run_dir.work]
    roots += [run_dir.work / os.path.expanduser(each) for each in outputs]
    candidates = (
        (time_ns, path)
        for time_ns, path in _Walk(run_dir).files([*roots, run_dir.path])
        if time_ns >= since
    )
    time_ns, path = max(candidates, default=(0, ""))
    is_inside = path.startswith(f"{run_dir.path}/")
    name = os.path.relpath(path, run_dir.path) if is_inside else path
    return f"{time_ns:020d} {name}" if path else None


class _Walk:
    """Walks folders, those first that changed last, each once, within the limits above."""

    def __init__(self, run_dir: RunDir) -> None:
        self.run_dir = run_dir
        self.seen: set[tuple[int, int]] = set()
        self.names_left = MAX_NAMES
        self.end = time.monotonic() + MAX_S

    def files(self, roots: Iterable[Path]) -> Iterator[tuple[int, str]]:
        """Yield the time (ns) and path of each file that may be a checkpoint."""
        waiting: list[tuple[float, str]] = []
        for number, root in enumerate(roots):
            self._push(waiting, str(root), -(2.0**64) + number)
        while waiting and self.names_left > 0 and time.monotonic() < self.end:
            _, folder = heapq.heappop(waiting)
            try:
                yield from self._in(folder, waiting)
            except OSError:  # deleted meanwhile, or not readable
                continue

    def _push(self, waiting: list[tuple[float, str]], folder: str, order: float | None) -> None:
        try:
            status = os.stat(folder)
        except OSError:
            return
        place = status.st_dev, status.st_ino
        if place not in self.seen:
            self.seen.add(place)
            heapq.heappush(waiting, (-status.st_mtime_ns if order is None else order, folder))

    def _in(self, folder: str, waiting: list[tuple[float, str]]) -> Iterator[tuple[int, str]]:
        is_top = folder == str(self.run_dir.path)
        is_kits = f"{folder}/".startswith(f"{self.run_dir.checkpoints}/")
        shared_files.ask_again(Path(folder))
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                self.names_left -= 1
                if number >= MAX_NAMES_OF_FOLDER or self.names_left <= 0:
                    return
                if is_top and (entry.name in _OF_THE_KIT or entry.name.startswith("attempt-")):
                    continue
                if entry.is_dir():
                    if entry.name[0] != "." and entry.name not in CACHE_FOLDERS:
                        self._push(waiting, entry.path, None)
                elif not entry.is_symlink():  # a link leads to an input, or to a file beside it
                    yield from _checkpoint(entry, is_kits)


def _checkpoint(entry: os.DirEntry[str], is_any: bool) -> Iterator[tuple[int, str]]:
    """Yield the time and path of a file if it may be a checkpoint."""
    if is_log(entry.name) if is_any else not may_be_checkpoint(entry.name):
        return
    shared_files.ask_again(Path(entry.path))  # a script overwrites last.ckpt in place
    try:
        status = entry.stat()
    except OSError:  # the script replaces it right now
        return
    is_known = is_any or _suffixes(entry.name) & CHECKPOINT_SUFFIXES
    if is_known or status.st_size >= MIN_BYTES:
        yield status.st_mtime_ns, entry.path
