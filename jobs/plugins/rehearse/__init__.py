"""Adds the command rehearse: harms any training, starts it again, and compares the end.

- rehearse: reads the command line, runs all scenarios and prints the verdict
- traces: what the ranks did, as the probe recorded it
- subjects: what is rehearsed, a command or a spec: how it starts, and starts again
- landlock: lets it write below some folders only
- harming: one start of it: its processes, a harm at a moment, its end
- disks: the disks that a SIGKILL in a save can leave
- scenarios: the harms that are tried, each in a run of its own
- final_state: which files are the final state, and in what they differ
- judge: a run of a scenario, and what it shows beside the undisturbed one
- causes: the faults that are recognised, with what to change
- verdict: the questions and their answers, as a table and as JSON
- repro: a script that repeats a no without this kit, and the text of an issue
"""
