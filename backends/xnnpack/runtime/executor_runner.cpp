// Runs a .pte file on the libraries of the wheel, with the flags of
// ExecuTorch's own runner; kUsage lists them. On failure: one line on stderr,
// exit status 1.

#include <getopt.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/extension/threadpool/threadpool_guard.h>
#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>
#include <executorch/runtime/platform/runtime.h>

#include "tool_support.h"

// The wheel's libraries have these, its headers do not.
namespace executorch::extension {
namespace cpuinfo {
uint32_t get_num_performant_cores();
} // namespace cpuinfo
namespace threadpool {
class ThreadPool {
 public:
  bool _unsafe_reset_threadpool(uint32_t num_threads);
};
ThreadPool* get_threadpool();
} // namespace threadpool
} // namespace executorch::extension

namespace {

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::MethodMeta;
using executorch::runtime::TensorInfo;

constexpr char kUsage[] =
    "usage: executor_runner [--model_path=FILE] [--inputs=FILE,FILE]"
    " [--output_file=BASE] [--num_executions=N] [--cpu_threads=N]"
    " [--print_output=none|summary|all] [--method_name=NAME]"
    " [--data_path=FILE]\n"
    "Inputs and outputs are raw tensors; output i goes to BASE-i.bin."
    " Without --inputs, every element is one; FILE is model.pte by default.\n";

struct Options {
  std::string model_path = "model.pte";
  std::string data_path;
  std::string method_name;
  std::vector<std::string> inputs;
  std::string output_file;
  std::string print_output = "summary";
  uint32_t num_executions = 1;
  int64_t cpu_threads = -1; // as many as the processor has fast cores
};

[[noreturn]] __attribute__((format(printf, 1, 2))) void die(
    const char* format,
    ...) {
  fprintf(stderr, "executor_runner: ");
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fprintf(stderr, "\n");
  exit(1);
}

void check(Error error, const char* what, const std::string& of) {
  if (error != Error::Ok) {
    die("cannot %s %s: %s (0x%02x): %s",
        what,
        of.c_str(),
        executorch::runtime::to_string(error),
        static_cast<unsigned>(error),
        first_error.empty() ? "no reason given" : first_error.c_str());
  }
}

int64_t parse_count(const char* flag, const char* text) {
  char* end = nullptr;
  errno = 0;
  const long long value = strtoll(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || value < 1 ||
      value > UINT32_MAX) {
    die("--%s must be a positive number, got '%s'", flag, text);
  }
  return value;
}

Options parse(int argc, char** argv) {
  static const option kFlags[] = {
      {"help", no_argument, nullptr, 'h'},
      {"model_path", required_argument, nullptr, 'm'},
      {"data_path", required_argument, nullptr, 'd'},
      {"method_name", required_argument, nullptr, 'f'},
      {"inputs", required_argument, nullptr, 'i'},
      {"output_file", required_argument, nullptr, 'o'},
      {"print_output", required_argument, nullptr, 'p'},
      {"num_executions", required_argument, nullptr, 'n'},
      {"cpu_threads", required_argument, nullptr, 't'},
      {nullptr, 0, nullptr, 0},
  };
  if (argc == 1) {
    fprintf(stderr, "%s", kUsage);
    exit(1);
  }
  Options options;
  opterr = 0;
  int flag;
  while ((flag = getopt_long_only(argc, argv, ":", kFlags, nullptr)) != -1) {
    switch (flag) {
      case 'h':
        printf("%s", kUsage);
        exit(0);
      case 'm':
        options.model_path = optarg;
        break;
      case 'd':
        options.data_path = optarg;
        break;
      case 'f':
        options.method_name = optarg;
        break;
      case 'i': {
        if (*optarg == '\0') {
          die("--inputs names no file");
        }
        std::stringstream list(optarg);
        for (std::string path; std::getline(list, path, ',');) {
          options.inputs.push_back(path);
        }
        break;
      }
      case 'o':
        options.output_file = optarg;
        break;
      case 'p':
        options.print_output = optarg;
        if (options.print_output != "none" &&
            options.print_output != "summary" &&
            options.print_output != "all") {
          die("--print_output must be none, summary or all, got '%s'", optarg);
        }
        break;
      case 'n':
        options.num_executions = parse_count("num_executions", optarg);
        break;
      case 't':
        if (strcmp(optarg, "-1") != 0) {
          options.cpu_threads = parse_count("cpu_threads", optarg);
        }
        break;
      case ':':
        die("flag %s needs a value", argv[optind - 1]);
      default:
        die("unknown flag %s", argv[optind - 1]);
    }
  }
  if (optind < argc) {
    die("unexpected argument %s", argv[optind]);
  }
  return options;
}

void require_readable(const std::string& path) {
  if (!std::ifstream(path, std::ios::binary).is_open()) {
    die("cannot read %s: %s", path.c_str(), strerror(errno));
  }
}

template <typename Sizes>
std::string describe(ScalarType type, const Sizes& sizes) {
  std::ostringstream text;
  text << executorch::runtime::toString(type) << " [";
  for (size_t i = 0; i < sizes.size(); ++i) {
    text << (i == 0 ? "" : ", ") << sizes[i];
  }
  text << "]";
  return text.str();
}

// An input from a raw file, or of ones.
TensorPtr
make_input(const TensorInfo& info, size_t index, const std::string* path) {
  std::vector<uint8_t> bytes;
  if (path != nullptr) {
    auto read = read_file(*path);
    if (!read) {
      die("cannot read %s: %s", path->c_str(), strerror(errno));
    }
    bytes = std::move(*read);
    if (bytes.size() != info.nbytes()) {
      die("%s has %zu bytes, input %zu (%s) takes %zu",
          path->c_str(),
          bytes.size(),
          index,
          describe(info.scalar_type(), info.sizes()).c_str(),
          info.nbytes());
    }
  } else {
    const size_t element = executorch::runtime::elementSize(info.scalar_type());
    const auto numel = static_cast<int32_t>(info.nbytes() / element);
    const auto ones = executorch::extension::ones({numel}, info.scalar_type());
    const auto* data = static_cast<const uint8_t*>(ones->const_data_ptr());
    bytes.assign(data, data + info.nbytes());
  }
  return executorch::extension::make_tensor_ptr(
      {info.sizes().begin(), info.sizes().end()},
      std::move(bytes),
      {info.dim_order().begin(), info.dim_order().end()},
      {},
      info.scalar_type());
}

std::vector<TensorPtr> make_inputs(
    const MethodMeta& meta,
    const std::vector<std::string>& paths) {
  if (!paths.empty() && paths.size() != meta.num_inputs()) {
    die("--inputs names %zu files, the method takes %zu inputs",
        paths.size(),
        meta.num_inputs());
  }
  std::vector<TensorPtr> inputs;
  for (size_t i = 0; i < meta.num_inputs(); ++i) {
    const auto info = meta.input_tensor_meta(i);
    if (!info.ok()) {
      die("input %zu is no tensor", i);
    }
    inputs.push_back(make_input(*info, i, paths.empty() ? nullptr : &paths[i]));
  }
  return inputs;
}

void print_element(const Tensor& tensor, ssize_t index) {
  switch (tensor.scalar_type()) {
#define PRINT_INTEGER(ctype, name)                                      \
  case ScalarType::name:                                                \
    printf(                                                             \
        " %lld",                                                        \
        static_cast<long long>(tensor.const_data_ptr<ctype>()[index])); \
    break;
    ET_FORALL_INT_TYPES(PRINT_INTEGER)
    PRINT_INTEGER(bool, Bool)
#undef PRINT_INTEGER
#define PRINT_FLOAT(ctype, name)                                              \
  case ScalarType::name:                                                      \
    printf(                                                                   \
        " %.9g", static_cast<double>(tensor.const_data_ptr<ctype>()[index])); \
    break;
    ET_FORALL_FLOATHBF16_TYPES(PRINT_FLOAT)
#undef PRINT_FLOAT
    default:
      printf(" ?");
  }
}

void print(const EValue& value, size_t index, bool all) {
  if (!value.isTensor()) {
    printf("output %zu: no tensor\n", index);
    return;
  }
  constexpr ssize_t kEdge = 100;
  const Tensor& tensor = value.toTensor();
  const ssize_t numel = tensor.numel();
  printf(
      "output %zu: %s:",
      index,
      describe(tensor.scalar_type(), tensor.sizes()).c_str());
  for (ssize_t i = 0; i < numel; ++i) {
    if (!all && numel > 2 * kEdge && i == kEdge) {
      printf(" ...");
      i = numel - kEdge;
    }
    print_element(tensor, i);
  }
  printf("\n");
}

void write(const EValue& value, const std::string& path) {
  if (!value.isTensor()) {
    return;
  }
  const Tensor& tensor = value.toTensor();
  std::ofstream file(path, std::ios::binary);
  file.write(
      static_cast<const char*>(tensor.const_data_ptr()),
      static_cast<std::streamsize>(tensor.nbytes()));
  file.close();
  if (!file) {
    die("cannot write %s: %s", path.c_str(), strerror(errno));
  }
}

std::string first_method(const Module& module, const std::string& path) {
  const auto name = module.program()->get_method_name(0);
  check(name.error(), "find a method in", path);
  return *name;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle]
                                : (values[middle - 1] + values[middle]) / 2;
}

