#pragma once

// The two functions of the released library that the drop-in library stands in
// front of. Declared by linker name: one is in the namespace of a generated
// header whose Verifier is another class in other versions of FlatBuffers, and
// the name of the other does not show its return type.

#include <cstdint>
#include <unordered_map>

#include <executorch/backends/xnnpack/serialization/schema_generated.h>
#include <executorch/runtime/core/error.h>
#include <xnnpack.h>

#define RELEASED_GET_DEFINE_NODE_FUNC \
  "_ZN10executorch8backends7xnnpack8delegate17getDefineNodeFuncEN10fb_xnnpack10XNodeUnionE"
#define RELEASED_VERIFY_XNODE_UNION \
  "_ZN10fb_xnnpack16VerifyXNodeUnionERN11flatbuffers8VerifierEPKvNS_10XNodeUnionE"

using DefineNodeFunc = executorch::runtime::Error (*)(
    xnn_subgraph_t,
    const std::unordered_map<uint32_t, uint32_t>&,
    const fb_xnnpack::XNode*,
    const fb_xnnpack::XNNGraph*) noexcept;

extern "C" {

/// The function that defines nodes of a type in a subgraph.
DefineNodeFunc getDefineNodeFunc(fb_xnnpack::XNodeUnion type) __asm__(
    RELEASED_GET_DEFINE_NODE_FUNC);

/// Whether the table of a node lies within the payload that `verifier`, a
/// flatbuffers::Verifier, guards. An absent table (nullptr) passes.
bool verifyXNodeUnion(
    void* verifier,
    const void* table,
    fb_xnnpack::XNodeUnion type) __asm__(RELEASED_VERIFY_XNODE_UNION);

} // extern "C"
