"""GPUs count the same in each of Slurm's spellings, and in the variables of Slurm and CUDA."""

import pytest

from slurm_job_kit.jobs import gpus
from slurm_job_kit.jobs.spec import Slurm

# A value of --gres or --tres-per-task, and the GPUs in it.
GRES = {
    "gpu": 1,
    "gpu:2": 2,
    "gpu:a100:2": 2,
    "gpu:a100": 1,
    "gpu:2(S:0)": 2,
    "gpu:a100:3(S:0,1)": 3,
    "GPU:2": 2,
    "gres:gpu:2": 2,
    "gres/gpu:2": 2,
    "gres/gpu:a100=2": 2,
    "cpu=4,gres/gpu=8": 8,
    "tmp:500G, gpu:1": 1,
    "gpu:a100:1,gpu:v100:2": 3,
    "gpu:nvidia_a100_1g.5gb:4": 4,
    "shard:8": 1,
    "mps:50": 1,
    "gpu:0": 0,
    "none": 0,
    "": 0,
    "license:4": 0,
    "gpu:": None,
    "gpu:a100:x": None,
    "gpu:1:2": None,
    "gpu:3090:2": 2,
    "gpu:a100:2(S:0-1),gpu:v100:1(S:2,3)": 3,
    "gpu:a100-gpu:2": 2,
    "gpu:2,tmpdir:100G": 2,
    "GRES/GPU=2": 2,
    "gpu:1g.5gb:2": 2,
    "gpu:2K": None,
    "shard:0": 0,
    "gpu_mem:10": 0,
}
# A value of --gpus and its like, and what --gpus-per-node gets.
NUMBERS = {
    "4": "4",
    "a100:4": "a100:4",
    "a100": "a100:1",
    "gpu:2": "2",
    "a100:1,v100:2": "a100:1,v100:2",
    "0": "0",
    "": None,
    "gpu:a100:2(S:0-1)": "a100:2",
    "gres/gpu:a100=2": "a100:2",
    "gres/gpu=1": "1",
    "a100-gpu:2": "a100-gpu:2",
    "1g.5gb:2": "1g.5gb:2",
    "2.0": None,
    "-1": None,
    "2x": None,
    "2,": None,
}


@pytest.mark.parametrize(("text", "count"), GRES.items())
def test_resources_have_as_many_gpus_as_slurm_gives(text, count):
    assert gpus.in_gres(text) == count


@pytest.mark.parametrize(("text", "count"), NUMBERS.items())
def test_a_number_of_gpus_may_have_a_type(text, count):
    number = gpus.in_number(text)
    assert (number is None) == (count is None)
    if count is not None:
        assert gpus.canonical(text) == count and gpus.in_number(count) == number


@pytest.mark.parametrize(
    ("environ", "wanted", "has"),
    [
        ({"SLURM_GPUS": "3", "SLURM_GPUS_ON_NODE": "2"}, 0, "3 GPUs on 2 nodes"),
        ({"SLURM_GPUS": "a100:3", "SLURM_GPUS_ON_NODE": "2"}, 2, "3 GPUs on 2 nodes"),
        ({"SLURM_GPUS": "2", "SLURM_GPUS_ON_NODE": "1"}, 2, "2 GPUs on 2 nodes"),
        ({"SLURM_GPUS": "4", "SLURM_GPUS_ON_NODE": "2"}, 2, None),
        ({"SLURM_GPUS_ON_NODE": "1"}, 2, "1 GPU on each node"),
        ({"SLURM_GPUS_ON_NODE": "8"}, 2, None),
        ({}, 2, None),  # where Slurm does not count them
    ],
)
def test_a_job_has_too_few_gpus_for_its_nodes(environ, wanted, has):
    assert gpus.too_few(environ, 2, wanted) == has


@pytest.mark.parametrize(
    ("section", "count"),
    [
        (Slurm(), 0),
        (Slurm(gpus_per_node=2), 2),
        (Slurm(gpus_per_node="a100:4"), 4),
        (Slurm(sbatch_args={"gres": "gpu:a100:2"}), 2),
        (Slurm(nodes=2, sbatch_args={"gpus": 4}), 2),
        (Slurm(nodes=2, sbatch_args={"gpus": "a100:3"}), 2),  # the larger of both nodes
        (Slurm(sbatch_args={"gpus_per_task": "a100:4"}), 4),
        (Slurm(sbatch_args={"gpus_per_socket": 2, "sockets_per_node": 2}), 4),
        (Slurm(sbatch_args={"tres_per_task": "cpu:2,gres/gpu:3"}), 3),
        (Slurm(sbatch_args={"gpu_freq": "high", "comment": "gpu:8"}), 0),
    ],
)
def test_every_key_that_asks_for_gpus_counts(section, count):
    assert section.num_gpus == count


# What Slurm 22.05 sets in a step: on a second node SLURM_JOB_GPUS is that of the first.
@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({"SLURM_GPUS": "3", "SLURM_GPUS_ON_NODE": "1", "SLURM_JOB_GPUS": "0,1"}, 1),
        ({"SLURM_STEP_GPUS": "0,1", "SLURM_STEP_ID": "0"}, 2),
        ({"SLURM_JOB_GPUS": "0,1", "SLURM_STEP_ID": "0"}, None),  # with --exclusive
        ({"SLURM_JOB_GPUS": "0-3"}, 4),
        ({"SLURM_GPUS_PER_NODE": "a100:2"}, 2),
        ({"SLURM_GPUS_PER_TASK": "2"}, 2),
        ({"SLURM_GPUS": "4", "SLURM_JOB_NUM_NODES": "2"}, 2),
        ({"SLURM_GPUS_ON_NODE": "0"}, None),
        ({}, None),
    ],
)
def test_the_gpus_of_an_allocation(environ, count):
    assert gpus.allocated_gpus(environ) == count


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("0,1,3", ["0", "1", "3"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["0"]),
        ("NoDevFiles", []),
        ("GPU-8932f937-d72c,GPU-1", ["GPU-8932f937-d72c", "GPU-1"]),
        ("MIG-2f8bc9c4", ["MIG-2f8bc9c4"]),
        ("0,0", []),
    ],
)
def test_the_devices_that_cuda_reads_in_a_variable(text, devices):
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": text}) == ("CUDA_VISIBLE_DEVICES", devices)


def test_amds_variables_count_where_cudas_is_not_set():
    assert gpus.visible({"ROCR_VISIBLE_DEVICES": "0,1"}) == ("ROCR_VISIBLE_DEVICES", ["0", "1"])
    assert gpus.visible({}) is None


def test_the_gpus_of_a_machine_are_its_device_files(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert gpus.of_machine(tmp_path, tmp_path) == 2
    for node, gpu_id in enumerate(("0", "4711")):
        (tmp_path / "kfd" / str(node)).mkdir(parents=True)
        (tmp_path / "kfd" / str(node) / "gpu_id").write_text(f"{gpu_id}\n")
    assert gpus.of_machine(tmp_path / "none", tmp_path / "kfd") == 1


def test_a_variable_that_leaves_too_few_gpus_is_named_with_its_value():
    environ = {"CUDA_VISIBLE_DEVICES": "0", "SLURM_GPU_BIND": "single:1"}
    assert gpus.limiting_variable(environ, 1) is None
    limit = gpus.limiting_variable(environ, 2)
    assert limit is not None and "CUDA_VISIBLE_DEVICES is '0'" in limit and "single:1" in limit
