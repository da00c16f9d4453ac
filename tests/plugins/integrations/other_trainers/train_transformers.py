"""Hugging Face's Trainer."""

import os

import tiny
from transformers import Trainer, TrainingArguments

from slurm_job_kit.trainer.plugins.integrations.transformers import TransformersCallback


class WithLoss(tiny.Net):
    """A model in the form that the Trainer wants."""

    def forward(self, index, inputs, targets):
        return {"loss": super().forward(index, inputs, targets)}


net = tiny.begin(WithLoss)
arguments = TrainingArguments(
    output_dir=os.environ.get("KIT_CHECKPOINT_DIR", "out"),
    num_train_epochs=tiny.EPOCHS,
    per_device_train_batch_size=tiny.BATCH_SIZE,
    learning_rate=0.01,
    lr_scheduler_type="cosine",
    save_steps=5,
    save_total_limit=2,
    logging_steps=2,
    disable_tqdm=True,
    remove_unused_columns=False,
    use_cpu=True,
    report_to="none",
)
kit = TransformersCallback(arguments)
trainer = Trainer(net, arguments, train_dataset=tiny.Points(), callbacks=[kit])
trainer.train(resume_from_checkpoint=kit.newest())
tiny.finish(net)
kit.keeper.completed()
