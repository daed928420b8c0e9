import subprocess

import pytest

from patchset import PatchsetError, export

SECOND = """\
title = "Trace lowering"
why = "{why}"
upstream = "not-needed"
remove_when = "lowering is traced"
files = ["exir/trace.py"]

[[insert]]
file = "backends/xnnpack/partitioner.py"
after = '^import a'
text = '''
import trace
'''

[[insert]]
file = "backends/xnnpack/runtime/Compiler.cpp"
source_only = true
after = '^case 1'
text = '''
case 2:
'''
"""


def git(directory, *arguments: str) -> str:
    return subprocess.run(["git", "-C", directory, *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(project, tmp_path, monkeypatch):
    """A source checkout of the small upstream, with a file that wheels lack, and a set of two concerns."""
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "A U Thor")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "author@example.com")
    project.write("hooks/trace.toml", SECOND.format(why="Because. " * 20))
    project.write("exir/trace.py", "")
    source = tmp_path / "source"
    for file in ("backends/xnnpack/partitioner.py", "exir/program.py"):
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        (source / file).write_bytes(project.pristine().read(file))
    (source / "backends/xnnpack/runtime").mkdir()
    (source / "backends/xnnpack/runtime/Compiler.cpp").write_text("case 1:\n")
    (source / "backends/xnnpack/partitioner.py").chmod(0o755)
    (source / ".gitignore").write_text("ignored*\n")
    subprocess.run(["git", "init", "-q", "-b", "main", source], check=True)
    git(source, "add", ".")
    git(source, "commit", "-q", "-m", "Upstream")
    return source


def run(project, checkout) -> list[str]:
    return export.export(project.hooks(), checkout, project.root)


def state(checkout) -> tuple[str, str, dict]:
    files = {p: p.read_bytes() for p in checkout.rglob("*") if p.is_file() and ".git" not in p.parts}
    return git(checkout, "rev-parse", "HEAD"), git(checkout, "status", "--porcelain", "--ignored"), files


def test_one_commit_per_concern_in_order(project, checkout):
    first, second = run(project, checkout)
    assert git(checkout, "log", "--format=%s", "--reverse").splitlines() == [
        "Upstream",
        "Fold weights",
        "Trace lowering",
    ]
    assert git(checkout, "rev-parse", "main").strip() == second
    assert git(checkout, "show", "--name-only", "--format=", first).split() == [
        "backends/xnnpack/fold.py",
        "backends/xnnpack/partitioner.py",
        "backends/xnnpack/test/test_fold.py",
    ]
    assert git(checkout, "show", "--name-only", "--format=", second).split() == [
        "backends/xnnpack/partitioner.py",
        "backends/xnnpack/runtime/Compiler.cpp",
        "exir/trace.py",
    ]
    assert git(checkout, "status", "--porcelain") == ""
    assert (checkout / "backends/xnnpack/runtime/Compiler.cpp").read_text() == "case 1:\ncase 2:\n"
    assert (checkout / "backends/xnnpack/partitioner.py").read_text() == (
        "import a\nimport trace\n\n\nimport fold\nclass Partitioner:\n    x = 1\n    y = 2\n"
    )
    assert "import trace" not in git(checkout, "show", f"{first}:backends/xnnpack/partitioner.py")
    assert git(checkout, "ls-tree", "HEAD", "backends/xnnpack/partitioner.py").startswith("100755")


def test_commits_stand_behind_those_that_they_need_and_the_last_state_is_that_of_the_wheel(project, checkout):
    trace = project.root / "hooks/trace.toml"
    project.write("hooks/apart.toml", trace.read_text().replace("exir/trace.py", "exir/apart.py").replace("Trace", "Part"))
    project.write("exir/apart.py", "from executorch.exir import trace\n")
    trace.write_text(trace.read_text().replace("import trace", "import later").replace("case 2", "case 3"))
    made = run(project, checkout)
    subjects = git(checkout, "log", "--format=%s", "--reverse").splitlines()[1:]
    assert subjects == ["Fold weights", "Trace lowering", "Part lowering"] and len(made) == 3
    assert (checkout / "backends/xnnpack/partitioner.py").read_text().startswith("import a\nimport trace\nimport later\n")


