"""Builds of CMakeLists.txt for tests, and runs of the executor_runner they make."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import List, NoReturn, Sequence, Tuple

import executorch.backends.xnnpack
import pytest
import torch

CHECKOUT = Path(__file__).resolve().parents[4]
# The installed package, which the native library is part of.
PACKAGE = Path(executorch.backends.xnnpack.__path__[0]).parents[1]


def leave_out(reason: str) -> NoReturn:
    """Skips, but where nothing may be left out, fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def patchset_module(name: str):
    """A module of the build, which is in the checkout and not in the wheel."""
    if not (CHECKOUT / "patchset").is_dir():
        leave_out("needs the checkout of the patch set, with CMakeLists.txt")
    if str(CHECKOUT) not in sys.path:
        sys.path.append(str(CHECKOUT))
    return importlib.import_module(f"patchset.{name}")


def run_file(
    command: Sequence, model: bytes, inputs: Sequence[torch.Tensor], directory: Path
) -> List[bytes]:
    """Runs the .pte file `model` with `command`, a runner and its flags; returns the
    outputs' raw bytes."""
    (directory / "model.pte").write_bytes(model)
    names = []
    for i, tensor in enumerate(inputs):
        names.append(directory / f"in-{i}.bin")
        names[-1].write_bytes(tensor.contiguous().numpy().tobytes())
    run(
        *command,
        f"--model_path={directory / 'model.pte'}",
        f"--inputs={','.join(map(str, names))}",
        f"--output_file={directory / 'out'}",
        "--print_output=none",
    )
    count = len(list(directory.glob("out-*.bin")))
    return [(directory / f"out-{i}.bin").read_bytes() for i in range(count)]


def run(*command) -> str:
    """Standard output of a command that must succeed."""
    status, out, err = run_any(*command)
    assert status == 0, f"exit {status}: {err}"
    return out


def run_any(*command) -> Tuple[int, str, str]:
    result = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=600,
    )
    return result.returncode, result.stdout, result.stderr
