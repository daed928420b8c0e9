import shutil
import subprocess
import sys

import pytest

from patchset import ROOT, compose


@pytest.fixture
def build(project, tmp_path):
    """Let pip use setup.py on the small project; returns its output and the wheels that it wrote."""
    shutil.copytree(ROOT / "patchset", project.root / "patchset", ignore=shutil.ignore_patterns("tests", "__pycache__"))
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, project.root)

    def run(*arguments: str):
        command = [sys.executable, "-m", "pip", *arguments, "--no-build-isolation", "--no-deps", "--no-index"]
        done = subprocess.run(command, cwd=project.root, capture_output=True, text=True)
        return [line.strip() for line in (done.stdout + done.stderr).splitlines()], sorted(tmp_path.glob("out/*.whl"))

    return run


def test_pip_builds_the_composed_wheel(project, build, tmp_path):
    before = {path.name for path in project.root.iterdir()}
    _, (wheel,) = build("wheel", ".", "-w", str(tmp_path / "out"))
    assert wheel.read_bytes() == compose.compose(tmp_path / "direct", root=project.root).read_bytes()
    assert {path.name for path in project.root.iterdir()} == before | {"build"}


def test_a_broken_set_stops_pip_with_one_line(project, build, tmp_path):
    (project.root / "exir").mkdir()
    (project.root / "exir/program.py").write_text("")
    output, wheels = build("wheel", ".", "-w", str(tmp_path / "out"))
    assert "error: patchset: exir/program.py: a new file of the set, but upstream ships it" in output
    assert not wheels and not [line for line in output if line.startswith("Traceback")]


@pytest.mark.parametrize("kind", ["editable", "sdist"])
def test_anything_but_a_wheel_is_refused_with_advice(build, project, tmp_path, kind):
    code = f"import setuptools.build_meta as backend; backend.build_{kind}({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=project.root, capture_output=True, text=True)
    advice = "error: patchset: only wheels are built; python -m patchset link serves for editing in place"
    assert done.returncode == 1 and advice in done.stderr.splitlines()
