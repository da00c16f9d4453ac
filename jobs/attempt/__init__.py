"""The attempts of a run: what is done before, during and after each srun step.

Three names are the same in all of them: `facts` is the AttemptFacts, `ending` the Ending
made of them, `me` the Owner that this process stands for.
"""
