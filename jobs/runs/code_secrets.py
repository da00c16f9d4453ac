"""Which files of a repository may be secrets: by their names, their folders or their contents."""

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
MAX_BYTES = 64 * 2**10  # of a file whose content is looked at

# How tokens and keys begin, and what follows: so much that `sk-learn` and `hf_model` are none.
# Source: GitHub blog, 2021-04-05, "Behind GitHub's new authentication token formats"; AWS IAM user
# guide, "IAM identifiers"; RFC 7468; of Hugging Face, OpenAI, Anthropic and OpenRouter the rules of
# gitleaks and detect-secrets.
_AFTER = {
    "hf_": "[A-Za-z0-9]{30}",
    **dict.fromkeys(("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"), "[A-Za-z0-9_]{36}"),
    "sk-": "(?:[A-Za-z0-9]{32}|(?:proj|svcacct|admin|ant|or)-[A-Za-z0-9_-]{32})",
    **dict.fromkeys(("AKIA", "ASIA"), r"[A-Z0-9]{16}\b"),
    "-----BEGIN ": "[A-Z0-9 ]*PRIVATE KEY",
}
_WORDS = ("sk-", "AKIA", "ASIA")  # not within a word, such as `task-`


def secret_in(name: str, path: Path) -> str | None:
    """Return what to print of a file that may be a secret; None for another. Raises: OSError.

    name: relative to the repository.
    """
    parts = Path(name).parts
    for number, part in enumerate(parts[:-1], 1):
        if part.lower() in FOLDERS:
            return f"{os.path.join(*parts[:number])}/"
    text = NO_TOKENS.sub("", parts[-1].lower())
    is_code = text.endswith(".py")  # without which others may fail; its content is looked at
    if not is_code and any(fnmatchcase(text, each) for each in NAMES):
        return name
    if path.is_symlink() or path.stat().st_size >= MAX_BYTES:
        return None
    begins = _token_in(path.read_bytes())
    return begins and f"{name} ({begins}...)"


def _token_in(content: bytes) -> str | None:
    """Return how the first token or key in a text begins."""
    for begins in (each for each in _AFTER if each.encode() in content):
        pattern = rf"(?<![A-Za-z0-9]){begins}" if begins in _WORDS else begins
        if re.search((pattern + _AFTER[begins]).encode(), content):
            return begins.strip()
    return None
