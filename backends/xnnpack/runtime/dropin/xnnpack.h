#pragma once

// The released wheels carry XNNPACK's symbols but not its header. This is what
// is used of it; a source build has the real header instead.

#include <cstdint>

#define XNN_VALUE_FLAG_EXTERNAL_INPUT 0x00000001

extern "C" {

typedef struct xnn_subgraph* xnn_subgraph_t;

enum xnn_status {
  xnn_status_success = 0,
};

enum xnn_status xnn_define_depth_to_space_2d(
    xnn_subgraph_t subgraph,
    uint32_t block_size,
    uint32_t input_id,
    uint32_t output_id,
    uint32_t flags);

} // extern "C"
