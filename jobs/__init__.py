"""From a YAML spec to a Slurm job that survives: submitter, node agent, attempts. No torch.

contract: installation, spec, rundir, shared_files, errors, problems, checkpoint_names,
checkpoint_blocks, console, prctl, procfs, arguments, log_text, last_error, kinds, known_causes,
environment, gpus
"""
