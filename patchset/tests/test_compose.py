import email
import subprocess
import zipfile

import pytest
from packaging.metadata import Metadata
from wheel.wheelfile import WheelFile

from patchset import REQUIRES, ROOT, PatchsetError, compose, hooks, native, plan, upstream

from .conftest import FILES, METADATA, make_wheel, pip, site_of, snapshot, write_lock

INFO = "executorch-1.5.1+xnnpack.1.dist-info"


def read_all(wheel) -> dict[str, bytes]:
    """The files of a wheel; reading through WheelFile checks each against RECORD."""
    with WheelFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def test_files_of_the_composed_wheel(project):
    wheel = compose.compose(project.root / "dist", root=project.root)
    assert wheel == project.root / "dist/executorch-1.5.1+xnnpack.1-py3-none-any.whl"
    files = read_all(wheel)
    expected = {n.replace("executorch-1.5.1.dist-info", INFO): t.encode() for n, t in FILES.items()}
    expected["executorch/backends/xnnpack/fold.py"] = b"VALUE = 1\n"
    expected["executorch/backends/xnnpack/test/test_fold.py"] = b"import fold\n"
    expected["executorch/backends/xnnpack/partitioner.py"] = (
        b"import a\n\n\nimport fold\nclass Partitioner:\n    x = 1\n    y = 2\n"
    )
    assert files.keys() == expected.keys() | {f"{INFO}/WHEEL", f"{INFO}/RECORD"}
    for name in expected.keys() - {f"{INFO}/METADATA"}:
        assert files[name] == expected[name], name
    recorded = {line.split(",")[0] for line in files[f"{INFO}/RECORD"].decode().splitlines()}
    assert recorded == files.keys()
    with zipfile.ZipFile(wheel) as archive:
        assert archive.getinfo("executorch/lib/libdelegate.so").external_attr >> 16 & 0o111


def test_metadata_differs_in_version_and_torch_only(project):
    text = read_all(compose.compose(project.root / "dist", root=project.root))[f"{INFO}/METADATA"].decode()
    head, _, body = METADATA.partition("\n\n")
    assert text == head.replace("1.5.1", "1.5.1+xnnpack.1") + "\nRequires-Dist: torch==2.13.0\n\n" + body


def test_the_same_input_gives_the_same_bytes(project, tmp_path):
    first, second = (compose.compose(tmp_path / name, root=project.root) for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_the_platform_tag_is_kept(project, monkeypatch, tmp_path):
    tag = "cp312-cp312-manylinux_2_28_aarch64"
    arm = make_wheel(tmp_path, tag)
    write_lock(upstream.LOCK, arm)
    monkeypatch.setenv("EXECUTORCH_WHEEL", str(arm))
    wheel = compose.compose(tmp_path / "dist", root=project.root)
    assert wheel.name == f"executorch-1.5.1+xnnpack.1-{tag}.whl"
    assert f"Tag: {tag}\n".encode() in read_all(wheel)[f"{INFO}/WHEEL"]


def test_the_native_part_is_built_where_the_project_has_one(project, monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(native, "build", lambda tree, platform: calls.append((tree / "executorch/lib", platform)))
    compose.compose(tmp_path / "dist", root=project.root)
    assert calls == []
    project.write("CMakeLists.txt", "")
    compose.compose(tmp_path / "dist", root=project.root)
    ((library, platform),) = calls
    assert platform == "any" and library.parts[-2:] == ("executorch", "lib")


def test_a_broken_hook_leaves_no_wheel(project, tmp_path):
    project.write("hooks/fold.toml", (project.root / "hooks/fold.toml").read_text().replace("^class Part", "^class Pu"))
    with pytest.raises(PatchsetError, match="^fold.toml: .*: anchor matches 0 lines, not one$"):
        compose.compose(tmp_path / "dist", root=project.root)
    assert not list((tmp_path).glob("dist/*"))


def test_install_and_uninstall_leave_nothing(project, environment, tmp_path):
    before = snapshot(site_of(environment))
    pip(environment, "install", "--no-deps", compose.compose(tmp_path / "dist", root=project.root))
    assert (site_of(environment) / "executorch/backends/xnnpack/fold.py").is_file()
    assert (environment / "bin/flatc").is_file()
    pip(environment, "uninstall", "-y", "executorch")
    assert snapshot(site_of(environment)) == before
    assert not (site_of(environment) / "executorch").exists()
    assert not (environment / "bin/flatc").exists()


def test_this_set_on_the_released_wheel(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "build", lambda tree, platform: None)
    released = upstream.fetch()
    files, stock = read_all(compose.compose(tmp_path)), read_all(released)
    metadata = Metadata.from_email(files[f"{INFO}/METADATA"])
    original = Metadata.from_email(stock["executorch-1.5.1.dist-info/METADATA"])
    assert str(metadata.version) == upstream.version()
    assert list(map(str, metadata.requires_dist)) == [*map(str, original.requires_dist), *REQUIRES]
    assert email.message_from_bytes(files[f"{INFO}/METADATA"]).get_payload() == original.description

    inserts = hooks.by_file(hooks.load(ROOT / "hooks"), source_only=False)
    changed = {f"executorch/{file}" for file in inserts}
    new = {f"executorch/{file}" for file in plan.new_files()}
    renamed = {name.replace("executorch-1.5.1.dist-info", INFO): data for name, data in stock.items()}
    assert files.keys() == renamed.keys() | new
    different = {name for name in renamed if renamed[name] != files[name]}
    assert different == changed | {f"{INFO}/METADATA", f"{INFO}/RECORD"}


def test_a_failing_tool_is_told_in_one_line(project, monkeypatch, tmp_path):
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nKeyError: 'x'\n")
    monkeypatch.setattr(compose.subprocess, "run", lambda *args, **kwargs: failed)
    with pytest.raises(PatchsetError, match="^wheel unpack: KeyError: 'x'$"):
        compose.compose(tmp_path / "dist", root=project.root)
