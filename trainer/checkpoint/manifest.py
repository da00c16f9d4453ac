"""The names in a checkpoint directory, and the bytes of its manifest. Imports no torch.

`step-XXXXXXXX/` has some files and `manifest.json` with the size and SHA-256 of each.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
LATEST = "latest"
BEST = "best"


def manifest_text(manifest: dict[str, Any]) -> bytes:
    """Return the only valid bytes of a manifest with these values; its own SHA-256 is in them."""
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    sha256 = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    text = json.dumps({**rest, "sha256": sha256}, indent=2, ensure_ascii=False)
    return (text + "\n").encode("utf-8", "backslashreplace")
