"""Files that git does not track and whose name is that of a secret are not frozen, and named."""

import shutil
import subprocess

import pytest

from slurm_job_kit.jobs.runs.code_snapshot import source_files

SECRETS = [".ENVRC", ".aws/", ".env", "hf_token", "server.KEY", "tokenizer_secret", "x/.SSH/"]
OTHERS = ["keys.json", "special_tokens_map.json", "test_token.py", "tokenizer.json"]


@pytest.mark.parametrize("is_with_git", [True, False])
def test_a_file_with_the_name_of_a_secret_is_left_out_unless_git_tracks_it(
    tmp_path, capfd, is_with_git
):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for name in (*OTHERS, *(f"{each}config" if each[-1] == "/" else each for each in SECRETS)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    if not is_with_git:
        shutil.rmtree(tmp_path / ".git")
    assert sorted(source_files(tmp_path)) == OTHERS
    named = [each for each in SECRETS if is_with_git or "/." not in f"/{each}"]  # others are hidden
    assert f"(may be secrets): {', '.join(named)}\n  hint: git add" in capfd.readouterr().err
    if is_with_git:
        subprocess.run(["git", "-C", tmp_path, "add", "-f", "."], check=True, capture_output=True)
        assert "x/.SSH/config" in source_files(tmp_path)
        assert not capfd.readouterr().err
