"""Which runtime a file is written for: the choice, its way, its warning, its files."""

import logging
import os
import subprocess
import sys
import zipfile
from collections import Counter

import pytest
import torch
from executorch.backends.xnnpack import custom_ops_lib  # noqa: F401
from executorch.backends.xnnpack._passes import XNNPACKPassManager
from executorch.backends.xnnpack._passes.xnnpack_pass import XNNPACKPass
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackDynamicallyQuantizedPartitioner,
    XnnpackFloatingPointPartitioner,
    XnnpackPartitioner,
)
from executorch.backends.xnnpack.test.lowered import lower, serialized_graphs
from executorch.backends.xnnpack.utils import target_runtime
from executorch.backends.xnnpack.utils.options import options_of, XnnpackOptions
from executorch.backends.xnnpack.utils.target_runtime import (
    PATCHED,
    resolve_target_runtime,
    STOCK,
    TARGET_RUNTIME_VARIABLE,
)
from executorch.exir import to_edge, to_edge_transform_and_lower
from executorch.exir.backend.backend_api import to_backend
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import Dim, export

depth_to_space_2d = torch.ops.et_xnnpack.depth_to_space_2d


class DepthToSpace(torch.nn.Module):
    def forward(self, x):
        return depth_to_space_2d(x, 2)


class Twice(torch.nn.Module):
    """Two nodes in two partitions, as XNNPACK has no cumsum."""

    def forward(self, x):
        return depth_to_space_2d(torch.cumsum(depth_to_space_2d(x, 2), 1), 2)


X = torch.arange(2 * 8 * 3 * 5.0).reshape(2, 8, 3, 5)


@pytest.fixture
def installed(monkeypatch):
    """Sets whether the runtime of the patch set counts as installed."""
    monkeypatch.delenv(TARGET_RUNTIME_VARIABLE, raising=False)

    def set_installed(value):
        monkeypatch.setattr(target_runtime, "native_library_installed", lambda: value)

    return set_installed


def warnings(caplog):
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and record.name == target_runtime.__name__
    ]


def written_for(census):
    assert census["XNNDepthToSpace2d"] + census["XNNStaticReshape"] // 2 == 1
    return PATCHED if census["XNNDepthToSpace2d"] else STOCK


# The choice


@pytest.mark.parametrize("present, expected", [(True, PATCHED), (False, STOCK)])
def test_default_is_what_is_installed(present, expected, installed):
    installed(present)
    assert resolve_target_runtime() == expected
    assert written_for(_census(XnnpackPartitioner())) == expected
    assert written_for(_census(XnnpackFloatingPointPartitioner())) == expected


def test_installed_is_seen_next_to_the_package(tmp_path, monkeypatch):
    module = tmp_path / "executorch/backends/xnnpack/utils/target_runtime.py"
    monkeypatch.setattr(target_runtime, "__file__", str(module))
    assert not target_runtime.native_library_installed()
    library = tmp_path / "executorch/lib/libexecutorch_backend_xnnpack_base.so"
    library.parent.mkdir(parents=True)
    library.touch()
    assert target_runtime.native_library_installed()


@pytest.mark.skipif(sys.platform != "linux", reason="the library is for Linux")
def test_the_runtime_is_installed_on_linux():
    assert target_runtime.native_library_installed()


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize("target", [PATCHED, STOCK])
def test_the_environment_overrides_the_default(target, present, installed, monkeypatch):
    installed(present)
    monkeypatch.setenv(TARGET_RUNTIME_VARIABLE, target)
    assert written_for(_census(XnnpackPartitioner())) == target
    assert written_for(_census(XnnpackFloatingPointPartitioner())) == target


@pytest.mark.parametrize("target, other", [(PATCHED, STOCK), (STOCK, PATCHED)])
def test_the_argument_overrides_the_environment(target, other, monkeypatch):
    monkeypatch.setenv(TARGET_RUNTIME_VARIABLE, other)
    assert written_for(_census(XnnpackPartitioner(target_runtime=target))) == target


def test_an_empty_variable_is_an_unset_one(installed, monkeypatch):
    installed(False)
    monkeypatch.setenv(TARGET_RUNTIME_VARIABLE, "")
    assert resolve_target_runtime() == STOCK


def test_unknown_values(monkeypatch):
    with pytest.raises(
        ValueError, match="^target_runtime must be one of patched, stock, got 'native'$"
    ):
        XnnpackPartitioner(target_runtime="native")
    monkeypatch.setenv(TARGET_RUNTIME_VARIABLE, "1.5")
    with pytest.raises(ValueError, match=f"^{TARGET_RUNTIME_VARIABLE} must be one of"):
        XnnpackPartitioner()


# The way to passes and visitors


