"""The plugin changes: continue a run with another spec, code or checkpoint, or begin with its
state.

- resume: the command resume with what it may change of a run; the core's continues a run as it is.
- submit: the command submit with --from.
- spec_changes: what may change in a frozen spec: freely, if confirmed, or never; and the record.
- code_changes: how the frozen code differs from the checkout, and the switch to that.
- extension: whether a complete run gets more steps.
- checkpoint_files: checks and copies a checkpoint; puts newer ones aside.
- origin: begins a run from the whole state of another one.
"""
