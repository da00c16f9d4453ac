"""From a YAML spec to a Slurm job that survives: submitter, node agent, attempts. No torch.

A folder imports only those before it in this list: base, contract, slurm and node, config, runs,
attempt, commands. hooks calls the plugins, which import what they need of them. The first line of
each file says what it has; docs/architecture.md, in which order to read them.
"""
