#pragma once

#include <cstdint>
#include <unordered_map>

#include <executorch/backends/xnnpack/serialization/schema_generated.h>
#include <executorch/runtime/core/error.h>
#include <xnnpack.h>

namespace executorch {
namespace backends {
namespace xnnpack {
namespace delegate {

/**
 * Defines a serialized XNNDepthToSpace2d node in the subgraph: NHWC
 * [N, H, W, s*s*C] to [N, H*s, W*s, C], where input channel (by*s + bx)*C + c
 * goes to output pixel (h*s + by, w*s + bx), channel c.
 *
 * @param[in] remapped_ids XNNPACK value id of each serialized tensor id.
 * @param[in] node A node of `graph`, whose flatbuffer has been verified.
 * @retval InvalidProgram The node does not fit the tensors it names; the log
 *     says which node and why.
 * @retval Internal XNNPACK refused the node.
 */
executorch::runtime::Error defineDepthToSpace2dNode(
    xnn_subgraph_t subgraph,
    const std::unordered_map<uint32_t, uint32_t>& remapped_ids,
    const fb_xnnpack::XNode* node,
    const fb_xnnpack::XNNGraph* graph) noexcept;

} // namespace delegate
} // namespace xnnpack
} // namespace backends
} // namespace executorch
