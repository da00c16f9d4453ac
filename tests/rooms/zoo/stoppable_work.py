"""A GPT on token files, which a test stops at exact passes."""

import tempfile
from pathlib import Path

import numpy as np
import torch

from slurm_job_kit.trainer.rooms.zoo import tokens
from slurm_job_kit.trainer.rooms.zoo.gpt import GPT
from tests.local.stoppable import Passes

BLOCK_SIZE = 8
VOCABULARY = 50


class LanguageModel(Passes):
    """A tiny GPT with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = GPT(VOCABULARY, BLOCK_SIZE, n_layer=1, n_head=2, n_embd=8, dropout=0.2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits [n, T, vocabulary]."""
        return self.counted(self.gpt(inputs))


def token_files(num_train: int) -> tuple[tokens.TokenSource, tokens.TokenSource | None]:
    """A token file for training, and one held out."""
    folder = Path(tempfile.mkdtemp())
    dice = np.random.default_rng(0)
    for name, windows in {"train": num_train, "val": 11}.items():
        values = dice.integers(0, VOCABULARY, windows * BLOCK_SIZE + 3, dtype=np.uint16)
        values.tofile(folder / f"{name}.bin")
    paths = str(folder / "train.bin"), VOCABULARY, str(folder / "val.bin")
    return tokens.tokens(*paths, block_size=BLOCK_SIZE)
