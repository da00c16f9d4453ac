"""The list of packages: pyproject.toml cannot search folders that package-dir renames."""

from setuptools import find_packages, setup

PARTS = ["slurm", "examples", *find_packages(include=["jobs*", "trainer*"])]
setup(packages=["slurm_job_kit", *(f"slurm_job_kit.{name}" for name in PARTS)])
