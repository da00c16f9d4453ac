"""Seeds and random numbers as pure functions of their use: no generator state has to be saved."""

import random

import numpy as np
import torch

WEIGHTS, ORDER, STEP, AUGMENT, SAMPLE, HELD_OUT, DATA = range(1, 8)
CPU = torch.device("cpu")
_MASK = 2**64 - 1
# Source: splitmix64, Steele, Lea and Flood, "Fast splittable pseudorandom number generators".
_STRIDE, _FACTORS = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def mix(*parts: int) -> int:
    """Return a 63-bit seed from any number of integers."""
    state = 0
    for part in parts:
        state = (state + part + _STRIDE) & _MASK
        state = ((state ^ (state >> 30)) * _FACTORS[0]) & _MASK
        state = ((state ^ (state >> 27)) * _FACTORS[1]) & _MASK
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


class SampleRandom:
    """Random numbers for each sample of a batch: a pure function of (seed, step, sample, counter).

    The same in every batch, on every rank and in every attempt. Only integer arithmetic, so CPU and
    GPU give the same bits; the host never waits for the GPU.
    """

    def __init__(self, seed: int, step: int, indices: torch.Tensor) -> None:
        """indices: int64 [n], the samples' indices in their data set, on the device."""
        self._keys = _hash(indices * _signed(_STRIDE) + mix(AUGMENT, seed, step)).unsqueeze(1)
        self._count = 0

    def uniform(self, k: int) -> torch.Tensor:
        """Return the next `k` numbers of each sample: float32 [n, k], from 0 up to, not with, 1."""
        counters = torch.arange(self._count, self._count + k, device=self._keys.device)
        self._count += k
        bits = _hash(self._keys + counters * _signed(_STRIDE))
        # 24 bits, which is what float32 holds exactly.
        return _shifted(bits, 40).float() * 2.0**-24


def _signed(value: int) -> int:
    """Return the int64 that has the bits of an unsigned 64-bit number."""
    return value - 2**64 if value >= 2**63 else value


def _shifted(bits: torch.Tensor, by: int) -> torch.Tensor:
    """Return a logical right shift: the shift of int64 would copy the sign bit."""
    return torch.bitwise_and(bits >> by, (1 << (64 - by)) - 1)


def _hash(bits: torch.Tensor) -> torch.Tensor:
    """Return one splitmix64 output for each int64 state."""
    bits = bits + _signed(_STRIDE)
    bits = (bits ^ _shifted(bits, 30)) * _signed(_FACTORS[0])
    bits = (bits ^ _shifted(bits, 27)) * _signed(_FACTORS[1])
    return bits ^ _shifted(bits, 31)
