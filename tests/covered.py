"""`python -m tests.covered`: print how many lines of each plugin the tests ran, from `.coverage`.

Processes that the tests start count, too: agents, ranks and commands, also with frozen code. The
code of a process that is killed does not count.
"""

from collections import defaultdict
from pathlib import Path

import coverage

REPOSITORY = Path(__file__).resolve().parents[1]
MIN_PERCENT = 80


def plugin_of(file: Path) -> str:
    """Return the folder of a module below the repository, at most two levels deep."""
    return "/".join(file.relative_to(REPOSITORY).parent.parts[:2])


def main() -> None:
    """Print a line for each plugin, with a mark where it is below MIN_PERCENT."""
    data = coverage.Coverage(config_file=str(REPOSITORY / "pyproject.toml"))
    data.load()
    lines: dict[str, int] = defaultdict(int)
    run: dict[str, int] = defaultdict(int)
    for file in [*REPOSITORY.glob("jobs/**/*.py"), *REPOSITORY.glob("trainer/**/*.py")]:
        _, statements, _, missing, _ = data.analysis2(str(file))
        plugin = plugin_of(file)
        lines[plugin] += len(statements)
        run[plugin] += len(statements) - len(missing)
    for plugin in sorted(lines):
        print_line(plugin, run[plugin], lines[plugin])
    print_line("all plugins", sum(run.values()), sum(lines.values()))


def print_line(plugin: str, run: int, lines: int) -> None:
    """Print how many of a plugin's lines were run, and their share."""
    percent = 100 * run / max(lines, 1)
    mark = f"  below {MIN_PERCENT} %" if percent < MIN_PERCENT else ""
    print(f"{plugin:<20} {run:>6} of {lines:>6} lines {percent:>6.1f} %{mark}")


if __name__ == "__main__":
    main()
