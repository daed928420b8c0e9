"""One report per scope, whoever has something to say in it."""

import pytest
from executorch.exir.backend.gathered_reports import gather_reports, report


def test_items_of_all_calls_are_said_at_the_end_of_the_outermost_scope():
    said = []
    with gather_reports():
        report(said.append, ["a"])
        with gather_reports():
            report(said.append, ["b"])
            report(said.append, [])
        assert not said
    assert said == [["a", "b"]]


def test_outside_of_a_scope_it_is_said_at_once():
    said = []
    report(said.append, [])
    report(said.append, ["a"])
    assert said == [["a"]]


def test_each_call_of_a_decorated_function_is_a_scope_and_a_failure_reports():
    said = []

    @gather_reports()
    def lower(item):
        report(said.append, [item])
        if item == "bad":
            raise ValueError
        report(said.append, [item])

    lower("a")
    with pytest.raises(ValueError):
        lower("bad")
    lower("b")
    assert said == [["a", "a"], ["bad"], ["b", "b"]]
