"""torchrun whose rendezvous takes a state only from the processes of its attempt.

    python -m jobs.node.signed_torchrun OPTIONS...

Its store accepts every client, and torchrun unpickles the state that it finds there. So each state
is signed with the key of the attempt. torchrun has no other pickle (torch 2.10 to 2.15).

rehearse runs this file by its path: the Python of a training may be older, and have no kit.
"""

import hmac
import importlib.util
import os
import pickle
import sys
from pathlib import Path
from typing import Any

LAUNCHER = "slurm_job_kit.jobs.node.signed_torchrun"  # this module, for `python -m`
FORKED = "--start-method=forkserver"  # the ranks are the children of a child of torchrun
KEY_BYTES = 32  # as many as the digest has: SHA-256
RENDEZVOUS = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"


class _SignedPickle:
    """Stands for the module pickle. error: what a state without the signature raises."""

    PickleError = pickle.PickleError

    def __init__(self, key: bytes, error: Any) -> None:
        self._key, self._error = key, error

    def dumps(self, state: object) -> bytes:
        text = pickle.dumps(state)
        return hmac.digest(self._key, text, "sha256") + text

    def loads(self, signed: bytes) -> Any:
        signature, text = signed[:KEY_BYTES], signed[KEY_BYTES:]
        if not hmac.compare_digest(signature, hmac.digest(self._key, text, "sha256")):
            raise self._error("the state is not signed by this run: another process wrote it")
        return pickle.loads(text)


def sign(key: bytes) -> None:
    """Sign the states of this process. Raises: ImportError for a torch that pickles otherwise."""
    rendezvous: Any = importlib.import_module(RENDEZVOUS)
    if not hasattr(rendezvous, "pickle"):
        version = importlib.import_module("torch").__version__
        raise ImportError(f"the rendezvous of torch {version} cannot be signed: use torch 2.13")
    rendezvous.pickle = _SignedPickle(key, rendezvous.RendezvousStateError)


def main(argv: "list[str]") -> None:
    """Run torchrun. One with --standalone, the first option, shares its key with no other."""
    if importlib.util.find_spec("torch") is None:
        sys.exit(f"{sys.executable} has no torch: install it there, or choose another Python")
    if argv[0] == "--standalone":
        key = os.urandom(KEY_BYTES)
    else:
        from ..base import files
        from ..contract.rundir import RunDir

        attempt = RunDir(Path(os.environ["KIT_RUN_DIR"])).attempt(int(os.environ["KIT_ATTEMPT"]))
        key = files.read_bytes(attempt.rendezvous_key)
    sign(key)
    importlib.import_module("torch.distributed.run").main(argv)


if __name__ == "__main__":
    main(sys.argv[1:])
