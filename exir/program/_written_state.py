"""Which state do the methods of one lowering call write?

A partitioner sees one program at a time, but methods lowered together may share a buffer:
what is constant in one method is not when another writes it.
"""

import functools
import inspect
from contextvars import ContextVar
from typing import Callable, Dict, Mapping, Optional

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

_STATE_WRITES = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


class WrittenState:
    """Parameters and buffers written by any of `programs`, found when first asked for.

    State counts as the same if its name or its storage is the same: the memory planner shares
    mutable buffers by name, export shares tensors by storage.
    """

    def __init__(self, programs: Mapping[str, ExportedProgram]):
        self._programs = programs
        self._functional: Dict[int, ExportedProgram] = {}

    @functools.cached_property
    def _writers(self) -> Dict[object, str]:
        writers: Dict[object, str] = {}
        for method, program in self._programs.items():
            # In-place writes are listed in the signature of a functionalised program only.
            functional = self._functional.get(id(program))
            functional = functional or program.run_decompositions({})
            for name in written_names(functional):
                writers[name] = method
                tensor = functional.state_dict.get(name, functional.constants.get(name))
                if tensor.layout is torch.strided:
                    writers[tensor.untyped_storage()._cdata] = method
        self._functional.clear()
        return writers

    def knows(self, program: ExportedProgram, functional: ExportedProgram) -> None:
        """Saves functionalising `program` again, should the first question come next."""
        if "_writers" not in vars(self):
            self._functional[id(program)] = functional

    def has_several_methods(self) -> bool:
        return len(self._programs) > 1

    def writer(self, name: str, tensor: torch.Tensor) -> Optional[str]:
        """The method that writes the state called `name`, if one does."""
        by_name = self._writers.get(name)
        return by_name or self._writers.get(tensor.untyped_storage()._cdata)


def written_names(functional: ExportedProgram) -> set[str]:
    """Names of the parameters and buffers that a functionalised program writes."""
    specs = functional.graph_signature.output_specs
    return {spec.target for spec in specs if spec.kind in _STATE_WRITES}


_methods: ContextVar[Optional[WrittenState]] = ContextVar("methods", default=None)


def sees_all_methods(generate: Callable) -> Callable:
    """Decorates a function with an argument `aten_programs`, the programs by method: code that it
    calls may ask `state_written_by_methods` about all of them."""
    signature = inspect.signature(generate)

    @functools.wraps(generate)
    def wrapper(*args, **kwargs):
        programs = signature.bind(*args, **kwargs).arguments["aten_programs"]
        token = _methods.set(WrittenState(programs))
        try:
            return generate(*args, **kwargs)
        finally:
            _methods.reset(token)

    return wrapper


def state_written_by_methods(
    program: ExportedProgram, functional: Optional[ExportedProgram] = None
) -> WrittenState:
    """Of the lowering call in progress; of `program` alone outside of one.

    `functional` is `program` functionalised, if the caller has it.
    """
    written = _methods.get() or WrittenState({"forward": program})
    if functional is not None:
        written.knows(program, functional)
    return written
