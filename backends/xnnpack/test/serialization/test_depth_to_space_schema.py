"""XNNDepthToSpace2d in the flatbuffer schemas and in the graph dataclasses."""

import importlib.resources
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import executorch.backends.xnnpack.serialization as serialization
import pytest
from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema
from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import (
    convert_to_flatbuffer,
)
from executorch.exir._serialize._flatbuffer import _flatc_compile, _flatc_decompile

NODE = schema.XNNDepthToSpace2d(block_size=3, input_id=1, output_id=2, flags=4)


def graph(*unions):
    return schema.XNNGraph(
        version="0",
        xnodes=[schema.XNode(xnode_union=union, debug_handle=7) for union in unions],
        xvalues=[],
        num_externs=0,
        input_ids=[],
        output_ids=[],
        constant_data=[],
    )


def text_of(name):
    return importlib.resources.files(serialization).joinpath(name).read_text()


def union_members(text):
    body = re.search(r"union XNodeUnion \{(.*?)\}", text, re.DOTALL)[1]
    return re.findall(r"^\s*(XNN\w+)", body, re.MULTILINE)


@pytest.mark.parametrize("name", ["schema.fbs", "runtime_schema.fbs"])
def test_last_of_the_union(name):
    members = union_members(text_of(name))
    assert members[-1] == "XNNDepthToSpace2d"
    assert len(members) == 48
    # Numbers count from 1 in the order of the members.
    numbers = {member: i for i, member in enumerate(members, start=1)}
    assert {
        member: numbers[member]
        for member in ("XNNAdd", "XNNConv2d", "XNNStaticReshape", "XNNCos")
    } == {"XNNAdd": 1, "XNNConv2d": 7, "XNNStaticReshape": 20, "XNNCos": 47}


def test_both_schemas_and_the_dataclasses_agree():
    members = union_members(text_of("schema.fbs"))
    assert members == union_members(text_of("runtime_schema.fbs"))
    classes = {union.__name__ for union in get_args(schema.XNodeUnion)}
    assert "XNNDepthToSpace2d" in classes
    assert classes <= set(members)


@pytest.mark.parametrize("name", ["schema.fbs", "runtime_schema.fbs"])
def test_round_trip_through_flatc(name, tmp_path):
    source = tmp_path / name
    source.write_text(text_of(name))
    if name == "schema.fbs":
        binary = convert_to_flatbuffer(graph(NODE, schema.XNNCos(8, 9, 0)))
    else:
        data = tmp_path / "graph.json"
        nodes = [
            {"xnode_union_type": type(u).__name__, "xnode_union": asdict(u)}
            for u in (NODE, schema.XNNCos(8, 9, 0))
        ]
        data.write_text(json.dumps({"xnodes": nodes}))
        _flatc_compile(str(tmp_path), str(source), str(data))
        binary = Path(tmp_path, "graph.bin").read_bytes()
    path = tmp_path / "payload.bin"
    path.write_bytes(binary)
    _flatc_decompile(str(tmp_path), str(source), str(path), ["--raw-binary"])
    nodes = json.loads((tmp_path / "payload.json").read_text())["xnodes"]
    assert [node["xnode_union_type"] for node in nodes] == [
        "XNNDepthToSpace2d",
        "XNNCos",
    ]
    assert nodes[0]["xnode_union"] == asdict(NODE)
