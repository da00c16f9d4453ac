"""Reads and writes files, also those of another host on a shared file system.

A client of a network file system answers from its cache. By NFS's default options attributes may be
3 to 60 s old; names, missing names and listings 30 to 60 s. open() of a name that exists asks the
server. So the kit opens by its name what it knows by name, and believes a missing name or a listing
only after `ask_again`.

A FIFO, a link to a device or a file of any size may stand in the place of a file of a run: it is
refused, and no reader waits for it. A write replaces the file as a whole, or appends a line.

Standard library only; the trainer imports this module, too.
"""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from .errors import RecordError

MAX_BYTES = 1 << 26  # of a file that is read as a whole, and of a line
_SMALL_BYTES = 1 << 16
# What is in the way of a file, and stays there.
_LASTING = (errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG)
# link(2) from another file system fails and changes nothing, but the kernel first looks up the new
# name: FUSE asks the server then. NFS does so for a name that it knows; the answer for a directory
# makes it look up again the missing names in that directory. Source: Linux, fs/namei.c,
# do_linkat(); LOOKUP_EXCL in fs/fuse/dir.c and fs/nfs/dir.c.
_ON_ANOTHER_FILE_SYSTEM = "/proc"

Value = TypeVar("Value")

# The names in each folder that the present block of `one_look` has listed; None outside of it.
_listed: dict[str, dict[str, None]] | None = None


def ask_again(path: Path) -> bool:
    """Make this host's client ask the server about a name, and its folder; writes nothing.

    After that a lookup of the name, and a listing if it is a folder, show what the server has.
    Returns whether the name exists, as far as the call shows it: False may be wrong on NFS.
    """
    if _ask(path):
        return True
    if _ask(path.parent):
        return False
    _ask(path.parent.parent)
    return _ask(path)


def _ask(path: Path) -> bool:
    try:
        os.link(_ON_ANOTHER_FILE_SYSTEM, path)
    except FileExistsError:
        return True
    except (OSError, ValueError):  # ValueError: text that cannot be a path
        pass
    return False


def exists(path: Path) -> bool:
    """Return whether the server has the name, also that of a link which leads nowhere."""
    return ask_again(path) or os.path.lexists(path)


def is_file(path: Path) -> bool:
    """Return whether the server has a file, or a link to one, of this name."""
    ask_again(path)
    return os.path.isfile(path)


def is_dir(path: Path) -> bool:
    """Return whether the server has a folder, or a link to one, of this name."""
    ask_again(path)
    return os.path.isdir(path)


def listdir(folder: Path) -> list[str]:
    """Return the names that the server has in a folder. Raises: FileNotFoundError, OSError.

    In a block of `one_look` a folder is listed once.
    """
    if _listed is not None and (known := _listed.get(str(folder))) is not None:
        return [*known]
    _ask(folder)
    names = _with_retry(os.listdir, folder)
    if _listed is not None:
        _listed[str(folder)] = dict.fromkeys(names)  # to look a name up in it costs one step
    return names


def renew_mount(folder: Path) -> None:
    """Make the next listing of a folder ask the server if a file system is mounted there.

    The kernel looks up no name for such a folder, so a file is created in it and removed.
    """
    if os.path.ismount(folder):
        probe = folder / f".probe-{os.urandom(8).hex()}"
        with contextlib.suppress(OSError):  # then its client decides how old the listing may be
            os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            probe.unlink()


def forget(folder: Path) -> None:
    """Drop what this host's cache has of a folder's files; the next read asks the server.

    For a content that is not what was written: perhaps only the cache has it. Raises: OSError.
    """
    ask_again(folder)
    for path in (folder / name for name in listdir(folder)):
        ask_again(path)
        with contextlib.suppress(OSError, RecordError), open_binary(path) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; none where there is no such folder. Raises: OSError."""
    try:
        return sorted(listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def files_in(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in a folder whose names match a pattern, sorted. Raises: OSError."""
    return [folder / name for name in names_in(folder) if fnmatch(name, pattern)]


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises: FileNotFoundError if the server has none; RecordError if it is not a regular file of up
    to MAX_BYTES; OSError.
    """
    content = _with_retry(_read, path)
    if len(content) > MAX_BYTES:
        raise RecordError(f"{path}: larger than {MAX_BYTES >> 20} MiB")
    return content


def _read(path: Path) -> bytes:
    with _open(path) as file:
        return begin_of(file)


def begin_of(file: BufferedReader) -> bytes:
    """Return the content of an open file, of a large one MAX_BYTES and a byte more."""
    head = file.read(_SMALL_BYTES)  # Python allocates what read() may return
    is_whole = len(head) < _SMALL_BYTES
    return head if is_whole else head + file.read(MAX_BYTES + 1 - _SMALL_BYTES)


def read_text(path: Path, errors: str = "strict") -> str:
    """Return the content of a file as `read_bytes` does, decoded from UTF-8."""
    content = read_bytes(path)
    try:
        return content.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: not UTF-8: {error}") from None


def text_of(path: Path, errors: str = "strict") -> str | None:
    """Return the content of a file as `read_text` does; None without the file."""
    try:
        return read_text(path, errors)
    except FileNotFoundError:
        return None


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file of any size, with their line breaks. Raises: as `read_bytes`."""
    with open_binary(path) as file:
        while line := file.readline(MAX_BYTES + 1):
            if len(line) > MAX_BYTES:
                raise RecordError(f"{path}: a line of more than {MAX_BYTES >> 20} MiB")
            yield line


