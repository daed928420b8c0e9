"""This repository's own set, against the released wheel."""

import subprocess
import sys

from patchset import ROOT, check, upstream


def test_the_set_has_no_problems():
    assert list(check.problems(upstream.Pristine(upstream.fetch()))) == []


def test_the_command_line_tells_a_problem_in_one_line(tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "patchset", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert run("table").stdout == check.table(check.hooks.load(ROOT / "hooks"))
    failed = run("export", str(tmp_path))
    assert (failed.returncode, failed.stderr) == (1, f"patchset: {tmp_path}: not the top of a git checkout\n")
