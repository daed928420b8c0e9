"""The hooks of sources that no wheel has, on a checkout of which only the lines that they refer to are real."""

import pytest

from patchset import ROOT, check, hooks, upstream

SOURCES = {
    "backends/xnnpack/runtime/XNNCompiler.cpp": """\
#include <executorch/backends/xnnpack/runtime/XNNCompiler.h>
#include <executorch/backends/xnnpack/runtime/XNNHeader.h>
switch (type) {
    _DEFINE(Copy)
}
""",
    "shim_et/xplat/executorch/build/build_variables.bzl": """\
SOURCES = [
    "runtime/XNNCompiler.cpp",
    "runtime/XNNExecutor.cpp",
]
""",
}


@pytest.fixture
def pristine():
    return upstream.Pristine(upstream.fetch())


@pytest.fixture
def checkout(pristine, tmp_path):
    for file in hooks.by_file(hooks.load(ROOT / "hooks"), source_only=True):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(SOURCES[file].encode() if file in SOURCES else pristine.read(file))
    return tmp_path


def problems(pristine, checkout):
    return set(check.problems(pristine, checkout=checkout)) - set(check.problems(pristine))


def test_they_fit(pristine, checkout):
    assert problems(pristine, checkout) == set()
    inserts = hooks.by_file(hooks.load(ROOT / "hooks"), source_only=True)
    compiler, variables = (hooks.apply(text, inserts[file]) for file, text in SOURCES.items())
    assert compiler.splitlines()[1] == "#include <executorch/backends/xnnpack/runtime/XNNDepthToSpace.h>"
    assert compiler.splitlines()[5] == "    _DEFINE(DepthToSpace2d)"
    assert '    "runtime/XNNDepthToSpace.cpp",\n' in variables


@pytest.mark.parametrize("file", SOURCES)
def test_a_checkout_that_has_moved_on_is_reported(pristine, checkout, file):
    (checkout / file).write_text("nothing\n")
    (problem,) = problems(pristine, checkout)
    assert problem.startswith(f"depth-to-space-runtime.toml: {file}: ")
    assert problem.endswith("anchor matches 0 lines, not one")
