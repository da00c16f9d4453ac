"""The Slurm job kit as one package: `jobs`, `trainer` and `slurm`, beside this file once installed.

The kit is imported by this name, because a user's repository may have packages `jobs` and `trainer`
of its own. In a clone these folders lie at the top of the repository.
"""

from pathlib import Path

if not Path(__file__).with_name("jobs").is_dir():
    __path__.append(str(Path(__file__).resolve().parents[1]))
