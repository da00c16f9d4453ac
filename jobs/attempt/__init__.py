"""The attempts of a run: what is done before, during and after each srun step.

- __main__: the commands: run, of the batch script; open and close, of a launch by hand.
- attempts: one attempt after another until a decision ends this start; the srun of each.
- open: claims the run and writes the plan of the next attempt.
- close: reads the facts, decides what follows, records it.
- collect_evidence: how an attempt ended: its files, Slurm and the nodes.
- ending: the value that has that.
- decision: the pure functions from an ending and earlier records to a decision.
- reasons: names what ended an attempt, and what shows it, for its record.
- execute: executes a decision: requeue, successor, retry, hold.
- record_writer: makes and writes the records of all attempts, and the result.
- srun_step: the command of an agent; the bounds of the step's end.
- end_messages: what job.log shows of an attempt that ended.

Three names are the same in all of them: `facts` is the AttemptFacts, `ending` the Ending
made of them, `me` the Owner that this process stands for.
"""
