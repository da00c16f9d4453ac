"""The wrapper of each rank of a user's script: begins the rank, and becomes the script by exec.

python -m jobs.plugins.scripts.rank COMMAND...
"""

import os
import sys

from ...base.console import begin_lines_with_time
from ...contract import rank_start

if __name__ == "__main__":
    begin_lines_with_time()
    rank_start.begin()
    os.chdir(os.environ["KIT_WORK_DIR"])
    os.execvp(sys.argv[1], sys.argv[1:])
