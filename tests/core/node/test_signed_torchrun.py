"""torchrun unpickles no state of its rendezvous that its attempt did not sign."""

import hmac
import pickle
import subprocess
import sys

import pytest
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.elastic.rendezvous.api import RendezvousStateError

from slurm_job_kit.jobs.node import signed_torchrun

KEY = b"k" * signed_torchrun.KEY_BYTES


class Planted:
    """Creates a file in the process that unpickles it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.fixture
def rendezvous(monkeypatch):
    monkeypatch.setattr(dynamic_rendezvous, "pickle", pickle)
    return dynamic_rendezvous


@pytest.mark.parametrize(
    "of_other",
    [
        lambda evil, signed: evil,
        lambda evil, signed: signed[: signed_torchrun.KEY_BYTES] + evil,
        lambda evil, signed: hmac.digest(b"of another attempt", evil, "sha256") + evil,
        lambda evil, signed: signed[:5],
    ],
)
def test_only_a_state_of_the_same_attempt_is_unpickled(rendezvous, tmp_path, of_other):
    signed_torchrun.sign(KEY)
    planted = Planted(tmp_path / "planted")
    signed = rendezvous.pickle.dumps({"round": 3})
    assert rendezvous.pickle.loads(signed) == {"round": 3} and KEY not in signed
    with pytest.raises(RendezvousStateError, match="not signed by this run"):
        rendezvous.pickle.loads(of_other(pickle.dumps(planted), signed))
    assert not planted.path.exists()


def test_a_python_without_torch_is_named():
    command = [sys.executable, "-S", "-E", signed_torchrun.__file__, "--standalone"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith(f"{sys.executable} has no torch: ")


def test_a_torch_that_pickles_elsewhere_starts_no_ranks(rendezvous, monkeypatch):
    monkeypatch.delattr(rendezvous, "pickle")
    with pytest.raises(ImportError, match="cannot be signed"):
        signed_torchrun.main(["--standalone", "--version"])
