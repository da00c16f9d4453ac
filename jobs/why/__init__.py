"""Why a run waits, ended or is held: cause, evidence, advice.

- why: the command.
- evidence: reads what the run directory and Slurm have about a run.
- answers: the answer for the whole run.
- answer: the answer as text and as JSON.
- kinds: the command for what a person does about a kind.
"""
