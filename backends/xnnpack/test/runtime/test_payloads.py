"""Hostile payloads with an XNNDepthToSpace2d: an error that says why, and no memory error."""

import pytest
from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import (
    ConstantDataOffset,
    XNNDatatype,
    XNNDepthToSpace2d,
    XNNGraph,
    XNNTensorValue,
    XNode,
    XValue,
)
from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import (
    convert_to_flatbuffer,
    serialize_xnnpack_binary,
    XNNHeader,
)
from executorch.backends.xnnpack.test.runtime.native_build import run
from executorch.backends.xnnpack.utils.xnnpack_constants import (
    XNN_INVALID_VALUE_ID,
    XNN_VALUE_FLAG_EXTERNAL_INPUT,
    XNN_VALUE_FLAG_EXTERNAL_OUTPUT,
)

INPUT, OUTPUT = XNN_VALUE_FLAG_EXTERNAL_INPUT, XNN_VALUE_FLAG_EXTERNAL_OUTPUT
DEBUG_HANDLE = 7


def value(
    id, dims, flags, datatype=XNNDatatype.xnn_datatype_fp32, constant_buffer_idx=0
):
    tensor = XNNTensorValue(
        datatype=datatype,
        num_dims=len(dims),
        dims=dims,
        external_id=id if flags else XNN_INVALID_VALUE_ID,
        constant_buffer_idx=constant_buffer_idx,
        flags=flags,
        id_out=id,
    )
    return XValue(xvalue_union=tensor)


def graph(input=(0, [1, 2, 3, 8], INPUT), output=(1, [1, 4, 6, 2], OUTPUT), **fields):
    node = {"block_size": 2, "input_id": 0, "output_id": 1, "flags": 0, **fields}
    return XNNGraph(
        version="0",
        xnodes=[XNode(XNNDepthToSpace2d(**node), debug_handle=DEBUG_HANDLE)],
        xvalues=[value(*input), value(*output)],
        num_externs=2,
        input_ids=[0],
        output_ids=[1],
        constant_data=[
            ConstantDataOffset(0, 0, None),
            ConstantDataOffset(0, 192, None),
        ],
    )


HALF = XNNDatatype.xnn_datatype_fp16
HOSTILE = {
    "block size 0": (graph(block_size=0), "block size is 0, must be 2 or more"),
    "block size 1": (graph(block_size=1), "block size is 1, must be 2 or more"),
    "block size 3": (
        graph(block_size=3),
        "8 input channels are not divisible by block size 3 squared",
    ),
    "square of the block size is 0 in 32 bits": (
        graph(block_size=1 << 16),
        "8 input channels are not divisible by block size 65536 squared",
    ),
    "no channels": (
        graph(input=(0, [1, 2, 3, 0], INPUT), output=(1, [1, 4, 6, 0], OUTPUT)),
        "0 input channels are not divisible by block size 2 squared",
    ),
    "output channels": (
        graph(output=(1, [1, 4, 6, 8], OUTPUT)),
        "8 output channels do not follow from 8 input channels and block size 2",
    ),
    "flags": (graph(flags=4), "flags are 0x4, none is defined"),
    "equal ids": (graph(output_id=0), "input and output are both tensor 0"),
    "absent input": (graph(input_id=9), "input 9 is no tensor of the graph"),
    "absent output": (graph(output_id=9), "output 9 is no tensor of the graph"),
    "invalid input": (
        graph(input_id=XNN_INVALID_VALUE_ID),
        "input 4294967295 is no tensor of the graph",
    ),
    "invalid output": (
        graph(output_id=XNN_INVALID_VALUE_ID),
        "output 4294967295 is no tensor of the graph",
    ),
    "input of rank 3": (
        graph(input=(0, [2, 3, 8], INPUT)),
        "ranks of input and output are 3 and 4, must be 4",
    ),
    "output of rank 5": (
        graph(output=(1, [1, 1, 4, 6, 2], OUTPUT)),
        "ranks of input and output are 4 and 5, must be 4",
    ),
    "output without dims": (
        graph(output=(1, [], OUTPUT)),
        "ranks of input and output are 4 and 0, must be 4",
    ),
    "output is an input": (
        graph(output=(1, [1, 4, 6, 2], INPUT)),
        "output 1 is an input of the graph or a constant",
    ),
    "output is a constant": (
        graph(output=(1, [1, 4, 6, 2], 0, XNNDatatype.xnn_datatype_fp32, 1)),
        "output 1 is an input of the graph or a constant",
    ),
    "data types": (
        graph(output=(1, [1, 4, 6, 2], OUTPUT, HALF)),
        "XNNPACK refused it with status 2; data type and quantization of input 0 "
        "and output 1 must agree",
    ),
}


def payload(xnn_graph):
    return serialize_xnnpack_binary(xnn_graph, bytearray(192))


def test_each_fault_is_named(payload_check, tmp_path):
    for name, (xnn_graph, _) in HOSTILE.items():
        (tmp_path / name).write_bytes(payload(xnn_graph))
    lines = run(payload_check, *(tmp_path / name for name in HOSTILE)).splitlines()
    for line, (name, (_, reason)) in zip(lines, HOSTILE.items(), strict=True):
        error = "Internal" if name == "data types" else "InvalidProgram"
        assert line == (
            f"{tmp_path / name}: Error::{error}: XNNDepthToSpace2d, "
            f"node 0 (debug handle {DEBUG_HANDLE}): {reason}"
        )


def test_a_sound_payload_loads(payload_check, tmp_path):
    (tmp_path / "sound").write_bytes(payload(graph()))
    assert (
        run(payload_check, tmp_path / "sound") == f"{tmp_path / 'sound'}: Error::Ok: \n"
    )


def test_no_mutant_reads_out_of_bounds(payload_check, tmp_path):
    (tmp_path / "sound").write_bytes(convert_to_flatbuffer(graph()))
    out = run(payload_check, "--mutate", tmp_path / "sound")
    for kind in ("truncated", "one bit", "four bits"):
        assert f"x {kind}: Error::DelegateInvalidCompatibility: FlatBuffer" in out
    corrupt = "Error::DelegateInvalidCompatibility: XNNDepthToSpace2d: its table"
    assert f"x one bit: {corrupt} reaches out of the payload" in out
    assert "Error::InvalidProgram: XNNDepthToSpace2d, node 0" in out


def test_a_truncated_table_in_a_payload_with_header(payload_check, tmp_path):
    cut = bytearray(payload(graph()))
    size = cut[XNNHeader.FLATBUFFER_SIZE_OFFSET]
    half = int.from_bytes(size, "little") // 2
    cut[XNNHeader.FLATBUFFER_SIZE_OFFSET] = half.to_bytes(len(size), "little")
    (tmp_path / "cut").write_bytes(cut)
    assert "Error::DelegateInvalidCompatibility" in run(payload_check, tmp_path / "cut")


@pytest.mark.parametrize("block_size", [2, 3])
def test_other_block_sizes_load(payload_check, tmp_path, block_size):
    channels = 5 * block_size * block_size
    xnn_graph = graph(
        input=(0, [2, 3, 4, channels], INPUT),
        output=(1, [2, 3 * block_size, 4 * block_size, 5], OUTPUT),
        block_size=block_size,
    )
    (tmp_path / "sound").write_bytes(payload(xnn_graph))
    assert "Error::Ok" in run(payload_check, tmp_path / "sound")
