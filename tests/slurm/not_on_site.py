"""The tests on Slurm that do not run in the second shape of the cluster, each with the reason."""

REASONS: dict[str, str] = {}
