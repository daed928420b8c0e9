import platform
import sys

import pytest

from patchset import PatchsetError, native

OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}.get(platform.machine(), "aarch64")


@pytest.mark.parametrize(
    "tag, machine",
    [
        ("manylinux_2_28_x86_64", "x86_64"),
        ("manylinux_2_28_aarch64", "aarch64"),
        ("linux-x86_64", "x86_64"),
        ("macosx_12_0_arm64", None),
        ("macosx-14.0-arm64", None),
        ("win_amd64", None),
        ("musllinux_1_2_x86_64", None),
        ("manylinux_2_28_i686", None),
    ],
)
def test_platforms_with_a_library(tag, machine):
    assert native.machine(tag) == machine


def test_a_tree_of_another_platform_is_left_alone(tmp_path):
    native.build(tmp_path, "macosx_12_0_arm64")
    assert list(tmp_path.iterdir()) == []


def test_the_released_library_is_set_aside_once(tmp_path, monkeypatch):
    renamed = []
    monkeypatch.setattr(native, "run", renamed.append)
    library, base = (tmp_path / "lib" / name for name in ("libexecutorch_backend_xnnpack.so", native._BASE))
    library.parent.mkdir()
    library.write_text("released")
    native.set_aside(tmp_path)
    assert base.read_text() == library.read_text() == "released"
    assert [command[:3] for command in renamed] == [["patchelf", "--set-soname", native._BASE]]
    library.write_text("drop-in")
    native.set_aside(tmp_path)
    assert base.read_text() == "released" and len(renamed) == 1
    assert sorted(path.name for path in library.parent.iterdir()) == sorted([library.name, base.name])


@pytest.mark.skipif(sys.platform != "linux", reason="cross compilers are for Linux")
def test_a_missing_cross_compiler_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(native.shutil, "which", lambda name, path=None: None if "linux-gnu" in name else name)
    with pytest.raises(
        PatchsetError, match=rf"^{OTHER}-linux-gnu-g\+\+ is needed .*\(Debian: g\+\+-{OTHER}-linux-gnu\)$"
    ):
        native.cmake(tmp_path, tmp_path, f"manylinux_2_28_{OTHER}", [])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is compiled")
def test_a_missing_compiler_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(native.shutil, "which", lambda name, path=None: None)
    with pytest.raises(PatchsetError, match=r"^a C\+\+ compiler is needed \(Debian: g\+\+\)$"):
        native.require_compiler(f"linux-{platform.machine()}")
    assert native.require_compiler("macosx_12_0_arm64") is None


def test_a_missing_tool_is_named(monkeypatch):
    monkeypatch.setattr(native.shutil, "which", lambda name, path=None: None)
    with pytest.raises(PatchsetError, match=r"^ninja is needed .*\(pip install ninja\)$"):
        native.tool("ninja")


@pytest.mark.parametrize(
    "output, cause",
    [
        (
            "CMake Error at CMakeLists.txt:1 (message):\n  a is\n  missing\n\n-- Configuring incomplete\n",
            "a is missing",
        ),
        ("FAILED: a.o\nc++ -Werror a.cpp\na.cpp:1:2: error: no b\n  1 | b\n", "a.cpp:1:2: error: no b"),
        (
            "ld: a.o: undefined reference to `b'\ncollect2: error: ld returned 1\n",
            "ld: a.o: undefined reference to `b'",
        ),
        ("something\nelse\n", "something else"),
    ],
)
def test_a_failed_build_is_told_in_one_line(output, cause, capsys):
    script = f"import sys; sys.stdout.write({output!r}); sys.exit(1)"
    with pytest.raises(PatchsetError) as failure:
        native.run([sys.executable, "-c", script])
    assert str(failure.value) == f"{sys.executable} failed: {cause}"
    assert output in capsys.readouterr().err
