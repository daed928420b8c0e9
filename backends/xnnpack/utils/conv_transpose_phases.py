"""A transposed convolution as one stride-1 convolution per phase of its output.

Along an axis with stride s, the outputs r, r + s, r + 2s, ... (phase r) depend on every
s-th kernel element only, so a phase is a convolution of the input with that part of the
kernel, reversed. With one phase per axis chosen, the phases interleave to the output.
"""

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import List, Optional, Sequence, Tuple, Union

import torch

# XNNPACK's depthwise kernels go this far; beyond, it runs a convolution one channel at a
# time, as it does a transposed one.
MAX_TAPS = 25
# Stride 16 in two dimensions. Every phase is a node, in the file and in all passes.
MAX_PHASES = 256


@dataclass(frozen=True)
class AxisPhase:
    """Phase r of one axis.

    Attributes:
        offset: the first kernel element, (r + padding) mod stride; the others follow in
            steps of the stride.
        taps: how many kernel elements there are.
        pad: zeros in front of and behind the input; negative ones would be a crop.
    """

    offset: int
    taps: int
    pad: Tuple[int, int]


@dataclass(frozen=True)
class PhasePlan:
    """All phases of a transposed convolution, as the stride-1 convolutions to emit.

    Attributes:
        stride: of every axis, the block size of the interleaving.
        padding: of the transposed convolution, one per axis; with the stride it
            determines the kernels of the phases.
        phases: one AxisPhase per axis, in block-major order (by * s + bx).
    """

    stride: int
    padding: Tuple[int, ...]
    phases: Tuple[Tuple[AxisPhase, ...], ...]

    def kernel(self, weight: torch.Tensor, phase: Sequence[AxisPhase]) -> torch.Tensor:
        """The kernel of `phase` from `weight` (C, 1, *kernel size); contiguous."""
        taps = tuple(slice(axis.offset, None, self.stride) for axis in phase)
        kernel = weight[(..., *taps)].flip(*range(-len(taps), 0))
        return kernel.contiguous()


def plan_phases(
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
) -> Union[PhasePlan, str]:
    """The phases of a transposed convolution over one or two axes, or why there are none.

    Every argument has one value per axis, or, except for `kernel_size`, one for all.

    In two dimensions the output must be the input upscaled by the stride, since
    depth-to-space makes that size. In one dimension any multiple of the stride will do:
    the phases of an axis are interleaved by a reshape, whatever their length.
    """
    axes = len(kernel_size)
    stride, padding, output_padding, dilation = (
        tuple(values) * (axes if len(values) == 1 else 1)
        for values in (stride, padding, output_padding, dilation)
    )
    if any(step != 1 for step in dilation):
        return f"its dilation {list(dilation)} is not 1"
    if len(set(stride)) > 1:
        return f"one block size cannot express the strides {list(stride)}"
    (s,) = set(stride)

    per_axis: List[List[AxisPhase]] = []
    for k, p, extra in zip(kernel_size, padding, output_padding):
        # The output has (H - 1) * s - 2 * p + k + extra = s * (H + growth) + rest elements.
        growth, rest = divmod(k + extra - 2 * p - s, s)
        if rest or (growth and axes > 1):
            return (
                f"kernel {k}, stride {s}, padding {p} and output padding {extra} do "
                f"not make the output {s} times as large as the input"
            )
        phases = [_axis_phase(r, k, s, p, growth) for r in range(s)]
        if any(phase.taps == 0 for phase in phases):
            return f"kernel {k} leaves a phase of stride {s} without a tap"
        if any(min(phase.pad) < 0 for phase in phases):
            return f"kernel {k} with padding {p} needs a crop in front of a phase"
        per_axis.append(phases)
    return PhasePlan(s, padding, tuple(product(*per_axis)))


def why_not_faster(plan: PhasePlan, shape: Sequence[object]) -> Optional[str]:
    """Why the phases would not be faster than the transposed convolution, or None.

    The bounds are measured: on x86-64, per geometry, rewrite and original in turns.

    Args:
        shape: (N, C, *size) of the input; what is not an int is dynamic and taken for large.
    """
    taps = max(prod(axis.taps for axis in phase) for phase in plan.phases)
    if taps > MAX_TAPS:
        return f"a phase has {taps} taps, and depthwise kernels take {MAX_TAPS}"
    if len(plan.phases) > MAX_PHASES:
        return f"stride {plan.stride} has {len(plan.phases)} phases, more than {MAX_PHASES}"
    if shape[1] == 1:
        return "one channel is one group, and runs as fast as the phases or faster"
    elements = prod(size for size in shape if isinstance(size, int))
    static = all(isinstance(size, int) for size in shape)
    # A phase's nodes cost some microseconds, whatever they compute.
    enough = 32 + 8 * plan.stride
    if static and elements < enough:
        return f"its input has {elements} elements, and stride {plan.stride} pays from {enough} on"
    return None


def _axis_phase(r: int, k: int, s: int, p: int, growth: int) -> AxisPhase:
    """Phase r. Output r + s * q takes the inputs h with 0 <= r + s * q + p - s * h < k."""
    delay, offset = divmod(r + p, s)
    taps = max(0, -((offset - k) // s))
    return AxisPhase(offset, taps, (taps - 1 - delay, delay + growth))
