"""Secrets that git does not track are no part of the frozen code, and are named."""

import os
import shutil
import subprocess

import pytest

from slurm_job_kit.jobs.runs import code_secrets
from slurm_job_kit.jobs.runs.code_snapshot import source_files

LETTERS = "aB3" * 40
SECRETS = {  # put together here, so that no scanner takes this file for a leak
    "hf_": f"hf_{LETTERS[:34]}",
    "ghp_": f"ghp_{LETTERS[:36]}",
    "gho_": f"gho_{LETTERS[:36]}",
    "ghs_": f"ghs_{LETTERS[:36]}",
    "github_pat_": f"github_pat_{LETTERS[:22]}_{LETTERS[:59]}",
    "sk-": f"sk-{LETTERS[:48]}",
    "sk- project": f"sk-proj-{LETTERS[:20]}-{LETTERS[:20]}_{LETTERS[:20]}",
    "sk- ant": f"sk-ant-api03-{LETTERS[:90]}",
    "AKIA": f"AKIA{'Q7' * 8}",
    "-----BEGIN": "-----BEGIN PRIVATE " + "KEY-----",
    "-----BEGIN ssh": "-----BEGIN OPENSSH PRIVATE " + "KEY-----\nb3BlbnNzaC1rZXk",
}
NO_SECRETS = [
    *("import sklearn  # sk-learn", "css: sk-toggleable__label-arrow", "hf_model_name = 1"),
    *(f"task-{'0af1' * 8}", "ghp_", "sk-proj-short", "AKIA", f"AKIA{'Q7' * 9}", "xAKIA" + "Q7" * 8),
    *("-----BEGIN CERTIFICATE-----", "-----BEGIN PUBLIC KEY-----", "github_pat_docs"),
]


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


def write(folder, *names, text="x"):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def add(folder):
    subprocess.run(["git", "-C", folder, "add", "-f", "."], check=True, capture_output=True)


def test_a_file_with_the_name_of_a_secret_is_left_out_unless_git_tracks_it(repository, capfd):
    secrets = [
        *(".env", ".env.local", ".ENVRC", "deploy/server.pem", "server.KEY", "id_rsa", ".netrc"),
        *(".bash_history", "hf_token", "HF_TOKEN.txt", "my-secret.yaml", "client_secret.json"),
        *("tokenizer.key", "tokenizer_secret", "token_tokenizer.txt"),
        *("aws_credentials", ".git-credentials", ".jwt", "x.jwt", "kubeconfig", ".pypirc"),
    ]
    others = [
        *("id_map.py", "secrets.py", "test_token.py", "a.txt", "history.csv", "keys.json"),
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenize.sh"),
    ]
    write(repository, *secrets, *others)
    assert {*source_files(repository)} == {*others}
    line = f"those of secrets: {', '.join(sorted(secrets))}\n  hint: git add"
    assert line in capfd.readouterr().err
    add(repository)
    assert {*source_files(repository)} == {*secrets, *others}
    assert "secrets" not in capfd.readouterr().err


def test_folders_of_secrets_are_left_out_and_named_once(repository, capfd):
    folders = ["x/.AWS/", *(f"{each}/" for each in sorted(code_secrets.FOLDERS))]
    write(repository, *(f"{each}{name}" for each in folders for name in ("config", "b/c")), "a.py")
    assert [*source_files(repository)] == ["a.py"]
    assert {*folders} == {*capfd.readouterr().err.splitlines()[0].split(": ")[1].split(", ")}
    add(repository)
    assert "x/.AWS/b/c" in source_files(repository)


@pytest.mark.parametrize("name", ["notes.md", "train.py"])
@pytest.mark.parametrize("secret", SECRETS)
def test_a_file_that_has_a_token_is_left_out_unless_git_tracks_it(repository, capfd, name, secret):
    write(repository, name, text=f"import os\nTOKEN = '{SECRETS[secret]}'\n")
    assert not source_files(repository)
    assert f"secrets: {name} ({secret.split()[0]}" in capfd.readouterr().err
    add(repository)
    assert [*source_files(repository)] == [name]


def test_words_and_large_files_are_no_secrets(repository):
    write(repository, "a.py", text="\n".join(NO_SECRETS))
    write(repository, "large", text=SECRETS["hf_"] + " " * code_secrets.MAX_BYTES)
    assert [*source_files(repository)] == ["a.py", "large"]


def test_without_git_all_files_are_looked_at(repository, capfd):
    write(repository, "my_token", "a.py")
    write(repository, "notes.md", text=SECRETS["ghp_"])
    add(repository)
    shutil.rmtree(repository / ".git")
    assert [*source_files(repository)] == ["a.py"]
    assert "my_token, notes.md (ghp_...)\n" in capfd.readouterr().err


def test_an_inner_repository_tracks_its_own(repository):
    inner = repository / "libs"
    subprocess.run(["git", "init", "-q", inner], check=True)
    write(inner, "api_token", "x.py")
    write(inner, "notes.md", text=SECRETS["ghp_"])
    assert [*source_files(repository)] == ["libs/x.py"]
    add(inner)
    assert {"libs/api_token", "libs/notes.md"} < source_files(repository).keys()


def test_a_link_to_a_token_stays_a_link(repository, tmp_path):
    write(tmp_path, "outside", text=SECRETS["hf_"])
    os.symlink(tmp_path / "outside", repository / "a.txt")
    assert [*source_files(repository)] == ["a.txt"]
