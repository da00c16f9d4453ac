"""Where no torch is installed, `pytest -p no_torch` skips what imports it, or looks for it."""

import sys

import pytest


class NoTorch:
    """A finder of modules that Python asks first."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "torch":
            pytest.skip("no torch here", allow_module_level=True)


sys.meta_path.insert(0, NoTorch())
