"""Draw docs/preempted.svg and docs/report.png from a real run: `python -m docs.record` (root).

It starts the Slurm of `make cluster-up`, and takes two minutes. The left column has the real times;
waits are shown shorter, and a line is cut where the terminal ends. The page of `report` needs
Debian's chromium and Pillow.
"""

import os
import pty
import re
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from xml.sax.saxutils import escape

from PIL import Image

from tests.slurm.user_cluster import cluster_at

REPOSITORY = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 104, 24
CHARACTER, HEIGHT, TIMES = 7.23, 18, 48  # pixels
LONGEST_WAIT_S, BEFORE_OUTPUT_S, AT_THE_END_S = 1.2, 0.8, 6
ALL_NODES = "-p urgent -N 4 --exclusive -o /dev/null --wrap='sleep 15'"
# What is typed; at a line with the second text Ctrl-C ends the command.
TYPED = [
    ('make submit CONFIG=configs/resnet.yaml SET="log.every_steps=20"', ""),
    ('make logs RUN=resnet FLAGS="-f -n 1"', "step 100/220"),
    (f"sbatch {ALL_NODES}  # a colleague takes all nodes", ""),
    ('make logs RUN=resnet FLAGS="-f -n 5"', ""),
    ("make compare RUN=resnet WITH=undisturbed", ""),
]
COLOURS = {
    r"^\$": "#ffffff",
    r"stopped at|resuming from|ended: preemption": "#e8c35a",
    r"completed|bitwise equal": "#7fd08a",
}
Line = tuple[float, str]


def typed(command: str, until: str, env: dict[str, str], start: float) -> list[Line]:
    """Run a command line in a terminal; return its lines with the seconds since the start."""
    lines = [(time.monotonic() - start, f"$ {command}")]
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(REPOSITORY)
        os.execvpe("bash", ["bash", "-c", command], env)
    termios.tcsetwinsize(terminal, (ROWS, COLUMNS))
    for line in lines_of(terminal):
        lines.append((time.monotonic() - start, line))
        print(line, flush=True)
        if until and until in line:
            os.write(terminal, b"\x03")
    os.close(terminal)
    os.waitpid(pid, 0)
    return lines


def lines_of(terminal: int) -> Iterator[str]:
    """Yield what a terminal shows, as it comes."""
    begun = b""
    with suppress(OSError):  # how Linux shows the end of a terminal
        while text := os.read(terminal, 1 << 16):
            *whole, begun = (begun + text).split(b"\n")
            yield from (line.decode(errors="replace").rstrip() for line in whole)
    if begun:
        yield begun.decode(errors="replace")


def shown_at(lines: list[Line]) -> list[float]:
    """Return when each line appears in the picture: long waits are shorter there."""
    times, last, now = [], 0.0, 0.3
    for at, text in lines:
        now += min(at - last, LONGEST_WAIT_S)
        times.append(now)
        now, last = now + text.startswith("$") * BEFORE_OUTPUT_S, at
    return times


def moves(name: str, changes: list[tuple[float, str]], length: float) -> str:
    """Return the attributes of an animation without transitions: values from seconds on."""
    values = ";".join(value for _, value in changes)
    times = ";".join(f"{at / length:.4f}" for at, _ in changes)
    how = f'calcMode="discrete" dur="{length:.1f}s" repeatCount="indefinite"'
    return f'attributeName="{name}" values="{values}" keyTimes="{times}" {how}'


def drawn(lines: list[Line]) -> str:
    """Return the picture of a terminal in which the lines appear; without animation, its end."""
    times = shown_at(lines)
    length = times[-1] + AT_THE_END_S
    width, height = COLUMNS * CHARACTER + TIMES + 24, ROWS * HEIGHT + 20
    rows, scrolls = [], [(0.0, "0 0")]
    for row, ((at, text), appears) in enumerate(zip(lines, times, strict=True)):
        colours = [colour for pattern, colour in COLOURS.items() if re.search(pattern, text)]
        fill = f' fill="{colours[0]}"' if colours else ""
        change = moves("visibility", [(0.0, "hidden"), (appears, "visible")], length)
        clock = f'<tspan fill="#6b7785">{int(at) // 60}:{int(at) % 60:02}</tspan>'
        is_cut = len(text) > COLUMNS
        words = escape(text[: COLUMNS - is_cut] + "…" * is_cut).replace("  ", " \u00a0")
        rows.append(
            f'<text y="{(row + 1) * HEIGHT}"{fill}>{clock}<tspan x="{TIMES}">{words}</tspan>'
            f"<animate {change}/></text>"
        )
        if row >= ROWS:
            scrolls.append((appears, f"0 {(ROWS - row - 1) * HEIGHT}"))
    scroll = moves("transform", scrolls, length)
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}">',
            "<title>A run on Slurm is preempted, goes on, and ends with the same bits</title>",
            f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#14181d"/>',
            f'<svg x="12" y="6" width="{width - 24:.0f}" height="{height - 12}">',
            '<g font-family="DejaVu Sans Mono,Menlo,Consolas,monospace" font-size="12"',
            f'  fill="#c3ccd6" transform="translate({scrolls[-1][1]})">',
            *rows,
            f'<animateTransform type="translate" {scroll}/>',
            "</g></svg></svg>\n",
        )
    )


def photographed(page: Path, picture: Path) -> None:
    """Write a small picture of an HTML page."""
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    how = ("--window-size=960,1000", f"--screenshot={picture}", page.as_uri())
    subprocess.run(["chromium", *options, *how], check=True, capture_output=True, timeout=60)
    Image.open(picture).convert("RGB").quantize(32).save(picture, optimize=True)


def main() -> None:
    with cluster_at(REPOSITORY / ".cluster") as cluster:
        env = os.environ | {"SLURM_CONF": cluster.env["SLURM_CONF"], "TERM": "dumb"}
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
        first = TYPED[0][0].replace('SET="', 'SET="name=undisturbed ')
        typed(f"{first} && make logs RUN=undisturbed FLAGS=-f", "", env, time.monotonic())
        start = time.monotonic()
        lines = [line for each in TYPED for line in typed(*each, env, start)]
        typed("make report RUN=resnet", "", env, start)
    (REPOSITORY / "docs/preempted.svg").write_text(drawn(lines), encoding="utf-8")
    run = (REPOSITORY / "runs/resnet/latest").resolve()
    photographed(run / "report.html", REPOSITORY / "docs/report.png")


if __name__ == "__main__":
    main()
