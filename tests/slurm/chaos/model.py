"""The campaign's model: at the request of a harm its disk blocks, or a rank loops.

All draws use this one model, so that one reference run serves them all.
"""

from ..faults.broken import Broken
from ..faults.held_up import HeldUp


class AtWill(HeldUp, Broken):
    """HeldUp and Broken in one, with the names of Paced's parameters."""
