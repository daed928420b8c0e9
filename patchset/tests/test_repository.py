"""This repository's own set, against the released wheel."""

import os
import subprocess
import sys

import pytest

from patchset import ROOT, check, upstream


def test_the_set_has_no_problems():
    assert list(check.problems(upstream.Pristine(upstream.fetch()))) == []


def test_the_command_line_tells_a_problem_in_one_line(tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "patchset", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert run("table").stdout == check.table(check.hooks.load(ROOT / "hooks"))
    failed = run("check", "--checkout", "/nope")
    reason = "/nope: no source checkout of upstream, it has no backends/xnnpack"
    assert (failed.returncode, failed.stderr) == (1, f"patchset: {reason}\n")
    failed = run("export", str(tmp_path))
    assert (failed.returncode, failed.stderr) == (1, f"patchset: {tmp_path}: not the top of a git checkout\n")


@pytest.mark.parametrize("missing", ["packaging", "wheel"])
def test_a_python_without_the_modules_of_the_build_is_told_what_to_install(tmp_path, missing):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, *rest):\n"
        f"        if name.partition('.')[0] == {missing!r}:\n"
        f"            raise ModuleNotFoundError('gone', name={missing!r})\n"
        "sys.meta_path.insert(0, Without())\n"
    )
    command = [sys.executable, "-m", "patchset", "compose", "-o", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    advice = f"pip install {missing}, or use .venv/bin/python, which make link prepares"
    assert (done.returncode, done.stderr) == (1, f"patchset: {sys.executable} has no module {missing}: {advice}\n")
