"""What the text of a script shows that goes wrong in a job: one table, and its lines."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ...base.errors import UserError
from ...contract.spec import Launch, Spec
from .code import texts_of


class Row(NamedTuple):
    """Words of a script, what they do in a job of so many nodes, and words that prevent it."""

    words: str
    what: str
    unless: str = "(?!)"
    nodes: int = 1


# Not to ask for it, to show it, to remove it, or to name a folder of the node.
_READS = (
    r"^(?!\s*((el)?if\b|del\b|(print|(log|wandb)\w*\.\S+)\()|.*(\bbool\(|\bis (not )?None|/tmp/))"
    r".*(env\w*(\.get\(|\[|\()\s*['\"]|\$\{?|env:)SLURM_"
)
# Asks whether torchrun has started the ranks: then the other branch is of another launcher.
_ASKS = (
    r"\b(el)?if\b.*(['\"](MASTER_ADDR|(LOCAL_)?RANK|WORLD_SIZE|TORCHELASTIC_RUN_ID)['\"] (not )?in"
    r"\b|get(env)?\(['\"]MASTER_ADDR|is_torchelastic|local_rank == -1)"
    r"|(\btry:\s.*\[|get(env)?\(\s*)['\"]RANK"
)
ROWS = (
    Row(
        r"['\"]--local[_-]rank['\"]",
        "takes --local_rank, which torchrun gives to no rank: each may train alone; use LOCAL_RANK",
        "LOCAL_RANK",
    ),
    Row(
        f"{_READS}JOB_?ID",
        "reads SLURM_JOB_ID: it changes with each resume; KIT_RUN_DIR, KIT_CHECKPOINT_DIR stay",
    ),
    Row(
        rf"{_READS}(PROCID|LOCALID|NTASKS|NPROCS)\b(?!['\"]\] *=[^=])",
        "reads the number of Slurm's task, one on each node: use RANK, LOCAL_RANK and WORLD_SIZE",
        _ASKS,
    ),
    Row(
        r"environ\[['\"]MASTER_ADDR['\"]\] *=(?!=|.*MASTER_ADDR)"
        r"|(putenv\(|\.update\(.*)['\"]?\bMASTER_ADDR",
        "sets MASTER_ADDR, which torchrun has set for all ranks: at another one they may not meet",
        _ASKS,
    ),
    Row(
        r"\b(mp|multiprocessing)\.(spawn|start_processes)\(|\bnotebook_launcher\("
        r"|from torch\.multiprocessing(\.spawn)? import (\([^)]*|.*)\b(spawn|start_processes)\b"
        r"|\bProcess\(.*args=\(\w*rank\b|(from|import) torch\.distributed\.(run|launcher)\b",
        "starts ranks of its own: the kit starts them; use RANK, LOCAL_RANK and WORLD_SIZE",
        _ASKS,
    ),
    Row(
        r"^([ \t]*)if\b(?!.*\brank *== *0).*(?i:local_?rank\b.*(== *0|in [\[(]-1, *0)"
        r"|not .*local_?rank|local_main|\brank % \w+ == 0)"
        r".*:(.*|(\n(\1[ \t].*)?)*?\n\1[ \t].*)save\w*\(",
        "saves where LOCAL_RANK is 0: a rank of each node writes the same file; use RANK",
        nodes=2,
    ),
)
QUEUES = Row(
    r"^\s*(import|from) (submitit|dask_jobqueue)\b|(\b\w*(cmd|command|args|argv) *= *|\b(system|run"
    r"|split|call|[Pp]open|check_\w+|\w*output|exec\w+|spawn\w*|\w+_shell|\w+_exec)\()\s*(\[\s*)?"
    r"[rf]*['\"]([^\s'\"]*/)?(sbatch|srun)\b",
    "queues a job, or starts a step: each rank would, and none would train\n"
    "  hint: the kit queues the job and starts the ranks: name the script that each rank runs",
    r"\.backward\(|init_process_group|init_distributed|\.train\(|Accelerator\(|\.fit\(|torch\.optim",
)


def warnings_of(spec: Spec, code: Path) -> Iterator[str]:
    """Yield a line for each row of the table, with its first place: in the script or an import."""
    texts = texts_of(spec.launch, code)
    for row in ROWS:
        if spec.slurm.most_nodes >= row.nodes:
            yield from [f"warning: {line}" for line in _lines(row, texts, code)][:1]


def refuse_queuing(launch: Launch, code: Path) -> None:
    """Raises UserError for a script that queues jobs itself, and has no training of its own."""
    for line in _lines(QUEUES, dict([*texts_of(launch, code).items()][:1]), code):
        raise UserError(f"launch.{'script' if launch.script else 'module'}: {line}")


def _lines(row: Row, texts: Mapping[Path, str], code: Path) -> Iterator[str]:
    is_prevented = any(re.search(row.unless, text) for text in texts.values())
    for path, text in texts.items():
        if not is_prevented and (found := re.search(row.words, text, re.MULTILINE)):
            number = len(text[: found.end()].splitlines())
            yield f"{path.relative_to(code)}:{number} {row.what}"
