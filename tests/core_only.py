"""Writes a copy of the repository without plugins: `python -m tests.core_only DEST [--without
PLUGIN]`.

Without --without the copy has no plugin at all. Whoever deletes a plugin does the same by hand.
"""

import argparse
import re
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

from slurm_job_kit.jobs.plugins import PLUGINS

REPOSITORY = Path(__file__).parents[1]
FOLDERS = (
    "jobs/plugins",
    "trainer/plugins",
    "tests/plugins",
)  # each has a folder of the plugin's name


def copy_without(destination: Path, plugins: Collection[str]) -> None:
    """Copy what git tracks or does not ignore, then delete plugins: folders and lines."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        source, target = REPOSITORY / name, destination / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    for plugin in plugins:
        for folder in FOLDERS:
            shutil.rmtree(destination / folder / plugin, ignore_errors=True)
    listing = destination / "jobs/plugins/__init__.py"
    text = listing.read_text(encoding="utf-8")
    for plugin in plugins:
        text = re.sub(
            rf'^    "{plugin}": Plugin\((?:.*\),|.*\n(?:        .*\n)*    \),)\n',
            "",
            text,
            flags=re.M,
        )
    listing.write_text(text, encoding="utf-8")


def main() -> None:
    """Write the copy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--without", choices=[*PLUGINS], help="delete this plugin only")
    args = parser.parse_args()
    copy_without(args.destination, [args.without] if args.without else [*PLUGINS])


if __name__ == "__main__":
    main()
