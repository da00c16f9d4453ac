"""From a YAML spec to a Slurm job that survives: submitter, node agent, attempts. No torch."""
