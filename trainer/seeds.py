"""Seeds as a pure function of their use, so that no generator state has to be saved."""

import random

import numpy as np
import torch

WEIGHTS, ORDER, STEP, AUGMENT, SAMPLE, HELD_OUT, DATA = range(1, 8)
CPU = torch.device("cpu")
_MASK = 2**64 - 1


def mix(*parts: int) -> int:
    """Return a 63-bit seed from any number of integers.

    Source: splitmix64, Steele, Lea and Flood, "Fast splittable pseudorandom number generators".
    """
    state = 0
    for part in parts:
        state = (state + part + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed torch's default generators of the CPU and of a GPU.

    `torch.manual_seed` would seed every other kind of device, too: 130 us, a tenth of a tiny step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def seed_all(seed: int, device: torch.device = CPU) -> None:
    """Seed the generators that a user's code may draw from: Python's and NumPy's, too."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    seed_generators(seed, device)
