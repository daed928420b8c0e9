#include <executorch/backends/xnnpack/runtime/XNNDepthToSpace.h>

#include <executorch/runtime/platform/log.h>

namespace executorch {
namespace backends {
namespace xnnpack {
namespace delegate {

using executorch::runtime::Error;
using fb_xnnpack::XNNTensorValue;
using fb_xnnpack::XNodeUnion;

// The numbers are the file format. A schema that renumbers a member would make
// this runtime take one node for another.
static_assert(static_cast<int>(XNodeUnion::XNNAdd) == 1);
static_assert(static_cast<int>(XNodeUnion::XNNCos) == 47);
static_assert(static_cast<int>(XNodeUnion::XNNDepthToSpace2d) == 48);
static_assert(XNodeUnion::MAX == XNodeUnion::XNNDepthToSpace2d);

namespace {

// The tensor with a serialized id, or nullptr. Of several, the first counts, as
// it does for the map of ids.
const XNNTensorValue* findTensor(
    const fb_xnnpack::XNNGraph* graph,
    uint32_t id) {
  for (const auto* value : *graph->xvalues()) {
    const auto* quantized = value->xvalue_union_as_XNNQuantizedTensorValue();
    const auto* tensor = quantized != nullptr
        ? quantized->tensor_value()
        : value->xvalue_union_as_XNNTensorValue();
    if (tensor != nullptr && tensor->id_out() == id) {
      return tensor;
    }
  }
  return nullptr;
}

uint32_t rank(const XNNTensorValue* tensor) {
  return tensor->dims() == nullptr ? 0 : tensor->dims()->size();
}

uint32_t indexOf(
    const fb_xnnpack::XNode* node,
    const fb_xnnpack::XNNGraph* graph) {
  uint32_t index = 0;
  while (index < graph->xnodes()->size() &&
         graph->xnodes()->Get(index) != node) {
    ++index;
  }
  return index;
}

} // namespace

#define NODE "XNNDepthToSpace2d, node %u (debug handle %u): "
#define CHECK_NODE(condition, error, message, ...) \
  ET_CHECK_OR_RETURN_ERROR(                        \
      condition, error, NODE message, index, handle, ##__VA_ARGS__)

Error defineDepthToSpace2dNode(
    xnn_subgraph_t subgraph,
    const std::unordered_map<uint32_t, uint32_t>& remapped_ids,
    const fb_xnnpack::XNode* node,
    const fb_xnnpack::XNNGraph* graph) noexcept {
  const unsigned index = indexOf(node, graph);
  const unsigned handle = node->debug_handle();
  const auto* table = node->xnode_union_as_XNNDepthToSpace2d();
  CHECK_NODE(table != nullptr, InvalidProgram, "its table is absent");

  const unsigned block_size = table->block_size();
  const unsigned input_id = table->input_id();
  const unsigned output_id = table->output_id();
  CHECK_NODE(
      block_size >= 2,
      InvalidProgram,
      "block size is %u, must be 2 or more",
      block_size);
  CHECK_NODE(
      table->flags() == 0,
      InvalidProgram,
      "flags are 0x%x, none is defined",
      static_cast<unsigned>(table->flags()));
  CHECK_NODE(
      input_id != output_id,
      InvalidProgram,
      "input and output are both tensor %u",
      input_id);

  const auto input = remapped_ids.find(input_id);
  const auto output = remapped_ids.find(output_id);
  const XNNTensorValue* input_tensor = findTensor(graph, input_id);
  const XNNTensorValue* output_tensor = findTensor(graph, output_id);
  CHECK_NODE(
      input != remapped_ids.end() && input_tensor != nullptr,
      InvalidProgram,
      "input %u is no tensor of the graph",
      input_id);
  CHECK_NODE(
      output != remapped_ids.end() && output_tensor != nullptr,
      InvalidProgram,
      "output %u is no tensor of the graph",
      output_id);
  // XNNPACK would write to memory whose size follows another shape.
  CHECK_NODE(
      (output_tensor->flags() & XNN_VALUE_FLAG_EXTERNAL_INPUT) == 0 &&
          output_tensor->constant_buffer_idx() == 0,
      InvalidProgram,
      "output %u is an input of the graph or a constant",
      output_id);

  CHECK_NODE(
      rank(input_tensor) == 4 && rank(output_tensor) == 4,
      InvalidProgram,
      "ranks of input and output are %u and %u, must be 4",
      static_cast<unsigned>(rank(input_tensor)),
      static_cast<unsigned>(rank(output_tensor)));
  const unsigned input_channels = input_tensor->dims()->Get(3);
  const unsigned output_channels = output_tensor->dims()->Get(3);
  const uint64_t block_area = uint64_t{block_size} * block_size;
  CHECK_NODE(
      input_channels != 0 && input_channels % block_area == 0,
      InvalidProgram,
      "%u input channels are not divisible by block size %u squared",
      input_channels,
      block_size);
  CHECK_NODE(
      output_channels == input_channels / block_area,
      InvalidProgram,
      "%u output channels do not follow from %u input channels and block size %u",
      output_channels,
      input_channels,
      block_size);

  const xnn_status status = xnn_define_depth_to_space_2d(
      subgraph, block_size, input->second, output->second, /*flags=*/0);
  CHECK_NODE(
      status == xnn_status_success,
      Internal,
      "XNNPACK refused it with status %d; data type and quantization of input %u and output %u must agree",
      static_cast<int>(status),
      input_id,
      output_id);
  return Error::Ok;
}

#undef CHECK_NODE
#undef NODE

} // namespace delegate
} // namespace xnnpack
} // namespace backends
} // namespace executorch