def test_what_only_the_wheel_needs_is_not_exported(project, checkout):
    path = project.root / "hooks/fold.toml"
    path.write_text(path.read_text().replace("files =", "wheel_only = true\nfiles ="))
    run(project, checkout)
    assert git(checkout, "log", "--format=%s", "--reverse").splitlines() == ["Upstream", "Trace lowering"]
    assert not (checkout / "backends/xnnpack/fold.py").exists()
    assert "import fold" not in (checkout / "backends/xnnpack/partitioner.py").read_text()


def test_the_message_is_made_from_the_header(project, checkout):
    run(project, checkout)
    lines = git(checkout, "log", "-1", "--format=%B").rstrip().splitlines()
    assert lines[:2] == ["Trace lowering", ""]
    assert lines[2].startswith("Because. Because.") and max(map(len, lines)) <= 72
    assert lines[-4:] == ["", "Upstream: not-needed", "", "Remove when: lowering is traced"]


def test_patches_apply_to_a_fresh_clone(project, checkout, tmp_path):
    git(tmp_path, "clone", "-q", str(checkout), "clone")
    run(project, checkout)
    git(checkout, "format-patch", "-q", "-2", "-o", str(tmp_path / "patches"))
    git(tmp_path / "clone", "am", "-q", *map(str, sorted((tmp_path / "patches").iterdir())))
    tree = [git(d, "rev-parse", "HEAD^{tree}") for d in (checkout, tmp_path / "clone")]
    assert tree[0] == tree[1]


def break_anchor(project, checkout):
    path = project.root / "hooks/trace.toml"
    path.write_text(path.read_text().replace("^case 1", "^case 9"))


def drop_owner(project, checkout):
    project.write("exir/orphan.py", "")


def occupy(project, checkout):
    project.write("hooks/trace.toml", SECOND.format(why="w").replace("exir/trace.py", "exir/ignored.py"))
    (project.root / "exir/trace.py").rename(project.root / "exir/ignored.py")
    (checkout / "exir/ignored.py").write_text("mine\n")


def ship(project, checkout):
    (checkout / "exir/trace.py").write_text("")
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "Ship")


def dirty(project, checkout):
    (checkout / "exir/program.py").write_text("")


def untracked(project, checkout):
    (checkout / "new").write_text("")


@pytest.mark.parametrize(
    "spoil, reason",
    [
        (
            break_anchor,
            "trace.toml: backends/xnnpack/runtime/Compiler.cpp: after '^case 9': anchor matches 0 lines, not one",
        ),
        (drop_owner, "exir/orphan.py: must belong to one hook file (key files), belongs to no hook file"),
        (occupy, "git merge: Aborting"),
        (ship, "exir/trace.py: a new file of the set, but upstream ships it"),
        (dirty, "{}: has changes or untracked files; commit or remove them first"),
        (untracked, "{}: has changes or untracked files; commit or remove them first"),
    ],
)
def test_a_failure_leaves_the_checkout_as_it_was(project, checkout, spoil, reason):
    spoil(project, checkout)
    before = state(checkout)
    with pytest.raises(PatchsetError) as caught:
        run(project, checkout)
    assert str(caught.value) == reason.format(checkout)
    assert state(checkout) == before


def test_only_the_top_of_a_git_checkout_is_taken(project, checkout, tmp_path):
    for directory in (tmp_path, checkout / "exir", tmp_path / "gone"):
        with pytest.raises(PatchsetError) as caught:
            run(project, directory)
        assert str(caught.value) == f"{directory}: not the top of a git checkout"
