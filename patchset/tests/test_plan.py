import pytest

from patchset import check, plan

INSERT = """
[[insert]]
file = "{file}"
{where} = '{anchor}'
text = '''
{text}
'''
"""


def add(project, **fields):
    path = project.root / "hooks/fold.toml"
    path.write_text(path.read_text() + INSERT.format(where="after", **fields))


def problems(project) -> list[str]:
    readme = project.root / "README.md"
    if not readme.exists():
        readme.write_text(f"<!-- patchset table -->\n{check.table(project.hooks())}<!-- /patchset table -->\n")
    return list(check.problems(project.pristine(), project.root))


def test_a_right_set_has_no_problems(project):
    add(project, file="backends/xnnpack/schema.fbs", anchor="^table Graph", text="  y:int;")
    add(project, file="backends/xnnpack/types.fbs", anchor="^enum Kind", text="struct S { x:int; }")
    assert problems(project) == []


@pytest.mark.parametrize(
    "fields, reason",
    [
        (
            dict(file="backends/xnnpack/gone.py", anchor="^x", text="y"),
            "fold.toml: backends/xnnpack/gone.py: after '^x': upstream has no such file",
        ),
        (
            dict(file="exir/program.py", anchor="^def lower", text="    import ("),
            "fold.toml: exir/program.py: after '^def lower': exir/program.py does not compile after insertion: ",
        ),
        (
            dict(file="backends/xnnpack/schema.fbs", anchor="^table Graph", text="  y:Missing;"),
            "fold.toml: backends/xnnpack/schema.fbs: after '^table Graph': "
            "flatc refuses backends/xnnpack/schema.fbs after insertion: error:",
        ),
    ],
)
def test_a_hook_that_breaks_its_file_is_refused(project, fields, reason):
    add(project, **fields)
    (found,) = problems(project)
    assert found.startswith(reason)
    assert "\n" not in found


def test_all_hooks_of_a_broken_file_are_named(project):
    add(project, file="exir/program.py", anchor="^def lower", text="    x = 1")
    (project.root / "hooks/other.toml").write_text(
        (project.root / "hooks/fold.toml").read_text().partition("files")[0]
        + INSERT.format(file="exir/program.py", where="before", anchor="^def lower", text="if:")
    )
    assert [p for p in problems(project) if "does not compile" in p] == [
        "fold.toml: exir/program.py: after '^def lower': exir/program.py does not compile after insertion: "
        "invalid syntax, line 1 (also hooked by other.toml)"
    ]


def test_a_new_file_that_upstream_ships_is_refused(project):
    project.write("exir/program.py", "")
    assert problems(project)[0] == "exir/program.py: a new file of the set, but upstream ships it"


def test_a_new_module_that_does_not_compile_is_refused(project):
    project.write("backends/xnnpack/fold.py", "def\n")
    assert problems(project) == ["backends/xnnpack/fold.py: does not compile: invalid syntax, line 1"]


def test_a_new_file_belongs_to_exactly_one_hook_file(project):
    project.write("exir/passes/orphan.py", "")
    orphan = "exir/passes/orphan.py: must belong to one hook file (key files), belongs to no hook file"
    assert problems(project) == [orphan]
    for name in ("b.toml", "c.toml"):
        project.write(
            f"hooks/{name}",
            'title = "t"\nwhy = "w"\nupstream = "not-needed"\nremove_when = "r"\nfiles = ["exir/passes/*.py"]\n',
        )
    (project.root / "README.md").unlink()
    assert problems(project) == [orphan.replace("no hook file", "b.toml, c.toml")]


def test_a_pattern_of_files_that_matches_nothing_is_refused(project):
    (project.root / "backends/xnnpack/test/test_fold.py").unlink()
    assert problems(project) == ["fold.toml: files: 'backends/xnnpack/test/test_fold*.py' matches no new file"]


def test_build_files_and_byte_code_are_no_new_files(project):
    for name in ("backends/BUCK", "exir/TARGETS", "exir/__pycache__/x.pyc", "exir/.hidden", "exir/.dir/x.py"):
        project.write(name, "")
    assert list(plan.new_files(project.root)) == ["backends/xnnpack/fold.py", "backends/xnnpack/test/test_fold.py"]


def test_a_stale_table_is_refused(project):
    assert problems(project) == []
    path = project.root / "hooks/fold.toml"
    path.write_text(path.read_text().replace("Fold weights", "Fold"))
    assert problems(project) == ["README.md: its table is stale; python -m patchset table prints the right one"]
    (project.root / "README.md").write_text("none\n")
    assert problems(project) == ["README.md: needs the lines <!-- patchset table --> and <!-- /patchset table --> once"]


def test_hooks_of_sources_are_tried_on_a_checkout(project, tmp_path):
    add(project, file="backends/xnnpack/runtime/Compiler.cpp", anchor="^case", text="case 2:")
    path = project.root / "hooks/fold.toml"
    path.write_text(path.read_text() + "source_only = true\n")
    assert problems(project) == []

    checkout = tmp_path / "source"
    for file in ("backends/xnnpack/partitioner.py", "backends/xnnpack/runtime/Compiler.cpp"):
        (checkout / file).parent.mkdir(parents=True, exist_ok=True)
        (checkout / file).write_text("case 1:\n" if file.endswith("cpp") else "class Partitioner: ...\n")
    assert list(check.problems(project.pristine(), project.root, checkout)) == []
    (checkout / "backends/xnnpack/runtime/Compiler.cpp").write_text("default:\n")
    assert list(check.problems(project.pristine(), project.root, checkout)) == [
        "fold.toml: backends/xnnpack/runtime/Compiler.cpp: after '^case': anchor matches 0 lines, not one"
    ]
