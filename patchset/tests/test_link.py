import os
import shutil
from pathlib import Path

import pytest

from patchset import PatchsetError, compose, link, upstream

from .conftest import make_environment, pip, site_of, snapshot

FOLD = "executorch/backends/xnnpack/fold.py"
HOOKED = "executorch/backends/xnnpack/partitioner.py"


@pytest.fixture(scope="session")
def installed() -> dict[str, Path]:
    """Environments to copy, by what is installed in them."""
    return {}


@pytest.fixture(params=["stock", "composed"])
def site(request, project, installed, tmp_path, tmp_path_factory):
    """site-packages of tmp_path/environment, with the small upstream wheel or with the composed one."""
    if request.param not in installed:
        wheel = project.wheel if request.param == "stock" else compose.compose(tmp_path / "dist", root=project.root)
        made = make_environment(tmp_path_factory.mktemp(request.param))
        pip(made, "install", "--no-deps", wheel)
        installed[request.param] = made
    return site_of(shutil.copytree(installed[request.param], tmp_path / "environment", symlinks=True))


def relink(project, site) -> int:
    return link.link(project.hooks(), project.pristine(), site, project.root)


def record(site) -> dict[str, str]:
    (path,) = site.glob("executorch-*.dist-info/RECORD")
    return dict(line.split(",", 1) for line in path.read_text().splitlines())


def test_new_files_are_live_and_hooked_files_written(project, site):
    assert relink(project, site) > 0
    assert (site / FOLD).resolve() == project.root / "backends/xnnpack/fold.py"
    assert "import fold\n" in (site / HOOKED).read_text()
    assert record(site)[FOLD] == record(site)[HOOKED] == ","
    assert relink(project, site) == 0
    project.write("backends/xnnpack/fold.py", "VALUE = 2\n")
    assert (site / FOLD).read_text() == "VALUE = 2\n"


def test_a_changed_hook_is_written_anew_and_stale_byte_code_dropped(project, site):
    relink(project, site)
    cached = (site / HOOKED).parent / "__pycache__" / "partitioner.cpython-311.pyc"
    cached.parent.mkdir(exist_ok=True)
    cached.write_bytes(b"")
    path = project.root / "hooks/fold.toml"
    path.write_text(path.read_text().replace("import fold\n", "import lodf\n"))
    assert relink(project, site) == 1
    assert "import lodf\n" in (site / HOOKED).read_text() and not cached.exists()


def test_what_has_gone_from_the_checkout_goes_from_the_environment(project, site):
    relink(project, site)
    (project.root / "backends/xnnpack/fold.py").rename(project.root / "backends/xnnpack/folded.py")
    (project.root / "backends/xnnpack/test/test_fold.py").unlink()
    (project.root / "hooks/fold.toml").unlink()
    relink(project, site)
    assert not os.path.lexists(site / FOLD) and FOLD not in record(site)
    assert (site / FOLD).with_name("folded.py").is_symlink()
    assert not (site / FOLD).with_name("test").exists()
    assert (site / HOOKED).read_bytes() == project.pristine().read("backends/xnnpack/partitioner.py")
    assert record(site)[HOOKED].startswith("sha256=")


def test_without_a_set_the_released_state_comes_back(project, environment):
    pip(environment, "install", "--no-deps", "--no-compile", project.wheel)
    site, before = site_of(environment), snapshot(site_of(environment))
    relink(project, site)
    assert snapshot(site) != before
    for path in ("hooks/fold.toml", "backends/xnnpack/fold.py", "backends/xnnpack/test/test_fold.py"):
        (project.root / path).unlink()
    relink(project, site)
    assert snapshot(site) == before


def test_the_compiled_part_is_left_alone(project, site):
    library = site / "executorch/lib/libdelegate.so"
    library.write_text("built here")
    (site / "executorch/lib/libbase.so").write_text("released")
    (path,) = site.glob("executorch-*.dist-info/RECORD")
    path.write_text(path.read_text() + "executorch/lib/libbase.so,,\n")
    relink(project, site)
    assert library.read_text() == "built here"
    assert (site / "executorch/lib/libbase.so").exists()


@pytest.mark.parametrize("make", [os.link, os.symlink])
def test_nothing_is_written_through_a_link(project, site, tmp_path, make):
    cache = tmp_path / "cache.py"
    os.replace(site / HOOKED, cache)
    make(cache, site / HOOKED)
    content = cache.read_bytes() + b"# cached\n"
    cache.write_bytes(content)
    relink(project, site)
    assert cache.read_bytes() == content
    assert "import fold\n" in (site / HOOKED).read_text() and not (site / HOOKED).is_symlink()


def test_uninstall_leaves_nothing_and_keeps_the_checkout(project, site, tmp_path):
    relink(project, site)
    sources = snapshot(project.root)
    pip(tmp_path / "environment", "uninstall", "-y", "executorch")
    assert not [p for p in site.rglob("*") if "executorch" in p.as_posix()]
    assert snapshot(project.root) == sources


def test_reinstall_restores_the_release_and_keeps_the_checkout(project, site, tmp_path):
    relink(project, site)
    sources = snapshot(project.root)
    wheels = project.wheel.parent
    options = ("--force-reinstall", "--no-deps", "--no-index", "-f", wheels)
    pip(tmp_path / "environment", "install", *options, "executorch==1.5.1")
    assert snapshot(project.root) == sources
    installed = {n: d for n, d in snapshot(site / "executorch").items() if "__pycache__" not in n}
    assert installed == {file: project.pristine().read(file) for file in project.pristine().files}
    assert [p.name for p in site.glob("executorch-*")] == ["executorch-1.5.1.dist-info"]


def test_another_or_no_installation_is_refused(project, environment, monkeypatch):
    site = site_of(environment)
    with pytest.raises(PatchsetError) as caught:
        relink(project, site)
    advice = "install executorch==1.5.1 or this checkout first"
    assert str(caught.value) == f"{site}: executorch is not installed here; {advice}"

    pip(environment, "install", "--no-deps", project.wheel)
    monkeypatch.setattr(upstream, "read_lock", lambda: ("executorch", "1.5.2", set()))
    with pytest.raises(PatchsetError) as caught:
        relink(project, site)
    assert str(caught.value) == f"{site}: has executorch 1.5.1, the set is for 1.5.2"
    assert not (site / FOLD).exists()


def test_a_file_that_upstream_ships_is_not_replaced_by_a_link(project, site):
    project.write("exir/program.py", "")
    with pytest.raises(PatchsetError, match="^exir/program.py: a new file of the set, but upstream ships it$"):
        relink(project, site)
    assert not (site / "executorch/exir/program.py").is_symlink()
