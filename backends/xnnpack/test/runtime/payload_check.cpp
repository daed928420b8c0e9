// Hands delegate payloads to the XNNPACK backend, as a program's loader would.
//
//   payload_check FILE...          one line each: "FILE: error: first log line"
//   payload_check --mutate FILE    FILE truncated to every length from 8 on, with
//                                  every bit flipped, and with random bits flipped;
//                                  prints "N x kind: error: first log line"
//
// Built with sanitizers by the tests. Every payload is a heap block of its exact
// size, so that the drop-in library does not read past it unnoticed.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/memory_allocator.h>
#include <executorch/runtime/platform/runtime.h>

#include "../../runtime/tool_support.h"

namespace {

using executorch::runtime::BackendInitContext;
using executorch::runtime::Error;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::MemoryAllocator;
using Bytes = std::vector<uint8_t>;

Error load(const Bytes& bytes) {
  first_error.clear();
  const std::unique_ptr<uint8_t[]> copy(new uint8_t[bytes.size()]);
  std::copy(bytes.begin(), bytes.end(), copy.get());
  FreeableBuffer payload(copy.get(), bytes.size(), nullptr);
  std::vector<uint8_t> arena(1 << 16);
  MemoryAllocator allocator(arena.size(), arena.data());
  BackendInitContext context(&allocator);
  const auto* backend =
      executorch::runtime::get_backend_class("XnnpackBackend");
  const auto handle = backend->init(context, &payload, {});
  if (handle.ok()) {
    backend->destroy(*handle);
  }
  return handle.error();
}

Bytes read(const char* path) {
  const auto bytes = read_file(path);
  if (!bytes) {
    perror(path);
    exit(1);
  }
  return *bytes;
}

void mutate(const Bytes& bytes) {
  std::map<std::string, int> counts;
  const auto count = [&](const std::string& kind, const Bytes& mutant) {
    const Error error = load(mutant);
    counts[kind + ": " + to_string(error) + ": " + first_error]++;
  };
  constexpr size_t kIdentifierEnd = 8;
  for (size_t size = kIdentifierEnd; size < bytes.size(); ++size) {
    count("truncated", {bytes.begin(), bytes.begin() + size});
  }
  const auto flip = [](Bytes& mutant, size_t bit) {
    mutant[bit / 8] ^= 1 << (bit % 8);
  };
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    Bytes mutant = bytes;
    flip(mutant, bit);
    count("one bit", mutant);
  }
  std::mt19937 random(0);
  for (int i = 0; i < 2000; ++i) {
    Bytes mutant = bytes;
    for (int flips = 0; flips < 4; ++flips) {
      flip(mutant, random() % (bytes.size() * 8));
    }
    count("four bits", mutant);
  }
  for (const auto& [what, number] : counts) {
    printf("%d x %s\n", number, what.c_str());
  }
}

} // namespace

int main(int argc, char** argv) {
  executorch::runtime::register_pal(
      executorch::runtime::PalImpl::create(keep_first_error, __FILE__));
  executorch::runtime::runtime_init();
  if (argc == 3 && strcmp(argv[1], "--mutate") == 0) {
    mutate(read(argv[2]));
    return 0;
  }
  for (int i = 1; i < argc; ++i) {
    const Error error = load(read(argv[i]));
    printf("%s: %s: %s\n", argv[i], to_string(error), first_error.c_str());
    fflush(stdout);
  }
  return 0;
}