@pytest.mark.parametrize("target", [PATCHED, STOCK])
def test_options_survive_compile_specs(target):
    options = XnnpackOptions(target_runtime=target)
    others = [CompileSpec("dqlinear_partitioner", b"")]
    specs = options.to_compile_specs() + others
    assert XnnpackOptions.from_compile_specs(specs) == options


def test_options_without_specs_are_the_defaults(installed):
    installed(False)
    assert XnnpackOptions.from_compile_specs([]) == XnnpackOptions(STOCK)


@pytest.mark.parametrize(
    "partitioner", [XnnpackPartitioner, XnnpackDynamicallyQuantizedPartitioner]
)
def test_the_choice_is_visible_in_the_delegation_spec(partitioner):
    spec = partitioner(target_runtime=STOCK).delegation_spec
    assert CompileSpec("target_runtime", b'"stock"') in spec.compile_specs


@pytest.mark.parametrize("target", [PATCHED, STOCK])
def test_the_choice_is_visible_in_the_lowered_module(target):
    manager = to_edge_transform_and_lower(
        export(DepthToSpace(), (X,)),
        partitioner=[XnnpackPartitioner(target_runtime=target)],
    )
    lowered = manager.exported_program().graph_module.lowered_module_0
    assert (
        XnnpackOptions.from_compile_specs(lowered.compile_specs).target_runtime
        == target
    )


