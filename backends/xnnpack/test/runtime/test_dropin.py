"""The drop-in library: what it exports, what it needs, and that a wrong base stops its build."""

import re
import shutil
import sysconfig

import pytest
from executorch.backends.xnnpack.test.runtime.native_build import (
    patchset_module,
    run,
)

DROPIN = "libexecutorch_backend_xnnpack.so"
BASE = "libexecutorch_backend_xnnpack_base.so"
INTERPOSED = {
    "executorch::backends::xnnpack::delegate::getDefineNodeFunc(fb_xnnpack::XNodeUnion)",
    "fb_xnnpack::VerifyXNodeUnion(flatbuffers::Verifier&, void const*, fb_xnnpack::XNodeUnion)",
}


@pytest.fixture
def dropin(package):
    return package / "lib" / DROPIN


@pytest.fixture
def base(package):
    return package / "lib" / BASE


def defined_symbols(library):
    return set(
        line.split(maxsplit=2)[2]
        for line in run("nm", "--dynamic", "--defined-only", "-C", library).splitlines()
    )


def dynamic(library, tag):
    return re.findall(rf"\({tag}\).*\[(.*)\]", run("readelf", "-dW", library))


def test_exports_only_what_it_interposes(dropin):
    assert defined_symbols(dropin) == INTERPOSED


def test_the_released_library_calls_them_through_its_plt(base):
    assert INTERPOSED <= defined_symbols(base)
    relocations = run("readelf", "-rWC", base).splitlines()
    for name in INTERPOSED:
        kinds = {line.split()[2] for line in relocations if name in line}
        assert kinds and all("JUMP_SLOT" in kind for kind in kinds), name


def test_stands_in_for_the_released_library(dropin, base):
    assert dynamic(dropin, "SONAME") == [DROPIN]
    assert dynamic(dropin, "RUNPATH") == ["$ORIGIN"]
    assert dynamic(dropin, "NEEDED")[0] == BASE
    assert dynamic(base, "SONAME") == [BASE]


def test_loads_wherever_the_released_library_does(dropin):
    """No newer symbol versions than those of manylinux_2_28."""
    newest = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11)}
    needed = re.findall(r"Name: (\w+?)_([\d.]+)", run("readelf", "-VW", dropin))
    assert needed
    for library, version in needed:
        numbers = tuple(map(int, version.split(".")))
        assert numbers <= newest.get(library, numbers), (library, version)


@pytest.fixture
def changeable(package, tmp_path):
    """A copy of the package's parts that a build reads."""
    copy = tmp_path / "executorch"
    for part in ("lib", "share", "backends/xnnpack/serialization"):
        shutil.copytree(package / part, copy / part)
    (copy / "include").symlink_to(package / "include")
    return copy


def build_fails(package, directory):
    native = patchset_module("native")
    with pytest.raises(native.PatchsetError) as failure:
        native.cmake(package, directory, sysconfig.get_platform(), ["dropin"])
    return str(failure.value)


def test_a_base_without_the_functions_fails_the_build(changeable, tmp_path):
    shutil.copy(changeable / "lib/libexecutorch_etdump.so", changeable / "lib" / BASE)
    reason = build_fails(changeable, tmp_path / "build")
    assert "undefined reference" in reason and "\n" not in reason


def test_a_schema_without_the_node_fails_the_build(changeable, tmp_path):
    schema = changeable / "backends/xnnpack/serialization/runtime_schema.fbs"
    text = schema.read_text()
    assert "XNNDepthToSpace2d" in text
    schema.write_text(text.replace("XNNDepthToSpace2d", "XNNOther"))
    assert "no XNNDepthToSpace2d" in build_fails(changeable, tmp_path / "build")


def test_a_member_before_the_node_fails_the_build(changeable, tmp_path):
    """Its number would be another one than files have."""
    schema = changeable / "backends/xnnpack/serialization/runtime_schema.fbs"
    text = schema.read_text()
    member = "  XNNCos: _XNNNode1x1,\n"
    assert text.count(member) == 1
    schema.write_text(text.replace(member, f"  XNNOther: _XNNNode1x1,\n{member}"))
    assert "static assertion failed" in build_fails(changeable, tmp_path / "build")
