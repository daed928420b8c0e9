"""What stops an installation is told in one line, and at once."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest

from patchset import ROOT

TOOLS = ("make", "sh", "bash", "uname", "mkdir", "find", "sed", "grep", "tail", "test")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the compiler is for Linux")


@pytest.fixture
def make(tmp_path):
    """Runs make on a copy of the Makefile beside empty sources, with a PATH of its own; returns what it prints."""
    for name in ("upstream.lock", "pyproject.toml", "setup.py", "requirements-dev.txt"):
        (tmp_path / name).touch()
    (tmp_path / "patchset").mkdir()
    for name in ("__init__", "compose", "native"):
        (tmp_path / f"patchset/{name}.py").touch()
    shutil.copy(ROOT / "Makefile", tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in TOOLS:
        (tools / name).symlink_to(shutil.which(name))
    (tools / "python3").symlink_to(sys.executable)
    script(tools / "c++", "exit 0")

    def run(*arguments: str, **environment: str) -> str:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE", "MFLAGS", "CXX"))}
        done = subprocess.run(
            ["make", "link", *arguments],
            cwd=tmp_path,
            env=clean | {"PATH": str(tools)} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        assert done.returncode
        *rest, last = done.stdout.splitlines()
        assert last.startswith("make: *** ")
        (error,) = (line for line in rest if not line.startswith("Installing "))
        return error

    return run


def script(path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{shutil.which('sh')}\n{body}\n")
    path.chmod(0o755)


def test_no_python(make):
    assert make("PYTHON=python9") == "error: python9 is not installed; Python 3.10 to 3.14 is needed"


def test_another_python(make, tmp_path):
    script(tmp_path / "tools/python9", "exit 1")
    assert make("PYTHON=python9") == (
        "error: Python 3.10 to 3.14 is needed and python9 is another; make PYTHON=... names one"
    )


def test_no_venv(make, tmp_path):
    script(tmp_path / "tools/python9", 'case "$*" in *ensurepip*) exit 1;; esac')
    assert make("PYTHON=python9") == "error: python9 has no venv module (Debian: the package python3-venv)"


def test_no_compiler(make, tmp_path):
    (tmp_path / "tools/c++").unlink()
    assert make() == "error: a C++ compiler is needed (Debian: the package g++)"
    assert make(CXX="/nope/g++") == "error: a C++ compiler is needed (Debian: the package g++)"


def test_no_index(make, tmp_path):
    """A port that nothing listens on; the real pip."""
    script(tmp_path / ".venv/bin/python", f'exec {shlex.quote(sys.executable)} "$@"')
    assert make(PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_CONFIG_FILE=os.devnull) == (
        "error: pip gets nothing from its index: no network or a wrong index (pip config list; build/install.log)"
    )


@pytest.mark.parametrize(
    "output, reason",
    [
        (
            "  error: patchset: fold.toml: a.py: anchor matches 0 lines, not one  \\nERROR: Failed building executorch\\n",
            "patchset: fold.toml: a.py: anchor matches 0 lines, not one",
        ),
        (
            "ERROR: Could not find a version\\nERROR:  No matching distribution found for x  \\n",
            "pip: No matching distribution found for x",
        ),
    ],
)
def test_a_failed_installation_names_its_cause_once(make, tmp_path, output, reason):
    script(tmp_path / ".venv/bin/python", f"case \"$*\" in *' install '*) printf '{output}'; exit 1;; esac")
    assert make() == f"error: {reason} (whole log: build/install.log)"
