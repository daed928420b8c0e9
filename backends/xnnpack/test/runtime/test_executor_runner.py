"""executor_runner: numbers against eager, its flags, and one line on every failure."""

import re
import statistics
from dataclasses import replace
from unittest import mock

import pytest
import torch
from executorch.backends.xnnpack import (  # noqa: F401, the operator
    custom_ops_lib,
    xnnpack_preprocess,
)
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import (
    XNNDepthToSpace2d,
)
from executorch.backends.xnnpack.test.lowered import lower
from executorch.backends.xnnpack.test.runtime.native_build import (
    run,
    run_any,
    run_file,
)
from executorch.backends.xnnpack.utils.target_runtime import PATCHED


class Upscale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.before = torch.nn.Conv2d(3, 20, 3, padding=1)

    def forward(self, x, y):
        up = torch.ops.et_xnnpack.depth_to_space_2d(self.before(x), 2)
        return torch.relu(up), y + y


INPUTS = (torch.randn(2, 3, 5, 7, generator=torch.manual_seed(1)), torch.tensor([3]))


@pytest.fixture(scope="module")
def lowered():
    partitioner = [XnnpackPartitioner(target_runtime=PATCHED)]
    result = lower(Upscale().eval(), INPUTS, partitioner)
    assert result.census()["XNNDepthToSpace2d"] == 1
    return result


@pytest.fixture(scope="module")
def model(lowered, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.pte"
    path.write_bytes(lowered.buffer)
    return path


def test_equals_eager(runner, lowered, tmp_path):
    up, twice = run_file([runner, "--cpu_threads=2"], lowered.buffer, INPUTS, tmp_path)
    expected = Upscale().eval()(*INPUTS)
    up = torch.frombuffer(bytearray(up), dtype=torch.float32)
    torch.testing.assert_close(up, expected[0].flatten(), atol=1e-5, rtol=1e-5)
    assert torch.frombuffer(bytearray(twice), dtype=torch.int64).tolist() == [6]


@pytest.mark.parametrize("executions", [1, 2, 5])
def test_latencies_and_their_median(runner, model, executions):
    out = run(runner, f"--model_path={model}", f"--num_executions={executions}")
    runs = re.findall(r"^run (\d+) of (\d+): ([\d.]+) ms$", out, re.M)
    assert [run[:2] for run in runs] == [
        (str(i + 1), str(executions)) for i in range(executions)
    ]
    (median,) = re.findall(r"^median: ([\d.]+) ms$", out, re.M)
    expected = statistics.median(float(run[2]) for run in runs)
    assert float(median) == pytest.approx(expected, abs=0.0011)


def test_output_printing(runner, model):
    """Without input files, every element is one."""
    expected = Upscale().eval()(*(torch.ones_like(x) for x in INPUTS))[0].flatten()

    def printed(mode):
        out = run(
            runner, "-model_path", model, "--cpu_threads=1", f"--print_output={mode}"
        )
        return [line for line in out.splitlines() if line.startswith("output ")]

    assert printed("none") == []
    for mode, edge in (("all", None), ("summary", 100)):
        up, twice = printed(mode)
        assert twice == "output 1: Long [1]: 2"
        head, values = up.rsplit(": ", 1)
        assert head == "output 0: Float [2, 5, 10, 14]"
        if edge:
            first, last = values.split(" ... ")
            wanted = torch.cat([expected[:edge], expected[-edge:]])
            values = f"{first} {last}"
        else:
            wanted = expected
        numbers = torch.tensor([float(x) for x in values.split()])
        torch.testing.assert_close(numbers, wanted, atol=1e-5, rtol=1e-5)


@pytest.fixture(scope="module")
def files(model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("files")
    (directory / "short").write_bytes(bytes(12))
    (directory / "x").write_bytes(bytes(INPUTS[0].nbytes))
    (directory / "y").write_bytes(bytes(INPUTS[1].nbytes))
    (directory / "no_program").write_bytes(b"no program" * 100)
    return {"model": model, "dir": directory}


@pytest.mark.parametrize(
    "flags, reason",
    [
        (
            "--model_path={dir}/absent",
            "cannot read {dir}/absent: No such file or directory",
        ),
        (
            "--model_path={dir}/no_program",
            "cannot load {dir}/no_program: Error::InvalidProgram (0x23): ",
        ),
        (
            "--model_path={model} --method_name=other",
            "cannot load other of {model}: Error::InvalidArgument (0x12): ",
        ),
        (
            "--model_path={model} --inputs={dir}/x,{dir}/absent",
            "cannot read {dir}/absent: No such file or directory",
        ),
        (
            "--model_path={model} --inputs={dir}/short,{dir}/y",
            "{dir}/short has 12 bytes, input 0 (Float [2, 3, 5, 7]) takes 840",
        ),
        (
            "--model_path={model} --inputs={dir}/x,{dir}/x",
            "{dir}/x has 840 bytes, input 1 (Long [1]) takes 8",
        ),
        (
            "--model_path={model} --inputs={dir}/x",
            "--inputs names 1 files, the method takes 2 inputs",
        ),
        (
            "--model_path={model} --print_output=none --output_file={dir}/absent/out",
            "cannot write {dir}/absent/out-0.bin: No such file or directory",
        ),
        (
            "--model_path={model} --data_path={dir}/absent",
            "cannot read {dir}/absent: No such file or directory",
        ),
        (
            "--num_executions=0",
            "--num_executions must be a positive number, got '0'",
        ),
        ("--cpu_threads=two", "--cpu_threads must be a positive number, got 'two'"),
        (
            "--print_output=some",
            "--print_output must be none, summary or all, got 'some'",
        ),
        ("--model={model} more", "unexpected argument more"),
        ("--iterations=3", "unknown flag --iterations=3"),
        ("--inputs", "flag --inputs needs a value"),
        ("--model_path={model} --inputs=", "--inputs names no file"),
        ("--model_path=", "cannot read : No such file or directory"),
    ],
)
def test_a_failure_is_one_line(runner, files, flags, reason):
    status, _, err = run_any(runner, *flags.format(**files).split())
    assert status == 1
    assert err.startswith(f"executor_runner: {reason.format(**files)}")
    assert err.count("\n") == 1 and err.endswith("\n")


def test_help_lists_the_flags(runner):
    status, out, err = run_any(runner, "--help")
    assert (status, err) == (0, "")
    assert out.startswith("usage: executor_runner [--model_path=FILE] [--inputs=FILE,")
    assert out.count("\n") == 2
    assert run_any(runner) == (1, "", out)


def test_a_hostile_file_is_refused_at_load(runner, tmp_path):
    serialize = xnnpack_preprocess.serialize_xnnpack_binary

    def hostile(graph, *args):
        for node in graph.xnodes:
            if isinstance(node.xnode_union, XNNDepthToSpace2d):
                node.xnode_union = replace(node.xnode_union, block_size=0)
        return serialize(graph, *args)

    with mock.patch.object(xnnpack_preprocess, "serialize_xnnpack_binary", hostile):
        partitioner = [XnnpackPartitioner(target_runtime=PATCHED)]
        buffer = lower(Upscale().eval(), INPUTS, partitioner).buffer
    path = tmp_path / "hostile.pte"
    path.write_bytes(buffer)
    status, out, err = run_any(runner, f"--model_path={path}")
    assert (status, out) == (1, "")
    assert re.fullmatch(
        f"executor_runner: cannot load forward of {re.escape(str(path))}: "
        r"Error::InvalidProgram \(0x23\): XNNDepthToSpace2d, node \d+ "
        r"\(debug handle \d+\): block size is 0, must be 2 or more\n",
        err,
    )
