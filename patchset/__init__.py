"""The build: puts hooks and new files on top of the released ExecuTorch."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REVISION = 1  # the N of the version 1.5.1+xnnpack.N
REQUIRES = ("torch==2.13.0",)  # the release that the binaries of the upstream wheel are built for


class PatchsetError(Exception):
    """A reason to stop, told in one line."""