void run(const Options& options) {
  namespace threadpool = executorch::extension::threadpool;
  const uint32_t threads = options.cpu_threads > 0
      ? static_cast<uint32_t>(options.cpu_threads)
      : executorch::extension::cpuinfo::get_num_performant_cores();
  if (threads > 0) {
    threadpool::get_threadpool()->_unsafe_reset_threadpool(threads);
  }
  std::optional<threadpool::NoThreadPoolGuard> no_threads;
  if (threads == 1) {
    no_threads.emplace();
  }

  require_readable(options.model_path);
  std::vector<std::string> data_files;
  if (!options.data_path.empty()) {
    require_readable(options.data_path);
    data_files.push_back(options.data_path);
  }
  Module module(options.model_path, data_files);
  check(module.load(), "load", options.model_path);
  const std::string method = options.method_name.empty()
      ? first_method(module, options.model_path)
      : options.method_name;
  const std::string name = method + " of " + options.model_path;
  check(module.load_method(method), "load", name);
  const auto meta = module.method_meta(method);
  check(meta.error(), "describe", name);

  const std::vector<TensorPtr> inputs = make_inputs(*meta, options.inputs);
  check(
      module.set_inputs(
          method, std::vector<EValue>(inputs.begin(), inputs.end())),
      "set the inputs of",
      name);

  std::vector<double> latencies;
  std::vector<EValue> outputs;
  for (uint32_t i = 0; i < options.num_executions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    auto result = module.execute(method);
    const std::chrono::duration<double, std::milli> elapsed =
        std::chrono::steady_clock::now() - start;
    check(result.error(), "execute", name);
    outputs = std::move(*result);
    latencies.push_back(elapsed.count());
    printf(
        "run %u of %u: %.3f ms\n",
        i + 1,
        options.num_executions,
        elapsed.count());
  }
  printf("median: %.3f ms\n", median(latencies));

  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!options.output_file.empty()) {
      write(outputs[i], options.output_file + "-" + std::to_string(i) + ".bin");
    }
    if (options.print_output != "none") {
      print(outputs[i], i, options.print_output == "all");
    }
  }
}

} // namespace

int main(int argc, char** argv) {
  executorch::runtime::register_pal(
      executorch::runtime::PalImpl::create(keep_first_error, __FILE__));
  executorch::runtime::runtime_init();
  run(parse(argc, argv));
  return 0;
}
