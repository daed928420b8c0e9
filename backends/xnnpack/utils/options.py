"""Options of a lowering, from XnnpackPartitioner to passes and node visitors.

Passes and visitors are constructed with the exported program, and the backend is
handed CompileSpecs. So the partitioner writes its options as CompileSpecs, the
backend attaches them to the program it lowers, and whoever holds that program reads
them:

    options_of(self.exported_program).target_runtime
"""

import json
from dataclasses import dataclass, fields
from typing import List, Optional, Sequence

from executorch.backends.xnnpack.utils.target_runtime import resolve_target_runtime
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

_META_KEY = "xnnpack_options"


@dataclass(frozen=True)
class XnnpackOptions:
    """One field per option; each travels as a CompileSpec with the field's name as
    key and its JSON as value.

    Attributes:
        target_runtime: "patched" or "stock"; None is resolved on construction, see
            `resolve_target_runtime`.
        fuse_pads: whether FusePadIntoConvPass runs.
        decompose_depthwise_conv_transpose: whether DecomposeDepthwiseConvTransposePass runs.
        keep_channels_last: keep values channels-last across elementwise operators, own their
            constants, and delegate nearest upsampling.
        move_scales: move scales, shifts and clamps into the operator before them.
    """

    target_runtime: Optional[str] = None
    fuse_pads: bool = True
    decompose_depthwise_conv_transpose: bool = True
    keep_channels_last: bool = True
    move_scales: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "target_runtime", resolve_target_runtime(self.target_runtime)
        )

    def to_compile_specs(self) -> List[CompileSpec]:
        return [
            CompileSpec(field.name, json.dumps(getattr(self, field.name)).encode())
            for field in fields(self)
        ]

    @classmethod
    def from_compile_specs(cls, specs: Sequence[CompileSpec]) -> "XnnpackOptions":
        """Options without a spec get their default; specs of other keys are not ours."""
        names = {field.name for field in fields(cls)}
        return cls(
            **{
                spec.key: json.loads(bytes(spec.value))
                for spec in specs
                if spec.key in names
            }
        )


def attach_options(program: ExportedProgram, specs: Sequence[CompileSpec]) -> None:
    """Keeps the options with `program`; every transform of a program carries them on."""
    program.graph_module.meta[_META_KEY] = XnnpackOptions.from_compile_specs(specs)


def options_of(program: ExportedProgram) -> XnnpackOptions:
    """The options attached to `program`, or the defaults."""
    return program.graph_module.meta.get(_META_KEY) or XnnpackOptions()
