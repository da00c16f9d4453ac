"""Hugging Face's Trainer: a small GPT-2, made here, on made-up text. Nothing is downloaded.

    make submit CMD="python configs/examples/hf_trainer.py --steps 100" SET="slurm.nodes=2"

The lines with `kit` save the training in time when Slurm takes its nodes, and resume it. Needs
transformers and accelerate beside torch and the kit.
"""

import argparse
import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from slurm_job_kit.trainer.plugins.integrations.transformers import TransformersCallback

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
steps = parser.parse_args().steps


class Counting(torch.utils.data.Dataset):
    """Rows of 32 numbers below 64, each greater by the same amount than the one before it."""

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        row = (index + torch.arange(32) * (1 + index % 7)) % 64
        return {"input_ids": row, "labels": row}


set_seed(0)  # every rank and every start makes the same first weights
size = {"vocab_size": 64, "n_positions": 32, "n_embd": 64, "n_layer": 2, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))
arguments = TrainingArguments(
    # The kit's folder for the checkpoints of this run; without the kit ./out.
    output_dir=os.environ.get("KIT_CHECKPOINT_DIR", "out"),
    max_steps=steps,
    per_device_train_batch_size=16,
    learning_rate=1e-3,
    lr_scheduler_type="cosine",
    save_steps=50,
    save_total_limit=2,  # not 1: while the newest checkpoint is written the one before it counts
    logging_steps=10,
    disable_tqdm=True,  # `make status` shows the progress
    report_to="none",
)
kit = TransformersCallback(arguments)
trainer = Trainer(model, arguments, train_dataset=Counting(), callbacks=[kit])
trainer.train(resume_from_checkpoint=kit.newest())  # None at the first start
trainer.save_model(os.path.join(arguments.output_dir, "final"))
kit.keeper.completed()  # exits; the run is complete
