"""Every prefix of the exported series can be imported: hooks stand behind those whose modules and names they import."""

import pytest

from patchset import PatchsetError, check, hooks, order, plan

HEADER = 'title = "{0}"\nwhy = "w"\nupstream = "not-needed"\nremove_when = "r"\nfiles = {1}\n'
INSERT = "[[insert]]\nfile = '{}'\nafter = '{}'\ntext = '''\n{}\n'''\n"


def add(project, name, files, *inserts, extra=""):
    for file, text in files.items():
        project.write(file, text)
    texts = (INSERT.format(*insert) for insert in inserts)
    project.write(f"hooks/{name}.toml", HEADER.format(name, list(files)) + extra + "".join(texts))


def names(project) -> list[str]:
    new, pristine, loaded = plan.new_files(project.root), project.pristine(), project.hooks()
    found = order.ordered(loaded, plan.owners(loaded, new), new, pristine.files, pristine.read)
    return [hook.name.removesuffix(".toml") for hook in found]


@pytest.mark.parametrize(
    "text",
    [
        "import executorch.exir.late",
        "from executorch.exir import late",
        "from executorch.exir.late import x as y",
        "from ...exir.late import x",
        "def f():\n    if 1:\n        from ... import exir\n        from ...exir import late",
    ],
)
def test_an_import_goes_behind_what_it_imports(project, text):
    add(project, "z", {"exir/late.py": ""})
    add(project, "a", {"backends/xnnpack/early.py": text})
    assert names(project) == ["fold", "z", "a"]


def test_imports_that_are_inserted_and_those_of_tests_count(project):
    add(project, "z", {"backends/xnnpack/visit/__init__.py": ""})
    program = ("backends/xnnpack/visitors.py", "^ALL", "    op_z,\n]\nfrom executorch.backends.xnnpack import visit\nX = [")
    add(project, "b", {}, program)
    add(project, "a", {"exir/tests/test_a.py": "import executorch.backends.xnnpack.visit"})
    assert names(project) == ["fold", "z", "a", "b"]


def test_names_that_are_put_into_upstream_modules_count(project):
    add(project, "z", {}, ("exir/program.py", "return 1", "\n\nclass Late: ..."))
    add(project, "a", {"exir/early.py": "from executorch.exir.program import Late"})
    add(project, "b", {"exir/other.py": "from executorch.exir.program import lower"})
    assert names(project) == ["b", "fold", "z", "a"]


def test_a_table_of_a_schema_comes_before_sources_that_use_it(project):
    add(project, "z", {}, ("backends/xnnpack/schema.fbs", "^include", "table Late {}"))
    add(project, "a", {"backends/xnnpack/a.cpp": "new Late();"})
    add(project, "b", {"backends/xnnpack/b.cpp": "new TooLate();"})
    assert names(project) == ["b", "fold", "z", "a"]


def test_a_cycle_names_both_and_is_a_problem_of_the_set(project):
    add(project, "a", {"exir/a.py": "from executorch.exir import b"})
    add(project, "b", {"exir/b.py": "import executorch.exir.a"})
    add(project, "c", {"exir/c.py": "import executorch.exir.a"})
    reason = (
        "hooks need each other: a.toml needs b.toml (exir/a.py imports executorch.exir.b); "
        "b.toml needs a.toml (exir/b.py imports executorch.exir.a)"
    )
    with pytest.raises(PatchsetError) as caught:
        names(project)
    assert str(caught.value) == reason
    project.write("README.md", f"<!-- patchset table -->\n{check.table(project.hooks())}<!-- /patchset table -->\n")
    assert list(check.problems(project.pristine(), project.root)) == [reason]


def test_what_only_the_wheel_needs_is_left_out_and_nothing_may_need_it(project):
    add(project, "w", {"exir/w.py": ""}, ("exir/program.py", "^def", "    w = 1"), extra="wheel_only = true\n")
    assert names(project) == ["fold"]
    assert "exir/program.py" in hooks.by_file(project.hooks(), source_only=False)
    assert "exir/program.py" not in hooks.by_file(project.hooks(), source_only=True)
    add(project, "a", {"exir/a.py": "from . import w"})
    with pytest.raises(PatchsetError) as caught:
        names(project)
    assert str(caught.value) == (
        "a.toml: exir/a.py imports executorch.exir.w, which w.toml brings to the wheel only"
    )


def test_insertions_that_do_not_stand_alone_are_refused(project):
    add(project, "a", {}, ("exir/program.py", "^def", "  if"))
    with pytest.raises(PatchsetError, match=r"^a.toml: exir/program.py: does not compile by itself: invalid syntax, "):
        names(project)


def test_the_table_says_what_only_one_side_gets(project):
    add(project, "w", {"exir/w.py": ""}, extra="wheel_only = true\n")
    add(project, "s", {}, ("exir/a.cpp", "^x", "y"), extra="source_only = true\n")
    kinds = [row.split(" | ")[1] for row in check.table(project.hooks()).splitlines()[2:]]
    assert kinds == ["wiring", "wiring, sources only", "wiring, wheel only"]
