"""A checkpoint of any strategy and number of ranks is loaded by any other, bit for bit."""

import sys
from typing import Any

import pytest

from slurm_job_kit.jobs.rundir import read_json
from tests.local.test_trainer import end, environment, start
from tests.rooms.sharded.meshes import MESHES, WORLDS

pytestmark = pytest.mark.slow
PROGRAM = "from tests.rooms.sharded import meshes; meshes.main()"
NAMES = [mesh.name for mesh in MESHES]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The digests at each save, and after each load of each save."""
    folder = tmp_path_factory.mktemp("meshes")
    status, output = end(start([sys.executable, "-c", PROGRAM, str(folder)], environment(1)), 300)
    assert status == 0, output
    merged: dict[str, dict[str, Any]] = {"saved": {}, "loaded": {}}
    for kind, all_found in merged.items():
        for world in WORLDS:
            all_found |= read_json(folder / f"{kind}-{world}.json") or {}
    return merged


def test_each_save_is_loaded_by_each_mesh_with_the_same_bits(found):
    differ = [
        (saved, loaded)
        for saved in NAMES
        for loaded in NAMES
        if found["loaded"][loaded][saved] != found["saved"][saved]
    ]
    assert differ == [] and set(NAMES) == set(found["saved"])


def test_the_meshes_have_states_of_their_own(found):
    """So the digests of the test above tell one state from another."""
    assert len({tuple(digests) for digests in found["saved"].values()}) > 2
