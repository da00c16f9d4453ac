"""The number of GPUs in a spec, and in the variables of Slurm and CUDA."""

import pytest

from slurm_job_kit.jobs.base import gpus


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({"SLURM_GPUS": "3", "SLURM_GPUS_ON_NODE": "1", "SLURM_JOB_GPUS": "0,1"}, 1),
        ({"SLURM_JOB_GPUS": "0-3"}, 4),
        ({"SLURM_JOB_GPUS": "0,1", "SLURM_STEP_ID": "0"}, None),  # with --exclusive
        ({"SLURM_GPUS_PER_NODE": "a100:2"}, 2),
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
        ("0,-1,1", ["0"]),
        ("NoDevFiles", []),
        ("GPU-8932f937-d72c,GPU-1", ["GPU-8932f937-d72c", "GPU-1"]),
        ("0,0", []),
    ],
)
def test_the_devices_that_cuda_reads_in_a_variable(text, devices):
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": text}) == ("CUDA_VISIBLE_DEVICES", devices)


def test_amds_variables_count_where_cudas_is_not_set():
    assert gpus.visible({"ROCR_VISIBLE_DEVICES": "0,1"}) == ("ROCR_VISIBLE_DEVICES", ["0", "1"])
    assert gpus.visible({}) == ("", [])


def test_the_gpus_of_a_machine_are_its_device_files(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert gpus.of_machine(tmp_path, tmp_path) == 2
    for node, gpu_id in enumerate(("0", "4711")):
        (tmp_path / "kfd" / str(node)).mkdir(parents=True)
        (tmp_path / "kfd" / str(node) / "gpu_id").write_text(f"{gpu_id}\n")
    (tmp_path / "kfd/2/gpu_id").mkdir(parents=True)  # as denied by the cgroup of the job
    assert gpus.of_machine(tmp_path / "none", tmp_path / "kfd") == 1