def test_every_pass_sees_the_options(monkeypatch):
    seen = []

    def recording(base):
        class Recording(base):
            def __init__(self, *args):
                super().__init__(*args)
                if issubclass(base, XNNPACKPass):
                    seen.append(options_of(self.exported_program).target_runtime)

        return Recording

    init = XNNPACKPassManager.__init__

    def with_recording(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.passes = [recording(pass_) for pass_ in self.passes]

    monkeypatch.setattr(XNNPACKPassManager, "__init__", with_recording)
    monkeypatch.setenv(TARGET_RUNTIME_VARIABLE, PATCHED)
    _census(XnnpackPartitioner(target_runtime=STOCK))
    assert len(seen) > 3 and set(seen) == {STOCK}


# The warning


@pytest.mark.parametrize("one_partitioner", [True, False])
def test_one_warning_for_all_partitions_methods_and_partitioners(
    one_partitioner, caplog
):
    programs = {
        name: export(Twice(), (torch.randn(2, 32, 3, 5),))
        for name in ("forward", "other")
    }
    partitioner = [XnnpackPartitioner(target_runtime=PATCHED)]
    if not one_partitioner:
        partitioner = {
            name: [XnnpackPartitioner(target_runtime=PATCHED)] for name in programs
        }
    with serialized_graphs() as graphs:
        to_edge_transform_and_lower(programs, partitioner=partitioner)
    assert len(graphs) == 4
    (message,) = warnings(caplog)
    assert "4 XNNPACK node(s)" in message and "XNNDepthToSpace2d" in message
    assert "target_runtime='stock'" in message
    assert f"{TARGET_RUNTIME_VARIABLE}=stock" in message


def test_each_program_warns(caplog):
    for _ in range(2):
        _census(XnnpackPartitioner(target_runtime=PATCHED))
    assert len(warnings(caplog)) == 2


def test_a_partition_lowered_by_itself_warns_once(caplog):
    class Chain(torch.nn.Module):
        def forward(self, x):
            return depth_to_space_2d(depth_to_space_2d(x, 2), 2)

    program = to_edge(export(Chain(), (torch.randn(1, 16, 2, 2),))).exported_program()
    specs = XnnpackOptions(PATCHED).to_compile_specs()
    to_backend("XnnpackBackend", program, specs)
    (message,) = warnings(caplog)
    assert "2 XNNPACK node(s)" in message


@pytest.mark.parametrize(
    "model, target", [(DepthToSpace(), STOCK), (torch.nn.ReLU(), PATCHED)]
)
def test_no_warning_where_every_runtime_knows_the_nodes(model, target, caplog):
    to_edge_transform_and_lower(
        export(model, (X,)), partitioner=[XnnpackPartitioner(target_runtime=target)]
    )
    assert not warnings(caplog)


def _census(partitioner):
    with serialized_graphs() as graphs:
        to_edge_transform_and_lower(
            export(DepthToSpace(), (X,)), partitioner=[partitioner]
        )
    (graph,) = graphs
    return Counter(type(node.xnode_union).__name__ for node in graph.xnodes)


# The files, on a released runtime

# Runs every case of the first argument's directory on the executorch of the second.
RUN_ON_RELEASED = """
import pathlib, sys
import executorch
work, released = sys.argv[1:]
executorch.__path__ = [released + "/executorch"]
import torch
from executorch.runtime import Runtime
runtime = Runtime.get()
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "/libexecutorch" in line}
assert libraries and all(path.startswith(released) for path in libraries), libraries
for case in pathlib.Path(work).iterdir():
    try:
        program = runtime.load_program(case / "model.pte")
        method = program.load_method("forward")
        result = [method.execute(list(args)) for args in torch.load(case / "inputs.pt")]
    except RuntimeError as error:
        result = str(error)
    torch.save(result, case / "result.pt")
"""


class BetweenConvolutions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.before = torch.nn.Conv2d(8, 12, 3, padding=1)
        self.after = torch.nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        return self.after(torch.relu(depth_to_space_2d(self.before(x), 2)))


class Pads(torch.nn.Module):
    """Convolutions that pad each side by its own amount."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.same = torch.nn.Conv2d(8, 12, 4, padding="same")
        self.depthwise = torch.nn.Conv2d(12, 12, 3, groups=12)

    def forward(self, x):
        x = torch.nn.functional.pad(torch.relu(self.same(x)), (1, 2, 3, 4))
        return self.depthwise(x)


class Int8(torch.nn.Module):
    def forward(self, x):
        quantized = torch.ops.quantized_decomposed
        limits = (0.5, 3, -128, 127, torch.int8)
        for step in (lambda x: x, lambda x: depth_to_space_2d(x, 2)):
            x = quantized.quantize_per_tensor.default(step(x), *limits)
            x = quantized.dequantize_per_tensor.default(x, *limits)
        return x


def inputs_of(dtype, *widths):
    return [
        (torch.linspace(-9, 9, 2 * 8 * 3 * w).reshape(2, 8, 3, w).to(dtype),)
        for w in widths
    ]


# Model, target, inputs for one loaded method; the width is dynamic where it changes.
FILES = {
    "fp32": (DepthToSpace(), STOCK, inputs_of(torch.float32, 5)),
    "fp16": (DepthToSpace(), STOCK, inputs_of(torch.float16, 5)),
    "int8": (Int8(), STOCK, inputs_of(torch.float32, 5)),
    "dynamic": (DepthToSpace(), STOCK, inputs_of(torch.float32, 5, 64, 5)),
    "convolutions": (
        BetweenConvolutions().eval(),
        STOCK,
        inputs_of(torch.float32, 5, 64, 5),
    ),
    "pads": (
        Pads().eval(),
        STOCK,
        inputs_of(torch.float32, 5, 64, 5),
    ),
    "native": (DepthToSpace(), PATCHED, inputs_of(torch.float32, 5)),
}


@pytest.fixture(scope="module")
def on_released(tmp_path_factory):
    """For each of FILES the outputs of the released runtime, or its error's text."""
    upstream = pytest.importorskip(
        "patchset.upstream", reason="the released wheel is found from a checkout"
    )
    released = tmp_path_factory.mktemp("released")
    with zipfile.ZipFile(upstream.fetch()) as wheel:
        wheel.extractall(released)
    work = tmp_path_factory.mktemp("work")
    for name, (model, target, inputs) in FILES.items():
        dynamic_shapes = ({3: Dim("w", min=1, max=64)},) if len(inputs) > 1 else None
        lowered = lower(
            model,
            inputs[0],
            [XnnpackPartitioner(target_runtime=target)],
            dynamic_shapes=dynamic_shapes,
        )
        assert not lowered.outside()
        assert lowered.census()["XNNDepthToSpace2d"] == (target == PATCHED)
        assert not lowered.census()["XNNStaticConstantPad"]
        (work / name).mkdir()
        (work / name / "model.pte").write_bytes(lowered.buffer)
        torch.save(inputs, work / name / "inputs.pt")
    subprocess.run(
        [sys.executable, "-c", RUN_ON_RELEASED, str(work), str(released)],
        env={**os.environ, "PYTHONPATH": str(released)},
        check=True,
    )
    return {name: torch.load(work / name / "result.pt") for name in FILES}


@pytest.mark.parametrize(
    "name, tolerance",
    [("fp32", 0), ("fp16", 0), ("int8", 0), ("dynamic", 0), ("convolutions", 1e-4), ("pads", 1e-4)],
)
def test_stock_files_run_on_the_released_runtime(name, tolerance, on_released):
    model, _, inputs = FILES[name]
    for args, (out,) in zip(inputs, on_released[name], strict=True):
        torch.testing.assert_close(out, model(*args), atol=tolerance, rtol=tolerance)


def test_a_file_with_the_native_node_is_refused_by_the_released_runtime(on_released):
    # NotImplemented of the runtime.
    assert isinstance(on_released["native"], str)
    assert on_released["native"].endswith("0x:11")