def open_binary(path: Path) -> BufferedReader:
    """Open a file of any size to read its bytes. Raises: as `read_bytes`."""
    return _with_retry(_open, path)


def _open(path: Path) -> BufferedReader:
    try:
        # Without waiting: a FIFO without a writer would block for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _LASTING:
            raise RecordError(f"{path}: {error.strerror}") from None
        raise
    except ValueError as error:  # text that cannot be a path
        raise RecordError(f"{path}: {error}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RecordError(f"{path}: not a regular file")
    return open(fd, "rb")


@contextlib.contextmanager
def one_look() -> Iterator[None]:
    """Run a block that only reads, in one thread, and lists each folder once.

    A name that a folder did not have when it was listed is missing for the whole block: nothing is
    asked about it. Every question takes milliseconds on a busy server.
    """
    global _listed
    before, _listed = _listed, {} if _listed is None else _listed
    try:
        yield
    finally:
        _listed = before


def _with_retry(call: Callable[[Path], Value], path: Path) -> Value:
    """Return `call(path)`; after an error that an old view may have caused, ask and call again."""
    for each in (path, path.parent):  # this block has listed its folder, and it was not there
        if each.name not in (_listed or {}).get(str(each.parent), (each.name,)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    try:
        return call(path)
    except OSError as error:
        # ESTALE: another host replaced the file while it was read.
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise
    ask_again(path)
    return call(path)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a new path in the same directory; rename it to `path` after the block.

    If the block or the rename fails, the temporary file is removed and `path` stays as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # a full disk needs every byte of it back
            temporary.unlink()
        raise


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` as a whole and durably: a reader or a crash sees the old or the new text."""
    with replacing(path) as temporary:
        write_durable(temporary, text)
    fsync_directory(path.parent)


def write_durable(path: Path, text: str) -> None:
    """Write a new file and its content durably; its name lasts from `fsync_directory` on.

    For a file that no process reads before that, and that others than its owner only replace.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def fsync_directory(path: Path) -> None:
    """Make the renames and new files in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def parse_json(text: str | bytes, where: object) -> Any:
    """Return the value in a JSON text. `where`: the file, for the error. Raises: RecordError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where}: not JSON: {error}") from error


def read_json(path: Path) -> Any:
    """Return the value in a JSON file; None without the file. Raises: RecordError, OSError."""
    return None if (text := text_of(path)) is None else parse_json(text, path)


def append_jsonl(path: Path, record: object, durable: bool = False) -> None:
    """Append one record as one line, in one write and through no link; removes a torn line."""
    line = (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with open(fd, "ab+") as file:
        if (end := _end_of_lines(file)) < file.seek(0, os.SEEK_END):
            file.truncate(end)
        file.write(line)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def _end_of_lines(file: BinaryIO) -> int:
    """Return the offset after the last whole line; usually that is the end of the file."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 1))
    if file.read(1) in (b"", b"\n"):
        return end
    file.seek(0)
    return file.read().rfind(b"\n") + 1


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the records of a JSON-lines file; a last line that a crash cut off does not count.

    Raises: RecordError, OSError.
    """
    try:
        # Not splitlines: it also ends a line at characters that JSON does not escape.
        *lines, _ = read_bytes(path).split(b"\n")
    except FileNotFoundError:
        return []
    return [parse_json(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def relink(link: Path, target: str) -> None:
    """Point a symbolic link at `target`, atomically."""
    with replacing(link) as temporary:
        temporary.symlink_to(target)
