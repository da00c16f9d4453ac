"""Which files of a repository may be secrets: by their names or their folders."""

import os
import re
from fnmatch import fnmatchcase
from pathlib import Path

# Compared in lower case.
NAMES = (
    *(".env*", "*.pem", "*.key", "id_*", ".netrc", "*_history", "*token*", "*secret*"),
    *("*credential*", "*.jwt", "*kubeconfig*", ".pypirc"),
)
FOLDERS = (".ssh", ".aws", ".kube", ".docker", ".gnupg")
NO_TOKENS = re.compile("tokeni[sz]|(special|added)_tokens")  # in names of a tokenizer's files


def secret_in(name: str) -> str | None:
    """Return what to print of a file that may be a secret; None for another.

    name: relative to the repository.
    """
    *folders, file = Path(name).parts
    for number, folder in enumerate(folders, 1):
        if folder.lower() in FOLDERS:
            return f"{os.path.join(*folders[:number])}/"
    text = NO_TOKENS.sub("", file.lower())
    is_code = text.endswith(".py")  # without which others may fail
    return name if not is_code and any(fnmatchcase(text, each) for each in NAMES) else None
