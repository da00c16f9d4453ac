"""Why a run waits, ended or is held: evidence, cause, advice.

- observation: reads what the run directory and Slurm have about a run.
- find_answer: the answer for the whole run.
- answer: the answer as text and as JSON.
- remedies: the command for what a person does about a kind.
"""
