"""A sharded run with stops ends bitwise equal to the reference run."""

import pytest

from tests.local import sabotage
from tests.local.stop_plans import HYBRID, RANKS_OF_CONTROLS, SHARDED
from tests.local.test_exact import findings

COMPILED = ("fsdp_compiled",)
MESHES = [
    (2, SHARDED),
    pytest.param(3, SHARDED, marks=pytest.mark.slow),
    pytest.param(4, HYBRID, marks=pytest.mark.slow),
    pytest.param(6, ("fsdp", "fsdp_gpt", "hsdp"), marks=pytest.mark.slow),
    pytest.param(2, COMPILED, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("ranks", "names"), MESHES)
def test_a_stopped_run_of_shards_ends_with_the_bits_of_the_reference_run(tmp_path, ranks, names):
    """As a control, a broken restore is seen under each strategy: the bits differ then."""
    found = findings(tmp_path, ranks, names)
    for name, each in found.items():
        (run,) = each["runs"]
        assert (name, run["differences"]) == (name, []) and len(run["stops"]) == 3
    unseen = [
        (name, way)
        for name in names
        if RANKS_OF_CONTROLS.get(name) == ranks
        for way in sabotage.WAYS
        if not found[name]["broken"][way]
    ]
    assert unseen == []
