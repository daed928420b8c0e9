// Stands in front of the released XNNPACK delegate: answers for
// XNNDepthToSpace2d and forwards every other node. The released library calls
// both functions through its PLT, and the loader finds this library first.

#include "ReleasedFunctions.h"

#include <dlfcn.h>

#include <executorch/backends/xnnpack/runtime/XNNDepthToSpace.h>
#include <executorch/runtime/platform/assert.h>
#include <executorch/runtime/platform/log.h>

// dlsym moved to another library in glibc 2.34. The old version of the symbol
// keeps this library loadable wherever the released wheel is.
#if defined(__x86_64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
#endif

#define INTERPOSE __attribute__((visibility("default")))

using fb_xnnpack::XNodeUnion;

namespace {

using VerifyFunc = decltype(&verifyXNodeUnion);
using GetFunc = decltype(&getDefineNodeFunc);

template <typename Function>
Function released(const char* name) {
  void* function = dlsym(RTLD_NEXT, name);
  ET_CHECK_MSG(function != nullptr, "The released library lacks %s", name);
  return reinterpret_cast<Function>(function);
}

// XNNDepthToSpace2d is verified as an XNNAdd, which the released verifier
// knows: both are tables of four 4-byte scalars in the same slots.
using Node = fb_xnnpack::XNNDepthToSpace2d;
using Twin = fb_xnnpack::_XNNNode2x1;
static_assert(int{Node::VT_BLOCK_SIZE} == int{Twin::VT_INPUT1_ID});
static_assert(int{Node::VT_INPUT_ID} == int{Twin::VT_INPUT2_ID});
static_assert(int{Node::VT_OUTPUT_ID} == int{Twin::VT_OUTPUT_ID});
static_assert(int{Node::VT_FLAGS} == int{Twin::VT_FLAGS});
static_assert(sizeof(XNodeUnion) == 1);

} // namespace

extern "C" {

INTERPOSE DefineNodeFunc getDefineNodeFunc(XNodeUnion type) {
  if (type == XNodeUnion::XNNDepthToSpace2d) {
    return &executorch::backends::xnnpack::delegate::defineDepthToSpace2dNode;
  }
  static const auto next = released<GetFunc>(RELEASED_GET_DEFINE_NODE_FUNC);
  return next(type);
}

INTERPOSE bool
verifyXNodeUnion(void* verifier, const void* table, XNodeUnion type) {
  static const auto next = released<VerifyFunc>(RELEASED_VERIFY_XNODE_UNION);
  if (type != XNodeUnion::XNNDepthToSpace2d) {
    return next(verifier, table, type);
  }
  const bool valid = next(verifier, table, XNodeUnion::XNNAdd);
  if (!valid) {
    ET_LOG(Error, "XNNDepthToSpace2d: its table reaches out of the payload");
  }
  return valid;
}

} // extern "C"
