"""The Slurms that the tests fetch: their source, their folder, and when one is refused."""

from pathlib import Path

import pytest

from tests.slurm import host, second
from tests.slurm.second import SecondError

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Puts fake commands on PATH, without others: each prints its name to stderr and fails."""
    folder = tmp_path / "fakes"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(second, "KEYRING", folder)

    def install(*names):
        for name in names:
            (folder / name).write_text(f"#!/bin/sh\necho {name} has no network >&2\nexit 100\n")
            (folder / name).chmod(0o755)

    return install


def test_it_comes_from_the_package_source_of_this_machine():
    here = "http://a.example/debian-security/\nhttps://b.example/mirror/debian/\n"
    assert second.mirror(here) == "https://b.example/mirror/debian"
    assert second.mirror("http://c.example/ubuntu/\n") == "http://deb.debian.org/debian"
    assert second.mirror("") == "http://deb.debian.org/debian"


def test_the_variable_names_a_version_a_folder_or_the_installed_one():
    assert host.prefix_of("") is None
    assert host.prefix_of("24.11") == REPOSITORY / ".slurm/24.11"
    assert host.prefix_of("26.05") == REPOSITORY / ".slurm/26.05"
    assert host.prefix_of("/opt/slurm") == Path("/opt/slurm")


def test_a_missing_folder_is_an_error_with_a_hint(tmp_path):
    reason = host.why_not(tmp_path / "24.11")
    assert reason and str(tmp_path / "24.11") in reason and "make" not in reason
    unknown = host.why_not(host.version_folder("1.0"))
    assert unknown and unknown.endswith("make test-on-slurm SLURM=1.0")


def test_a_missing_tool_is_named_with_the_command_that_installs_it(tools, tmp_path):
    tools("apt-get", "dpkg-deb")
    with pytest.raises(SecondError, match="hint: apt-get install patchelf$"):
        second.make(tmp_path / "x", "24.11")


def test_without_debians_tools_the_error_names_another_way(tools, tmp_path):
    with pytest.raises(SecondError, match="no Debian.*\n.*KIT_TEST_SLURM=/"):
        second.make(tmp_path / "x", "24.11")


@pytest.mark.parametrize(("version", "suite"), second.VERSIONS.items())
def test_a_failed_fetch_shows_the_error_and_leaves_no_files(
    tools, tmp_path, capsys, version, suite
):
    tools("apt-get", "dpkg-deb", "patchelf")
    with pytest.raises(SecondError, match="exit 100\napt-get has no network$"):
        second.make(tmp_path / "made/x", version)
    assert list((tmp_path / "made").iterdir()) == []
    assert f"Slurm {version} from Debian {suite}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["1.0"], ["24.11", "26.05"]])
def test_a_version_that_no_debian_release_is_known_for_is_refused(arguments, capsys):
    assert second.main(arguments) == 2
    assert capsys.readouterr().err.endswith("name one of 24.11, 26.05\n")
