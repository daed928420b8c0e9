import subprocess

import pytest

from patchset import PatchsetError, upstream

from .conftest import make_wheel, write_lock


def test_the_lock_of_this_repository_names_every_wheel(monkeypatch):
    name, version, hashes = upstream.read_lock()
    assert (name, version, len(hashes)) == ("executorch", "1.5.1", 20)
    assert upstream.version() == "1.5.1+xnnpack.1"


def test_a_given_wheel_is_taken(project):
    assert upstream.fetch() == project.wheel


def test_a_given_wheel_with_another_hash_is_refused(project):
    with project.wheel.open("ab") as file:
        file.write(b"x")
    with pytest.raises(PatchsetError) as caught:
        upstream.fetch()
    reason = "sha256 is not one that upstream.lock lists for executorch==1.5.1"
    assert str(caught.value) == f"{project.wheel}: {reason}"


def test_a_given_wheel_that_is_not_there_is_refused(project, monkeypatch):
    monkeypatch.setenv("EXECUTORCH_WHEEL", "gone.whl")
    with pytest.raises(PatchsetError, match="^gone.whl: no such wheel$"):
        upstream.fetch()


def test_a_given_wheel_of_another_name_is_refused(project, monkeypatch):
    other = project.wheel.rename(project.wheel.with_name("other-1.5.1-py3-none-any.whl"))
    monkeypatch.setenv("EXECUTORCH_WHEEL", str(other))
    with pytest.raises(PatchsetError) as caught:
        upstream.fetch()
    assert str(caught.value) == f"{other}: file name is not that of a wheel of executorch==1.5.1"


@pytest.fixture
def index(project, monkeypatch):
    """pip finds the small wheel, and one for aarch64, in a directory."""
    arm = make_wheel(project.wheel.parent, "cp312-cp312-manylinux_2_28_aarch64")
    write_lock(upstream.LOCK, project.wheel, arm)
    monkeypatch.delenv("EXECUTORCH_WHEEL")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(project.wheel.parent))
    return project


def test_pip_downloads_once_into_the_cache(index, monkeypatch):
    wheel = upstream.fetch()
    assert wheel.is_relative_to(upstream.CACHE) and wheel.read_bytes() == index.wheel.read_bytes()
    monkeypatch.setattr(subprocess, "run", None)
    assert upstream.fetch() == wheel


def test_a_damaged_cache_is_refused(index):
    wheel = upstream.fetch()
    wheel.write_bytes(b"x")
    with pytest.raises(PatchsetError, match="sha256 is not one that upstream.lock lists"):
        upstream.fetch()


def test_another_target_gets_its_own_wheel(index):
    assert upstream.fetch("manylinux_2_28_aarch64", "3.12").name.endswith("-cp312-cp312-manylinux_2_28_aarch64.whl")
    assert upstream.fetch().name.endswith("-py3-none-any.whl")


def test_pip_checks_the_hash(index):
    write_lock(upstream.LOCK, upstream.LOCK)
    with pytest.raises(PatchsetError, match="^pip cannot download the wheel of upstream.lock: .*[Hh]ash"):
        upstream.fetch()


def test_without_an_index_the_error_is_one_line(index, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    with pytest.raises(PatchsetError) as caught:
        upstream.fetch()
    assert str(caught.value) == (
        "pip cannot download the wheel of upstream.lock: No matching distribution found for executorch==1.5.1"
    )
