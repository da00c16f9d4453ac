"""Small parts of the trainer: seeds, digests, the place and the run of a rank."""

import pytest
import torch

from slurm_job_kit.trainer.checkpoint.digest import tensors_sha256
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.process.context import DistributedContext
from slurm_job_kit.trainer.process.run_handle import find_run
from slurm_job_kit.trainer.seeds import mix


def test_seeds_differ_in_every_part():
    seeds = {mix(kind, 0, step, rank) for kind in (1, 2) for step in range(50) for rank in range(4)}
    assert len(seeds) == 400 and all(0 <= seed < 2**63 for seed in seeds)
    assert mix(1, 2) != mix(2, 1)


def test_a_digest_changes_with_any_bit_name_type_and_shape():
    zeros, one_bit = torch.zeros(4), torch.zeros(4)
    one_bit.view(torch.int32)[2] = 1
    values = [zeros, one_bit, -zeros, zeros.view(2, 2), torch.zeros(8).half()]
    assert len({tensors_sha256({"x": each}) for each in values}) == 5
    assert tensors_sha256({"x": torch.zeros(4)}) == tensors_sha256({"x": zeros})
    assert tensors_sha256({"x": zeros}) != tensors_sha256({"y": zeros})


def test_the_context_comes_from_torchruns_variables():
    values = {"RANK": "2", "LOCAL_RANK": "2", "GROUP_RANK": "0"}
    context = DistributedContext.from_env(values | {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"})
    assert (context.rank, context.local_rank, context.world_size) == (2, 2, 4)
    assert not context.is_first
    with pytest.raises(UserError, match="RANK, LOCAL_RANK, .* not set\n.*: start it by torchrun"):
        DistributedContext.from_env({})


@pytest.mark.parametrize("words", [["x.yaml"], ["{run}", "train.lr=1"], []])
def test_other_words_than_a_run_directory_are_refused_with_the_way_to_one(run, words):
    words = [word.replace("{run}", str(run.path)) for word in words]
    with pytest.raises(UserError, match="RUN_DIR\n  hint: jobs freeze CONFIG"):
        find_run(words, None)
