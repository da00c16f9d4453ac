"""The commands of docs/day.md, typed in their order on a real Slurm, print what the page shows."""

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .cluster import Cluster
from .host import IS_SITE
from .kit import JOB_TIMEOUT_S, REPOSITORY, Kit

DAY = REPOSITORY / "docs/day.md"
RUN_ID = r"\d{8}-\d{6}-[0-9a-f]{4}"
# What differs between two runs of the same commands, and what is accepted in its place.
ACCEPTED = {
    "id": f"({RUN_ID})",
    "time": r"\d+(?:\.\d+)? (?:ms|s|min|h|d)\b(?: \d+ (?:s|min|h)\b)?",
    "number": r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?",
    "any": r".*",
    "space": r" +",
}
TOKEN = re.compile(
    "|".join(
        f"(?P<{name}>{written})"
        for name, written in (ACCEPTED | {"id": RUN_ID, "any": r"\.\.\."}).items()
    )
)
# A user looks at these again until they show what she waits for; the others change something.
LOOKS = ("status", "why", "logs", "report")
LIMIT_S = 240


@dataclass(frozen=True)
class Step:
    """A command of the page and the lines that the page shows below it."""

    command: str
    shown: list[str] = field(default_factory=list)

    @property
    def is_look(self) -> bool:
        words = self.command.split()
        return words[0] == "make" and words[1] in LOOKS and "-f" not in self.command


def steps(text: str) -> list[Step]:
    step_list: list[Step] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                step_list.append(Step(line[2:]))
            elif line:  # blank lines are not compared
                step_list[-1].shown.append(line)
    return step_list


def pattern(shown: Sequence[str]) -> str:
    """The lines of the page as a pattern with a group for each run id.

    `...` stands for any text, in a line of its own for any number of lines.
    """
    lines = [r"(?:.*\n)*?" if line == "..." else f"{in_line(line)} *\n" for line in shown]
    return "".join(lines)


def in_line(line: str) -> str:
    pattern, at = "", 0
    for token in TOKEN.finditer(line):
        pattern += re.escape(line[at : token.start()]) + ACCEPTED[str(token.lastgroup)]
        at = token.end()
    return pattern + re.escape(line[at:])


class Terminal:
    """Types commands as the page has them, with the run ids that the commands before printed."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._ids: dict[str, str] = {}  # of the page -> of this cluster

    def type(self, step: Step) -> None:
        """Type a command, and look again until it shows what the page does."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            printed = self._run(step.command)
            if (match := re.fullmatch(pattern(step.shown), printed)) is not None:
                break
            if not step.is_look or time.monotonic() > deadline:
                wanted = "\n".join(step.shown)
                pytest.fail(f"$ {step.command}\nthe page:\n{wanted}\nprinted:\n{printed}")
            time.sleep(0.5)
        of_page = re.findall(RUN_ID, "\n".join(step.shown))
        self._ids |= dict(zip(of_page, match.groups(), strict=True))

    def _run(self, command: str) -> str:
        command = re.sub(RUN_ID, lambda match: self._ids[match[0]], command)
        make = f"make PYTHON={sys.executable} READY="
        command = re.sub(r"^make\b", make, command)
        typed = ("bash", "-c", f"{command} 2>&1")
        done = self._kit.run(*typed, check=False, timeout_s=JOB_TIMEOUT_S)
        # The page was typed in a clone, whose runs lie in the folder runs.
        text = done.stdout.replace(str(self._kit.runs_root), "runs")
        return "".join(f"{line}\n" for line in text.splitlines() if line.strip())


@pytest.mark.slow
@pytest.mark.plugin("look", "report", "sweeps", "changes", "clean")
@pytest.mark.skipif(IS_SITE, reason="the page shows a site that preempts by partition")
def test_a_day_s_commands_print_what_the_page_shows(cluster: Cluster, tmp_path: Path) -> None:
    terminal = Terminal(Kit(cluster, tmp_path / "runs"))
    for step in steps(DAY.read_text(encoding="utf-8")):
        terminal.type(step)
