"""What a plugin may do beside a training: callbacks from its start to its end.

trainer/plugins/NAME/hooks.py has the function `callbacks`, with the same types as the one here.
`parts` is the other function that a plugin may have there: trainer/parts.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts import functions
from .process.watcher import Pulse, Watcher

if TYPE_CHECKING:
    import torch

    from .process.run_handle import RankContext, RankProcess
    from .training.loop import Loop


class Callback(Watcher):
    """What a plugin does beside a training, in the order of the calls; here each does nothing."""

    def connected(self, rank: RankProcess, device: torch.device) -> None:
        """All ranks are connected; rank 0 finds the run next."""

    def opened(self, context: RankContext) -> None:
        """The run is known; next come data and model, perhaps with a fork: start no thread here."""

    def restored(self, loop: Loop) -> None:
        """The checkpoint is loaded, if there is one; the first step comes next."""


def callbacks(pulse: Pulse) -> list[Callback]:
    """Return the callbacks of this rank, in the order of the plugins.

    A rank calls it before it imports torch, which a plugin must not import here either, and before
    it knows its run. launch.env is in the environment.
    """
    return [each for hook in functions("callbacks") for each in hook(pulse)]
