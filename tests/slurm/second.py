"""Another Slurm for the test cluster, beside the one that is installed on this machine.

    python -m tests.slurm.second 26.05               fetch it once, print where, or why not
    KIT_TEST_SLURM=26.05 python -m pytest tests/slurm

Its packages, of another Debian release, are unpacked into a folder of the repository together
with all libraries that they need; nothing is installed. Its programs are changed to load only these
libraries. So they run in the machine's own file tree like any other program, and jobs find the
machine's Python there. In a chroot of that release they would not find it.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import host
from .host import slurm_version, version_folder

# Slurm's versions that the tests can fetch, each with the Debian release that has it.
VERSIONS = {"24.11": "trixie", "26.05": "forky"}
_PACKAGES = (
    *("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge"),
    *("slurmdbd", "slurm-wlm-mysql-plugin"),  # for the second shape of the cluster
)
_DEFAULT_MIRROR = "http://deb.debian.org/debian"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_COMMAND_TIMEOUT_S = 600


class SecondError(Exception):
    """The other Slurm cannot be made; the text has the reason and the fix."""


def _mirror() -> str:
    """Returns the archive to fetch from: the one that apt uses here, else Debian's own."""
    targets = _run("apt-get", "indextargets", "--format=$(REPO_URI)", "Created-By: Packages")
    addresses = [line.strip().rstrip("/") for line in targets.splitlines()]
    return next((address for address in addresses if address.endswith("/debian")), _DEFAULT_MIRROR)


def make(folder: Path, version: str) -> None:
    """Makes `folder` with bin, sbin, lib and lib/slurm, unless it exists and is up to date.

    Needs Debian's apt, debian-archive-keyring and patchelf. A rename creates it in one step, so
    that no process sees an incomplete one. `version`: a key of VERSIONS.
    """
    if is_made(folder):
        return
    suite = VERSIONS[version]
    print(f"fetching Slurm {version} from Debian {suite} into {folder}, once", flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as name:
        making = Path(name)
        # Jobs may run as other users.
        making.chmod(0o755)
        new = making / folder.name
        _unpack(_fetch(making / "apt", suite), making / "unpacked", new)
        _redirect(new, folder)
        said = _run(_loader(new), str(new / "sbin/slurmd"), "-V").strip()
        if slurm_version(said) != slurm_version(version):
            raise SecondError(f"Debian {suite} has {said} now, not {version}")
        _stamp_file(new).write_text(_stamp(folder))
        _replace(new, folder, making / "old")


def is_made(folder: Path) -> bool:
    """Returns whether `folder` was made for this path, by this version of this file."""
    stamp = _stamp_file(folder)
    return stamp.exists() and stamp.read_text() == _stamp(folder)


def _stamp_file(folder: Path) -> Path:
    return folder / "made-by"


def _stamp(folder: Path) -> str:
    # The programs name their loader by its absolute path.
    return f"{folder}\n{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()}\n"


def _fetch(apt: Path, suite: str) -> list[Path]:
    """Downloads the packages and all that they depend on; apt verifies their signatures."""
    for name in ("lists/partial", "cache/archives/partial", "none"):
        (apt / name).mkdir(parents=True)
    # apt assumes that nothing is installed, so that it fetches every library, libc included.
    (apt / "status").touch()
    source = f"deb [signed-by={_KEYRING}] {_mirror()} {suite} main\n"
    (apt / "sources.list").write_text(source)
    settings = {
        "Dir::State": apt,
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": apt / "none",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": apt / "none",
        "APT::Default-Release": "",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        # apt's lock protects the machine's packages, which this command does not change.
        "Debug::NoLocking": "1",
    }
    options = [f"--option={key}={value}" for key, value in settings.items()]
    # Without this option a list that could not be fetched is only a warning.
    _run("apt-get", *options, "--option=APT::Update::Error-Mode=any", "update")
    install = ("install", "--yes", "--download-only", "--no-install-recommends")
    _run("apt-get", *options, *install, *_PACKAGES)
    return sorted((apt / "cache/archives").glob("*.deb"))


def _unpack(archives: list[Path], unpacked: Path, new: Path) -> None:
    """Copies the needed files of the packages to where `make install` of Slurm puts them."""
    unpacked.mkdir()
    for archive in archives:
        package = archive.name.partition("_")[0]
        root = unpacked / ("ours" if package in _PACKAGES else "below")
        _run("dpkg-deb", "--extract", str(archive), str(root))
    for name in ("bin", "sbin"):
        shutil.copytree(unpacked / "ours/usr" / name, new / name)
        for program in (new / name).glob("*-wlm"):
            # Debian renames it, because other packages have programs of the same name.
            program.rename(program.with_name(program.name.removesuffix("-wlm")))
    plugins = next(unpacked.glob("ours/usr/lib/*-linux-gnu/slurm-wlm"))
    shutil.copytree(plugins, new / "lib/slurm", symlinks=True)
    for library in unpacked.glob("*/usr/lib/*-linux-gnu/*.so*"):
        shutil.copy2(library, new / "lib", follow_symlinks=False)


def _redirect(new: Path, folder: Path) -> None:
    """Makes the programs in `new` use its loader and libraries, at the final path `folder`."""
    loader = str(folder / Path(_loader(new)).relative_to(new))
    libraries = ("--force-rpath", "--set-rpath", "$ORIGIN/../lib/slurm:$ORIGIN/../lib")
    for program in new.glob("*bin/*"):
        _run("patchelf", "--set-interpreter", loader, *libraries, str(program))
    for plugin in (new / "lib/slurm").glob("*.so"):
        # A library's own path would override that of the program.
        _run("patchelf", "--remove-rpath", str(plugin))


def _loader(new: Path) -> str:
    return str(next((new / "lib").glob("ld-linux*.so.*")))


def _replace(new: Path, folder: Path, old: Path) -> None:
    if folder.exists():
        folder.rename(old)
    try:
        new.rename(folder)
    except OSError:
        # Another process has made it first.
        if not is_made(folder):
            raise


def _run(*argv: str) -> str:
    """Returns the output of a command; raises SecondError with its error output."""
    env = os.environ | {"LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        argv, check=False, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, env=env
    )
    if done.returncode != 0:
        raise SecondError(f"{shlex.join(argv)}: exit {done.returncode}\n{done.stderr.strip()}")
    return done.stdout


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in VERSIONS:
        given = " ".join(arguments) or "no version"
        print(f"error: {given}: name one of {', '.join(VERSIONS)}", file=sys.stderr)
        return 2
    [version] = arguments
    folder = version_folder(version)
    try:
        make(folder, version)
    except (SecondError, OSError, subprocess.TimeoutExpired) as error:
        print(f"error: no Slurm {version} to test with: {error}", file=sys.stderr)
        return 1
    print(folder)
    if reason := host.why_not(folder):
        print(f"error: no test cluster of it: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
