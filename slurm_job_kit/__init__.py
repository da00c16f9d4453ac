"""The Slurm job kit as one package: `jobs`, `trainer` and `slurm`, beside this file once installed.

The kit is imported by this name, because a user's repository may have packages `jobs` and `trainer`
of its own. In a clone these folders lie at the top of the repository.
"""

import os

if not os.path.isdir(f"{__path__[0]}/jobs"):
    __path__.append(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
