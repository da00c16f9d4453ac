"""From a YAML spec to a Slurm job that survives: submitter, node agent, attempts. No torch.

contract: installation, spec, rundir, batch_sizes, shared_files, errors, problems, console, procfs,
log_text, kinds, known_causes, environment, gpus, stop_signals

hooks: hooks
"""
