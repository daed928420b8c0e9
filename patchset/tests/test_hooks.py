import pytest

from patchset import PatchsetError, hooks

from .conftest import HOOK

HEADER = 'title = "t"\nwhy = "w"\nupstream = "not-needed"\nremove_when = "r"\n'
INSERT = '[[insert]]\nfile = "a.py"\nafter = "^x$"\ntext = """\ny\n"""\n'


def insert(anchor: str, text: str, where: str = "after", hook: str = "h.toml") -> hooks.Insert:
    return hooks.Insert(hook, "a.py", where, anchor, text, False)


def test_a_hook_file_is_read_whole():
    hook = hooks.parse("fold.toml", HOOK)
    assert (hook.name, hook.title, hook.kind) == ("fold.toml", "Fold weights", "wiring")
    assert hook.files == ("backends/xnnpack/fold.py", "backends/xnnpack/test/test_fold*.py")
    expected = hooks.Insert(
        "fold.toml", "backends/xnnpack/partitioner.py", "before", "^class Partitioner:", "import fold\n", False
    )
    assert hook.inserts == (expected,)


def test_source_only_is_inherited_and_overridden():
    text = HEADER + "source_only = true\n" + INSERT + INSERT + "source_only = false\n"
    assert [i.source_only for i in hooks.parse("h.toml", text).inserts] == [True, False]
    parsed = [hooks.parse("h.toml", text)]
    assert len(hooks.by_file(parsed, source_only=False)["a.py"]) == 1
    assert len(hooks.by_file(parsed, source_only=True)["a.py"]) == 2


@pytest.mark.parametrize(
    "text, reason",
    [
        (HEADER.replace('why = "w"\n', "") + INSERT, "h.toml: why is missing or empty"),
        (HEADER.replace('"w"', '" "') + INSERT, "h.toml: why is missing or empty"),
        (HEADER.replace('"w"', "1") + INSERT, "h.toml: why must be a str"),
        (HEADER + 'note = "n"\n' + INSERT, "h.toml: unknown key 'note'"),
        (HEADER + INSERT + "count = 1\n", "h.toml: unknown key 'count'"),
        (HEADER + INSERT + 'before = "^z$"\n', "h.toml: an [[insert]] needs file, text, and one of after and before"),
        (
            HEADER + INSERT.replace("after", "#"),
            "h.toml: an [[insert]] needs file, text, and one of after and before",
        ),
        (
            HEADER.replace("not-needed", "#22078") + INSERT,
            "h.toml: upstream is neither owner/repository#number nor not-needed: '#22078'",
        ),
        (HEADER + 'kind = "patch"\n' + INSERT, "h.toml: kind is neither wiring nor logic: 'patch'"),
        (HEADER, "h.toml: neither an [[insert]] nor files"),
        (HEADER + "wheel_only = 1\n" + INSERT, "h.toml: wheel_only must be a bool"),
        (
            HEADER + "wheel_only = true\nsource_only = true\n" + INSERT,
            "h.toml: wheel_only and source_only exclude each other",
        ),
        (
            HEADER + INSERT.replace("^x$", "("),
            "h.toml: a.py: after '(': anchor is no regular expression: missing ), unterminated subpattern at position 0",
        ),
        (
            HEADER + INSERT.replace('"""\ny\n"""', '"y"'),
            "h.toml: a.py: after '^x$': text is empty or does not end its last line",
        ),
        (
            HEADER + INSERT.replace("\ny\n", "\n\n"),
            "h.toml: a.py: after '^x$': text is empty or does not end its last line",
        ),
        ("1", "h.toml: Expected '=' after a key in a key/value pair (at end of document)"),
    ],
)
def test_a_wrong_hook_file_is_refused(text, reason):
    with pytest.raises(PatchsetError) as caught:
        hooks.parse("h.toml", text)
    assert str(caught.value) == reason


def test_insertions_go_before_and_after_the_anchor():
    entries = [insert("^b$", "2\n"), insert("^b$", "1\n", "before"), insert("^c$", "3\n")]
    assert hooks.apply("a\nb\nc\n", entries) == "a\n1\nb\n2\nc\n3\n"


def test_equal_positions_keep_the_order_of_hooks_and_do_not_see_each_other():
    entries = [insert("^a$", "1\n"), insert("^a$", "xa\n"), insert("^b$", "2\n", "before"), insert("a$", "3\n")]
    assert hooks.apply("a\nb\n", entries) == "a\n1\nxa\n2\n3\nb\n"


def test_hooks_are_loaded_in_the_order_of_their_names(tmp_path):
    for name in ("b.toml", "a.toml", "c.toml"):
        (tmp_path / name).write_text(HEADER + INSERT)
    loaded = hooks.load(tmp_path)
    assert [hook.name for hook in loaded] == ["a.toml", "b.toml", "c.toml"]
    assert [i.hook for i in hooks.by_file(loaded, source_only=False)["a.py"]] == ["a.toml", "b.toml", "c.toml"]


def test_a_last_line_without_an_end_gets_one_only_when_text_follows():
    assert hooks.apply("a\nb", [insert("^b$", "1\n")]) == "a\nb\n1\n"
    assert hooks.apply("a\nb", [insert("^a$", "1\n")]) == "a\n1\nb"


@pytest.mark.parametrize(
    "anchor, text, reason",
    [
        ("^z$", "1\n", "h.toml: a.py: after '^z$': anchor matches 0 lines, not one"),
        ("^[ab]$", "1\n", "h.toml: a.py: after '^[ab]$': anchor matches 2 lines, not one"),
        ("^a$", "b\n", "h.toml: a.py: after '^a$': text is already present"),
        ("^a$", "b\n  c\n", "h.toml: a.py: after '^a$': text is already present"),
    ],
)
def test_an_insertion_that_does_not_fit_is_refused(anchor, text, reason):
    with pytest.raises(PatchsetError) as caught:
        hooks.apply("a\nb\n  c\n", [insert(anchor, text)])
    assert str(caught.value) == reason


def test_part_of_a_line_is_not_text_already_present():
    assert hooks.apply("ab\n", [insert("^ab$", "b\n")]) == "ab\nb\n"
