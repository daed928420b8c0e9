"""XnnpackPartitioner: a wrong argument is refused, a misspelt one named."""

import logging
import math

import pytest
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackDynamicallyQuantizedPartitioner,
    XnnpackFloatingPointPartitioner,
    XnnpackPartitioner,
)


@pytest.mark.parametrize("value", ["no", None, 0, 1, 0.0])
def test_the_fold_is_on_or_off(value):
    with pytest.raises(TypeError) as caught:
        XnnpackPartitioner(fold_computed_weights=value)
    assert str(caught.value) == f"fold_computed_weights is True or False, got {value!r}"


@pytest.mark.parametrize(
    "value, error",
    [
        (True, TypeError),
        (None, TypeError),
        ("2", TypeError),
        (1j, TypeError),
        (-1, ValueError),
        (-math.inf, ValueError),
        (math.nan, ValueError),
    ],
)
def test_the_growth_is_a_number_that_is_not_negative(value, error):
    with pytest.raises(error) as caught:
        XnnpackPartitioner(max_fold_growth=value)
    reason = f"max_fold_growth is a number from 0 to math.inf, got {value!r}"
    assert str(caught.value) == reason


def test_right_arguments_are_kept():
    for growth in (0, 2, 0.5, math.inf):
        partitioner = XnnpackPartitioner(
            fold_computed_weights=False, max_fold_growth=growth
        )
        assert partitioner.max_fold_growth == growth
        assert partitioner.fold_computed_weights is False


@pytest.mark.parametrize(
    "name, close",
    [
        ("fold_computed_weight", "fold_computed_weights"),
        ("fold_weights", "fold_computed_weights"),
        ("max_growth", "max_fold_growth"),
        ("target_runtimes", "target_runtime"),
        ("per_op_modes", "per_op_mode"),
    ],
)
@pytest.mark.parametrize(
    "partitioner", [XnnpackPartitioner, XnnpackDynamicallyQuantizedPartitioner]
)
def test_a_misspelt_name_is_named_once(caplog, partitioner, name, close):
    with caplog.at_level(logging.WARNING):
        partitioner(**{name: 0})
    assert [record.getMessage() for record in caplog.records] == [
        f"XnnpackPartitioner has no argument {name!r} and ignores it; "
        f"did you mean {close!r}?"
    ]


def test_what_callers_in_executorch_pass_is_taken_in_silence(caplog):
    with caplog.at_level(logging.WARNING):
        XnnpackPartitioner(precision_type=None)
        XnnpackPartitioner(force_fp32_dynamic_linear=True)
        XnnpackPartitioner(force_non_static_weights_for_f32_linear=True)
        XnnpackDynamicallyQuantizedPartitioner(enable_bf16=True)
        XnnpackFloatingPointPartitioner()
    assert not caplog.records
