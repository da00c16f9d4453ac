"""What repeats a fault without this kit: a script, and the text of an issue for its authors."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

from ...base.log_text import on_a_screen
from .causes import BITS, CONTINUES, NEWEST, SAMPLES
from .scenarios import HASH_SEED, REPORT, STATE
from .subjects import PROBE, CommandSubject
from .verdict import Verdict

VERSIONS = """
import importlib.metadata, platform
named = ("torch", "accelerate", "deepspeed", "lightning", "transformers", "trl")
found = {f"{x.name} {x.version}" for x in importlib.metadata.distributions() if x.name in named}
print(f"Python {platform.python_version()}", *sorted(found), sep=", ", end="")
"""
SCRIPT = """\
#!/usr/bin/env bash
# {reply.question}: no: {reply.detail}
cd "$(dirname "$0")" || exit
export OMP_NUM_THREADS=1 PYTHONHASHSEED={seed} PYTHONPATH="$PWD/work/code:${{PYTHONPATH-}}"
start() (
    echo "== from $1"
    rm -rf work && cp -a "$1" work && cd {cwd} && shift || exit
    python -m torch.distributed.run --standalone "$@"
    echo "exit code $?"
)
start undisturbed/state {first}
rm -rf expected && mv work expected
start {run.folder.name}/state {again}
echo "== how the final files differ"
python compare_files.py <<< {pairs}
"""
ISSUE = """\
# {reply.scenario}: the next start does not continue as it should

`torchrun {first}` was interrupted (a stop is SIGTERM to all ranks), then `torchrun {again}`.

Expected: it continues from the newest whole checkpoint with the next sample, and ends with the same
weights as without the interruption.
Seen: "{reply.question}" is no: {reply.detail}

```
{output}
```

`bash repro.sh` repeats it: an undisturbed start, then one from the files that the interrupted one
left. `tar czf a.tgz repro.sh compare_files.py {{undisturbed,{run.folder.name}}}/state` packs it.

{versions}
"""


def write(subject: CommandSubject, verdict: Verdict) -> list[str]:
    """Write repro.sh and issue.md for the first no that a start shows; returns a line for it."""
    wanted = (CONTINUES, NEWEST, BITS, SAMPLES)
    replies = [each for each in verdict.answers if each.scenario and each.question in wanted]
    if not replies:
        return []
    run = next(each for each in verdict.tried if each.name == replies[0].scenario)
    cwd, last = run.folder / STATE / subject.cwd.relative_to(subject.place), run.starts[-1]

    def words(number: int, ranks: int) -> str:
        argv = [f"--nproc-per-node={ranks}", *subject.words_of(number, cwd)]
        return shlex.join(each.replace(f"{cwd}/", "") for each in argv)

    pairs = {name: (f"work/{name}", f"expected/{name}") for name in verdict.reference.final}
    values = {
        "first": words(1, subject.ranks),
        "again": words(2, last.ranks),
        "cwd": shlex.quote(f"work/{cwd.relative_to(run.folder / STATE)}"),
        "seed": os.environ.get(HASH_SEED, "random"),
        "pairs": shlex.quote(json.dumps({"work": pairs})),
        "output": on_a_screen(REPORT.split(last.output, maxsplit=1)[0]),
        "versions": subprocess.check_output([subject.python, "-c", VERSIONS], text=True),
    }
    folder = subject.folder
    for name, text, home in (("repro.sh", SCRIPT, ""), ("issue.md", ISSUE, f"{Path.home()}/")):
        shown = text.format(reply=replies[0], run=run, **values).replace(f"{folder}/", "./")
        shown = shown.replace(home, "~/") if home else shown  # bash expands none in a word
        (folder / name).write_text(shown, "utf-8", "backslashreplace")
    shutil.copy(PROBE / "compare_files.py", folder)
    return ["repro.sh repeats the start that shows the first no; issue.md is the text of an issue"]
