"""The paced model, which fails on one node or on one rank at its fourth batch."""

import os
from typing import Any

import torch

from slurm_job_kit.jobs.records.nodes import node_name

from ..paced import Paced

BATCH = 4


class Crashing(Paced):
    """Paced; CRASH_NODE or CRASH_RANK selects the process, CRASH_ATTEMPT the only attempt.

    The parameters have the names of Paced's, because the digest of the weights includes the names.
    """

    def __init__(self) -> None:
        super().__init__()
        self._batches = 0
        attempt = os.environ.get("KIT_ATTEMPT")
        is_me = os.environ.get("CRASH_NODE") == node_name() or (
            os.environ.get("CRASH_RANK") == os.environ.get("RANK", "none")
        )
        self._fails = is_me and os.environ.get("CRASH_ATTEMPT", attempt) == attempt

    def forward(self, images: torch.Tensor) -> Any:
        """As Paced's. Raises: RuntimeError in the process that fails."""
        self._batches += 1
        if self._fails and self._batches == BATCH:
            raise RuntimeError("the sum of a checksum is wrong")
        return super().forward(images)
