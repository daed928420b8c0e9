"""What the READMEs name exists, and the first one is a page."""

import re

import pytest

from patchset import ROOT

READMES = ("README.md", "backends/xnnpack/runtime/README.md")
ROW = re.compile(r"^\| `hooks/.*$", re.MULTILINE)


def named_paths(text: str) -> set[str]:
    """Words in code that have a slash or a suffix, but for environments, indices, entries of pip and git."""
    code = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    words = (word for span in code for word in span.split())
    path = re.compile(r"(?!\.venv)[\w.-]*(/[\w.-]*)+|\w+\.(toml|py|txt|lock|cpp|h|md)")
    return {word for word in words if path.fullmatch(word)}


def test_paths_are_found():
    text = "`a/` `b.py` `c d/e.cpp` `.venv/bin/x` `x<y>` `f(1.0)`\n```\nbuild/z\n```\n`g.h`, `executorch==1.5.1`"
    assert named_paths(text) == {"a/", "b.py", "d/e.cpp", "g.h"}


@pytest.mark.parametrize("readme", READMES)
def test_every_path_exists(readme):
    named = named_paths((ROOT / readme).read_text())
    assert named
    assert {p for p in named if not (ROOT / p).exists() and not (ROOT / readme).parent.joinpath(p).exists()} == set()


def test_the_readme_is_a_page():
    text = ROW.sub("", (ROOT / "README.md").read_text())
    assert len([line for line in text.splitlines() if line]) <= 70 and max(map(len, text.splitlines())) <= 130
