"""The aarch64 wheel, composed here and run under emulation, against eager."""

import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from executorch.backends.xnnpack import custom_ops_lib  # noqa: F401, the operator
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.test.deconvolutions import build_all
from executorch.backends.xnnpack.test.lowered import lower
from executorch.backends.xnnpack.test.runtime.native_build import (
    leave_out,
    patchset_module,
    run,
    run_file,
)
from executorch.backends.xnnpack.utils.target_runtime import PATCHED, STOCK

PLATFORM = "manylinux_2_28_aarch64"
SYSROOT = Path("/usr/aarch64-linux-gnu")
# XNNPACK chooses its kernels by processor: the first has no half-precision
# arithmetic, the second has, the last has every optional instruction.
PROCESSORS = ("cortex-a53", "cortex-a76", "max")


@pytest.fixture(scope="module")
def arm64_package(tmp_path_factory):
    """The package in the composed aarch64 wheel."""
    for tool, debian in (
        ("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu"),
        ("qemu-aarch64", "qemu-user"),
    ):
        if shutil.which(tool) is None:
            leave_out(f"arm64 is left out: {tool} is missing (Debian: {debian})")
    directory = tmp_path_factory.mktemp("arm64")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("EXECUTORCH_WHEEL", raising=False)  # it is for this processor
        wheel = patchset_module("compose").compose(directory / "dist", PLATFORM)
    assert wheel.name.endswith("aarch64.whl")
    zipfile.ZipFile(wheel).extractall(directory)
    return directory / "executorch"


@pytest.fixture(scope="module")
def runners(arm64_package, tmp_path_factory):
    """The cross-compiled executor_runner, as a command per processor."""
    directory = tmp_path_factory.mktemp("cross")
    patchset_module("native").cmake(
        arm64_package, directory, PLATFORM, ["executor_runner"]
    )
    return [
        ["qemu-aarch64", "-cpu", cpu, "-L", SYSROOT, directory / "executor_runner"]
        for cpu in PROCESSORS
    ]


class Upscale(torch.nn.Module):
    """Depth-to-space between convolutions, several channels and blocks of two sizes."""

    def __init__(self, block_size):
        super().__init__()
        torch.manual_seed(0)
        self.block_size = block_size
        self.before = torch.nn.Conv2d(3, 6 * block_size**2, 3, padding=1)
        self.after = torch.nn.Conv2d(6, 5, 3, padding=1)

    def forward(self, x):
        x = torch.relu(self.before(x))
        return self.after(torch.ops.et_xnnpack.depth_to_space_2d(x, self.block_size))


TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3}


@pytest.mark.parametrize("target", [PATCHED, STOCK])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("block_size", [2, 3])
def test_equals_eager(runners, tmp_path, target, dtype, block_size):
    model = Upscale(block_size).eval().to(dtype)
    x = torch.randn(2, 3, 9, 7, generator=torch.manual_seed(1)).to(dtype)
    lowered = lower(model, (x,), [XnnpackPartitioner(target_runtime=target)])
    assert not lowered.outside() and lowered.delegates() == 1
    nodes = lowered.census()
    assert nodes["XNNDepthToSpace2d"] == (1 if target == PATCHED else 0)
    assert nodes["XNNStaticReshape"] == (0 if target == PATCHED else 2)

    for runner in runners:
        (out,) = run_file(runner, lowered.buffer, (x,), tmp_path)
        out = torch.frombuffer(bytearray(out), dtype=dtype)
        tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
        torch.testing.assert_close(out, model(x).flatten(), **tolerance)


@pytest.mark.parametrize("target", [PATCHED, STOCK])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_order_is_exact(runners, tmp_path, target, dtype):
    """Data movement alone: all values different and representable."""

    class Move(torch.nn.Module):
        def forward(self, x):
            return torch.ops.et_xnnpack.depth_to_space_2d(x, 2)

    x = torch.arange(3 * 8 * 5 * 7).reshape(3, 8, 5, 7).to(dtype)
    lowered = lower(Move(), (x,), [XnnpackPartitioner(target_runtime=target)])
    assert lowered.delegates() == 1
    for runner in runners:
        (out,) = run_file(runner, lowered.buffer, (x,), tmp_path)
        out = torch.frombuffer(bytearray(out), dtype=dtype)
        assert torch.equal(out, Move()(x).flatten())


@pytest.mark.parametrize("target", [PATCHED, STOCK])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_depthwise_transposed_convolutions(runners, tmp_path, target, dtype):
    """The files that the tests of the rewrite run on this processor."""
    model, inputs, nodes = build_all(dtype)
    lowered = lower(model, inputs, [XnnpackPartitioner(target_runtime=target)])
    census = lowered.census()
    assert census["XNNDepthwiseConv2d"] == nodes["XNNDepthwiseConv2d"]
    assert census["XNNDepthToSpace2d"] == (
        nodes["XNNDepthToSpace2d"] if target == PATCHED else 0
    )
    expected = model(*inputs)
    for runner in runners:
        outputs = run_file(runner, lowered.buffer, inputs, tmp_path)
        for out, reference in zip(outputs, expected, strict=True):
            out = torch.frombuffer(bytearray(out), dtype=dtype)
            tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
            torch.testing.assert_close(out, reference.flatten(), **tolerance)


def test_the_wheel_holds_both_libraries_for_arm64(arm64_package):
    for name in ("", "_base"):
        library = arm64_package / "lib" / f"libexecutorch_backend_xnnpack{name}.so"
        assert "AArch64" in run("readelf", "-h", library)
