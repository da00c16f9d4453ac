"""Data sets that are read sample by sample, for the tests of this folder. No tests in here."""

import random

import numpy as np
import torch


class Chancy:
    """Images with their index in the first pixel, and random numbers of three generators."""

    num_classes = 3

    def __init__(self, num_samples=40):
        self.num_samples = num_samples

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        image = torch.rand(1, 4, 4)
        image[0, 0] = torch.tensor([index, random.random(), np.random.rand(), 0.5])
        return image, index % 3


class Given(Chancy):
    """A data set of the samples that `make` returns for an index."""

    def __init__(self, make, num_samples=8):
        super().__init__(num_samples)
        self.make = make

    def __getitem__(self, index):
        return self.make(index)
