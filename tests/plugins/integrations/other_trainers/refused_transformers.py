"""A Trainer that evaluates each step, saves the best only, and whose other callback wants no save.

argv[1]: `best` or `refused`. The warning comes in step 4. It logs what is no number, too.
"""

import signal
import sys

import tiny
from transformers import Trainer, TrainerCallback, TrainingArguments

from slurm_job_kit.trainer.plugins.integrations.transformers import TransformersCallback


class Net(tiny.Net):
    def forward(self, index, inputs, targets):
        if self.training and trainer.state.global_step == 3:
            signal.raise_signal(signal.SIGTERM)
        return {"loss": super().forward(index, inputs, targets)}


class Logs(Trainer):
    def log(self, logs, *words, **named):
        own = {"phase": "warm-up", "lrs": [1, 2], "nothing": None, "step": 0, "eval_quality": 1}
        super().log({**logs, **own}, *words, **named)

    def evaluate(self, *words, **named):
        return super().evaluate(*words, **named) | {
            "eval_quality": 1
        }  # never better than the first


class Refuses(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = control.should_save and sys.argv[1] == "best"

    on_log = on_evaluate = on_step_end


arguments = TrainingArguments(
    output_dir="out",
    max_steps=9,
    per_device_train_batch_size=tiny.BATCH_SIZE,
    eval_strategy="steps",
    eval_steps=1,
    logging_steps=1,
    save_strategy="best",
    metric_for_best_model="eval_quality",
    disable_tqdm=True,
    remove_unused_columns=False,
    use_cpu=True,
    report_to="none",
)
kit = TransformersCallback(arguments, every=1)  # by the clock a step may be too quick
data = tiny.Points()
trainer = Logs(
    tiny.begin(Net), arguments, train_dataset=data, eval_dataset=data, callbacks=[kit, Refuses()]
)
trainer.train(resume_from_checkpoint=kit.newest())
kit.keeper.completed()
