"""Pytest plugin: lowering derives some things anew each time that are always the same; here, once per process.

It takes half to two thirds of the time off a test that lowers. Only functions without side effects are
remembered, so what a test hands in and looks at stays the same.
"""

import copy
import functools
import sys


def pytest_collection_finish():
    """Runs before the first test, when the modules that tests import are there."""
    if "executorch" not in sys.modules:
        return
    import torch
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer_utils

    remember_patterns(xnnpack_quantizer_utils)
    look_operators_up_once()
    register_kernels_directly(torch._ops.OperatorBase, torch._C.DispatchKey)


def remember_patterns(module) -> None:
    """The quantizer exports twelve patterns per model, each a nested function's closure over plain values."""
    to_graph, graphs = module._get_aten_graph_module_for_pattern, {}

    @functools.wraps(to_graph)
    def remembering(pattern, example_inputs, is_cuda=False):
        function = pattern.fn
        values = tuple(cell.cell_contents for cell in function.__closure__ or ())
        key = (function.__code__, values, tuple((x.shape, x.dtype) for x in example_inputs), is_cuda)
        if key not in graphs:
            graphs[key] = to_graph(pattern, example_inputs, is_cuda)
        return copy.deepcopy(graphs[key])  # callers rewrite it

    module._get_aten_graph_module_for_pattern = remembering


def look_operators_up_once() -> None:
    """Collecting the composite operators looks all of them up again for every namespace."""
    from torch._export import utils
    from torch.export import decomp_utils, exported_program

    collect, materialize = utils._collect_all_valid_cia_ops, utils._materialize_cpp_cia_ops

    @functools.wraps(collect)
    def collecting():
        materialize()
        utils._materialize_cpp_cia_ops = lambda: None
        try:
            return collect()
        finally:
            utils._materialize_cpp_cia_ops = materialize

    for module in (utils, decomp_utils, exported_program):
        module._collect_all_valid_cia_ops = collecting


def register_kernels_directly(operator_class, dispatch_key) -> None:
    """A lowering registers some ten thousand kernels and drops them again; most of that is checks and annotations."""
    py_impl = operator_class.py_impl

    @functools.wraps(py_impl)
    def registering(self, key):
        if type(key) is not dispatch_key or key == dispatch_key.Python or key in self.py_kernels:
            return py_impl(self, key)

        def register(kernel):
            self.py_kernels[key] = kernel
            self._dispatch_cache.clear()
            return kernel

        return register

    operator_class.py_impl = registering
