"""Writes a copy of the repository without rooms: `python -m tests.core_only DEST [--without ROOM]`.

Without --without the copy has no room at all. Whoever deletes a room does the same by hand.
"""

import argparse
import re
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

from slurm_job_kit.jobs.rooms import ROOMS

REPOSITORY = Path(__file__).parents[1]
FOLDERS = ("jobs/rooms", "trainer/rooms", "tests/rooms")  # each has a folder of the room's name


def copy_without(destination: Path, rooms: Collection[str]) -> None:
    """Copy what git tracks or does not ignore, then delete rooms: their folders and their lines."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        source, target = REPOSITORY / name, destination / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    for room in rooms:
        for folder in FOLDERS:
            shutil.rmtree(destination / folder / room, ignore_errors=True)
    listing = destination / "jobs/rooms/__init__.py"
    text = listing.read_text(encoding="utf-8")
    for room in rooms:
        text = re.sub(
            rf'^    "{room}": Room\((?:.*\),|.*\n(?:        .*\n)*    \),)\n', "", text, flags=re.M
        )
    listing.write_text(text, encoding="utf-8")


def main() -> None:
    """Write the copy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--without", choices=[*ROOMS], help="delete this room only")
    args = parser.parse_args()
    copy_without(args.destination, [args.without] if args.without else [*ROOMS])


if __name__ == "__main__":
    main()
