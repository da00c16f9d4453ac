"""The fixtures of the tests of the core."""

from tests.core.conftest import (  # noqa: F401
    fake_slurm,
    file_client,
    frozen_code,
    guarded,
    here,
    hosts,
    mistake,
    no_name_server,
    no_reader_left,
    process_group,
    refuse,
    refuse_one,
    run,
    slurm,
    spec_file,
    submitted,
    take,
)
