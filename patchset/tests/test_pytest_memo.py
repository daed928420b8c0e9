"""The plugin gives what the functions give that it remembers."""

from types import SimpleNamespace

import executorch.exir  # noqa: F401, the plugin is off without ExecuTorch
import pytest
import torch

from patchset import pytest_memo


def test_a_pattern_is_exported_once_per_closure_and_each_caller_gets_a_copy():
    calls = []

    def pattern(value):
        return SimpleNamespace(fn=lambda: value)

    def to_graph(pattern, example_inputs, is_cuda=False):
        calls.append((pattern.fn(), *example_inputs))
        return {"nodes": [pattern.fn()]}

    module = SimpleNamespace(_get_aten_graph_module_for_pattern=to_graph)
    pytest_memo.remember_patterns(module)
    one, two = torch.zeros(1), torch.zeros(2)
    for _ in range(2):
        module._get_aten_graph_module_for_pattern(pattern("a"), (one,))["nodes"].clear()
        assert module._get_aten_graph_module_for_pattern(pattern("a"), (one,), False) == {"nodes": ["a"]}
        assert module._get_aten_graph_module_for_pattern(pattern("b"), (one,)) == {"nodes": ["b"]}
        assert module._get_aten_graph_module_for_pattern(pattern("a"), (two,)) == {"nodes": ["a"]}
    assert calls == [("a", one), ("b", one), ("a", two)]


@pytest.fixture
def fresh():
    """An operator with no kernels of Python, as new as it was registered."""
    with torch.library._scoped_library("patchset_memo", "FRAGMENT") as library:
        library.define("f(Tensor x) -> Tensor")
        yield torch.ops.patchset_memo.f.default


def test_a_kernel_is_registered_as_before(fresh):
    keys = torch._C.DispatchKey
    assert fresh.py_impl.__func__.__wrapped__, "the plugin is on in this run"
    fresh._dispatch_cache[keys.CPU] = keys.CPU

    @fresh.py_impl(keys.CPU)
    def kernel(x):
        return x + 1

    assert fresh.py_kernels == {keys.CPU: kernel} and not fresh._dispatch_cache
    with pytest.raises(RuntimeError, match="Trying to override"):
        fresh.py_impl(keys.CPU)(kernel)
    with pytest.raises(AssertionError, match="DispatchKey.Python"):
        fresh.py_impl(keys.Python)(kernel)


def test_composite_operators_are_all_collected():
    from torch._export import utils

    remembering = utils._collect_all_valid_cia_ops
    with torch.library._scoped_library("patchset_memo", "FRAGMENT") as library:
        library.define("composite(Tensor x) -> Tensor")
        library.impl("composite", lambda x: x, "CompositeImplicitAutograd")
        assert torch.ops.patchset_memo.composite.default in remembering()
        assert remembering() == remembering.__wrapped__()
