"""A small upstream wheel, and a project with a patch set for it."""

import dataclasses
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from patchset import hooks, upstream

METADATA = """\
Metadata-Version: 2.4
Name: executorch
Version: 1.5.1
Summary: A very long line that must not be folded, however long it may become, since it is upstream's own text, all of it
Requires-Dist: numpy>=2.0.0; python_version >= "3.10"
License-File: LICENSE

A description with an em dash — and a line of two words
"""
FILES = {
    "executorch/__init__.py": "",
    "executorch/backends/xnnpack/partitioner.py": "import a\n\n\nclass Partitioner:\n    x = 1\n    y = 2\n",
    "executorch/backends/xnnpack/visitors.py": "ALL = [\n    1,\n]\n",
    "executorch/backends/xnnpack/schema.fbs": 'include "types.fbs";\ntable Graph {\n  x:Kind;\n}\n',
    "executorch/backends/xnnpack/types.fbs": "enum Kind : byte { A }\n",
    "executorch/exir/program.py": "def lower():\n    return 1\n",
    "executorch/lib/libdelegate.so": "released",
    "executorch-1.5.1.dist-info/METADATA": METADATA,
    "executorch-1.5.1.dist-info/entry_points.txt": "[console_scripts]\nflatc = executorch.data.bin:flatc\n",
    "executorch-1.5.1.dist-info/licenses/LICENSE": "upstream's\n",
}
HOOK = """\
title = "Fold weights"
why = "Weights that are computed are declined."
upstream = "pytorch/executorch#22078"
remove_when = "upstream folds them"
files = ["backends/xnnpack/fold.py", "backends/xnnpack/test/test_fold*.py"]

[[insert]]
file = "backends/xnnpack/partitioner.py"
before = '^class Partitioner:'
text = '''
import fold
'''
"""


def make_wheel(directory: Path, tag: str = "py3-none-any") -> Path:
    """An upstream wheel with FILES."""
    tree = directory / f"tree-{tag}"
    files = FILES | {
        "executorch-1.5.1.dist-info/WHEEL": f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: {tag}\n"
    }
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    (tree / "executorch/lib/libdelegate.so").chmod(0o755)
    subprocess.run(
        [sys.executable, "-m", "wheel", "pack", "--dest-dir", directory, tree], check=True, stdout=subprocess.DEVNULL
    )
    return directory / f"executorch-1.5.1-{tag}.whl"


def write_lock(path: Path, *wheels: Path) -> None:
    hashes = [f"    --hash=sha256:{hashlib.sha256(w.read_bytes()).hexdigest()}" for w in wheels]
    path.write_text("# made by a tool\n" + " \\\n".join(["executorch==1.5.1", *hashes]) + "\n")


@dataclasses.dataclass
class Project:
    """A checkout of a patch set at ``root``, over the upstream wheel ``wheel``."""

    root: Path
    wheel: Path

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def hooks(self) -> list[hooks.Hook]:
        return hooks.load(self.root / "hooks")

    def pristine(self) -> upstream.Pristine:
        return upstream.Pristine(self.wheel)


@pytest.fixture(scope="session")
def small_wheel(tmp_path_factory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("upstream"))


@pytest.fixture
def project(tmp_path, monkeypatch, small_wheel) -> Project:
    """One hook, a new module and its test; EXECUTORCH_WHEEL and upstream.lock point to the small wheel."""
    made = Project(tmp_path / "checkout", Path(shutil.copy(small_wheel, tmp_path)))
    made.write("hooks/fold.toml", HOOK)
    made.write("backends/xnnpack/fold.py", "VALUE = 1\n")
    made.write("backends/xnnpack/test/test_fold.py", "import fold\n")
    write_lock(made.root / "upstream.lock", made.wheel)
    monkeypatch.setattr(upstream, "LOCK", made.root / "upstream.lock")
    monkeypatch.setattr(upstream, "CACHE", made.root / "build" / "upstream")
    monkeypatch.setenv("EXECUTORCH_WHEEL", str(made.wheel))
    return made


def pip(environment: Path, *arguments: str | Path) -> None:
    """Run pip on the virtual ``environment``."""
    command = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python", *arguments]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)


def make_environment(directory: Path) -> Path:
    """An empty virtual environment without pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory / "environment"], check=True)
    return directory / "environment"


@pytest.fixture
def environment(tmp_path) -> Path:
    return make_environment(tmp_path)


def site_of(environment: Path) -> Path:
    (site,) = environment.glob("lib/python3*/site-packages")
    return site


def snapshot(directory: Path) -> dict[str, bytes]:
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*") if p.is_file()}
