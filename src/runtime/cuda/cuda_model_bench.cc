// Speed and memory of whole models of random weights on the GPU, against 16 bits.
//
//   cuda_model_bench [llama-2-7b|llama-3-8b|… [blocks|decode [--json]]]
//
// One transformer block (the difference between models of three layers and of one), prefilling
// sequences of 2048 tokens; whole-model decoding, from the host's call to its logits, with
// embedding and lm_head of 16 and of 8 bits; memory in use. The 16-bit path is what it cannot do
// without: its products through cuBLAS, bfloat16, and the same attention kernels over a 16-bit
// cache. Its norms, RoPE and SwiGLU are left out, in its favour. --json: an object a line, of
// blocks alone (block_compare.py reads them).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string_view>

#include "kernels/cuda/attention/attention.h"
#include "model/synthetic.h"
#include "runtime/cuda/packed_cuda_backend.h"
#include "runtime/make_backend.h"

namespace quarot {
namespace {

constexpr double kBytesPerSecond = 4.8e12;  // an H200's memory, by its datasheet
constexpr int64_t kPrefill = 2048;

template <typename T>
T must(Result<T> result) {
  if (result.ok()) return *std::move(result);
  fmt::print(stderr, "{}\n", result.error().message());
  std::exit(1);
}
void must(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "{}\n", status.error().message());
  std::exit(1);
}

Precision precision_of() {
  Precision precision;
  precision.activations.bits = precision.keys.bits = precision.values.bits = 4;
  return precision;
}

// R3, R4 and the heads' rotation online, as after R1.
std::unique_ptr<Backend> packed(const ModelConfig& config, int table_bits) {
  TransformSpec spec;
  spec.heads = spec.query_key = spec.ffn = true;
  NoProgress progress;
  return must(make_synthetic_backend(config, spec, precision_of(), {table_bits, table_bits},
                                     progress, Device::kCuda));
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
template <typename Body>
double median_seconds(int samples, Body&& body) {
  std::vector<double> times;
  for (int i = -2; i < samples; ++i) {
    const double start = now();
    body();
    if (i >= 0) times.push_back(now() - start);
  }
  std::ranges::nth_element(times, times.begin() + samples / 2);
  return times[static_cast<size_t>(samples / 2)];
}

// `batch` sequences of `count` tokens each, after `position` that are in the cache.
Batch batch_of(const std::vector<int>& sequences, int64_t count, int64_t position) {
  Batch batch;
  for (const int sequence : sequences) {
    batch.chunks.push_back({sequence, batch.rows(), count, position});
    for (int64_t i = 0; i < count; ++i) {
      batch.tokens.push_back(static_cast<Token>((position + 7 * i + sequence) % 30000));
    }
  }
  return batch;
}

// Forward and one row of logits.
void run(Backend& backend, const Batch& batch, Matrix& logits) {
  forward(backend, batch);
  backend.logits(0, logits.rows(), logits);
  must(backend.status());
}

// What the 16-bit path cannot do without.
class HalfPath {
 public:
  explicit HalfPath(const ModelConfig& config)
      : config_(config), context_(must(cuda::Context::create())) {}

  // Seconds of one block: sequences · count new tokens, `length` in the cache with them.
  double block(int64_t sequences, int64_t count, int64_t length, int samples) {
    const int64_t rows = sequences * count;
    const int64_t qkv = config_.width(Space::kQuery) + 2 * config_.width(Space::kKey);
    const int64_t widest = std::max(qkv, 2 * config_.ffn);
    auto x = bytes(rows * std::max(config_.hidden, config_.ffn) * 2);
    auto y = bytes(rows * widest * 4);
    // Enough copies of the weights that none is in the L2 cache when it comes round again.
    constexpr int64_t kCopies = 3;
    const int64_t weight = config_.hidden * (qkv + config_.hidden + 3 * config_.ffn) * 2;
    auto weights = bytes(kCopies * weight);
    prepare_cache(sequences, count, length);
    int64_t turn = 0;
    const auto layer = [&] {
      const auto* w = weights.data() + turn++ % kCopies * weight;
      for (const auto& [out, in] : {std::pair(qkv, config_.hidden),
                                    {config_.hidden, config_.hidden},
                                    {2 * config_.ffn, config_.hidden},
                                    {config_.hidden, config_.ffn}}) {
        product(w, out, in, x.data(), rows, y.data());
        w += out * in * 2;
      }
      attend(sequences, count, length);
    };
    constexpr int kLayers = 8;  // between two waits, as in a model
    return median_seconds(samples,
                          [&] {
                            for (int i = 0; i < kLayers; ++i) layer();
                            must(context_.wait());
                          }) /
           kLayers;
  }
  // Seconds of lm_head for one row.
  double head(int samples) {
    auto weights = bytes(config_.vocab * config_.hidden * 2);
    auto x = bytes(config_.hidden * 2);
    auto y = bytes(config_.vocab * 4);
    return median_seconds(samples, [&] {
      product(weights.data(), config_.vocab, config_.hidden, x.data(), 1, y.data());
      must(context_.wait());
    });
  }

 private:
  cuda::DeviceArray<uint8_t> bytes(int64_t count) {
    auto array = must(cuda::DeviceArray<uint8_t>::make(count, "the 16-bit path"));
    // A pattern of ordinary bfloat16 and float16 numbers.
    must(cuda::check(
        cudaMemsetAsync(array.data(), 0x3c, static_cast<size_t>(count), context_.stream()),
        "the 16-bit path"));
    return array;
  }
  void product(const uint8_t* w, int64_t out, int64_t in, const uint8_t* x, int64_t rows,
               uint8_t* y) {
    must(context_.blas().multiply_halves({.m = out, .n = rows, .k = in}, CUDA_R_16BF,
                                         {w, in, CUBLAS_OP_T}, {x, in}, CUDA_R_16BF, {y, out},
                                         "a product"));
  }
  void prepare_cache(int64_t sequences, int64_t count, int64_t length) {
    cache_.layout = {static_cast<int>(config_.head_dim), 16, 16};
    cache_.kv_heads = static_cast<int>(config_.kv_heads);
    cache_.table_stride = static_cast<int>((length + cuda::kPageTokens - 1) / cuda::kPageTokens);
    const int64_t pages = sequences * cache_.table_stride;
    pool_ = bytes(pages * config_.kv_heads * cache_.layout.block_bytes());
    std::vector<int32_t> table(static_cast<size_t>(pages));
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
    std::vector<int32_t> lengths(static_cast<size_t>(sequences), static_cast<int32_t>(length));
    std::vector<int32_t> starts;
    for (int64_t s = 0; s <= sequences; ++s) starts.push_back(static_cast<int32_t>(s * count));
    table_ = must(cuda::DeviceArray<int32_t>::upload(table, "the 16-bit path"));
    lengths_ = must(cuda::DeviceArray<int32_t>::upload(lengths, "the 16-bit path"));
    starts_ = must(cuda::DeviceArray<int32_t>::upload(starts, "the 16-bit path"));
    cache_.pool = pool_.data();
    cache_.page_table = table_.data();
    cache_.lengths = lengths_.data();
    const int64_t width = config_.width(Space::kQuery) * sequences * count;
    query_ = bytes(2 * width);
    out_ = must(cuda::DeviceArray<float>::make(width, "the 16-bit path"));
    workspace_ =
        bytes(static_cast<int64_t>(cuda::decode_workspace_bytes(shape(sequences, length), cache_)));
    must(cuda::check(cudaMemsetAsync(workspace_.data(), 0, static_cast<size_t>(workspace_.size()),
                                     context_.stream()),
                     "the 16-bit path"));
  }
  cuda::AttentionShape shape(int64_t sequences, int64_t length) const {
    return {static_cast<int>(sequences), static_cast<int>(config_.heads), static_cast<int>(length),
            0, 0.088F};
  }
  void attend(int64_t sequences, int64_t count, int64_t length) {
    const auto* q = reinterpret_cast<const __half*>(query_.data());
    const cuda::AttentionShape s = shape(sequences, length);
    must(count == 1 ? cuda::attention_decode(q, cache_, s, workspace_.data(), out_.data(),
                                             context_.stream())
                    : cuda::attention_prefill(q, starts_.data(), static_cast<int>(count), cache_, s,
                                              out_.data(), context_.stream()));
  }

  ModelConfig config_;
  cuda::Context context_;
  cuda::PagedCache cache_;
  cuda::DeviceArray<uint8_t> pool_, query_, workspace_;
  cuda::DeviceArray<int32_t> table_, lengths_, starts_;
  cuda::DeviceArray<float> out_;
};

double prefill_seconds(Backend& backend, int64_t sequences) {
  std::vector<int> ids;
  for (int64_t s = 0; s < sequences; ++s) ids.push_back(backend.add_sequence());
  const Batch batch = batch_of(ids, kPrefill, 0);
  Matrix logits(1, backend.config().vocab);
  const double seconds = median_seconds(5, [&] { run(backend, batch, logits); });
  for (const int id : ids) backend.drop_sequence(id);
  return seconds;
}

void bench_blocks(const ModelConfig& config, bool json) {
  const auto of_layers = [&](int64_t layers) {
    ModelConfig small = config;
    small.layers = layers;
    small.sliding_windows.resize(static_cast<size_t>(layers));
    return packed(small, 8);
  };
  const auto one = of_layers(1);
  const auto three = of_layers(3);
  HalfPath half(config);
  if (!json) {
    fmt::print("one block, prefill of {} tokens\n batch  W4A4KV4 ms  16-bit ms  speed-up\n",
               kPrefill);
  }
  for (const int64_t batch : {1, 4, 16, 32, 64}) {
    const double ours = (prefill_seconds(*three, batch) - prefill_seconds(*one, batch)) / 2;
    const double theirs = half.block(batch, kPrefill, kPrefill, 5);
    if (json) {
      fmt::print("{{\"batch\": {}, \"tokens\": {}, \"ms\": {:.3f}, \"half_ms\": {:.3f}}}\n", batch,
                 kPrefill, 1e3 * ours, 1e3 * theirs);
    } else {
      fmt::print("{:6} {:11.3f} {:10.3f} {:9.2f}\n", batch, 1e3 * ours, 1e3 * theirs,
                 theirs / ours);
    }
    std::fflush(stdout);
  }
}

// Seconds from the layers' end to the logits in the host's memory.
double logits_seconds(Backend& backend, Matrix& logits) {
  return median_seconds(9, [&] { backend.logits(0, logits.rows(), logits); });
}

void bench_decode(const ModelConfig& config, int table_bits) {
  const int64_t before = cuda::used_bytes();
  const auto backend = packed(config, table_bits);
  const int64_t weights = cuda::used_bytes() - before;
  const int64_t tables = config.tied_embeddings ? 1 : 2;
  const int64_t matrices = config.parameters() - tables * config.vocab * config.hidden;
  fmt::print(
      "decoding, whole model, embedding and lm_head of {} bits: {:.2f} GB on the GPU, {:.2f} GB in "
      "16 bits\n"
      "tables batch length  ms/step  of limit  logits ms  16-bit ms  speed-up  used GB  16-bit GB  "
      "less\n",
      table_bits, 1e-9 * static_cast<double>(weights),
      2e-9 * static_cast<double>(config.parameters()));
  for (const auto& [sequences, length] : {std::pair<int64_t, int64_t>{1, 256},
                                          {1, 2048},
                                          {1, 4096},
                                          {1, 8192},
                                          {1, 16384},
                                          {16, 256},
                                          {16, 2048},
                                          {16, 4096}}) {
    std::vector<int> ids;
    for (int64_t s = 0; s < sequences; ++s) ids.push_back(backend->add_sequence());
    Matrix logits(1, config.vocab);
    for (const int id : ids) {
      for (int64_t at = 0; at < length; at += kPrefill) {
        run(*backend, batch_of({id}, std::min(kPrefill, length - at), at), logits);
      }
    }
    Matrix all(sequences, config.vocab);
    int64_t position = length;
    const double ours =
        median_seconds(31, [&] { run(*backend, batch_of(ids, 1, position++), all); });
    const double used = static_cast<double>(cuda::used_bytes() - before);
    const double logits_part = logits_seconds(*backend, all);
    HalfPath half(config);
    const double theirs =
        static_cast<double>(config.layers) * half.block(sequences, 1, length, 7) + half.head(7);
    const double cache =
        static_cast<double>(sequences * length * config.layers * 2 * config.width(Space::kKey));
    const double head = table_bits / 8.0 * static_cast<double>(config.vocab * config.hidden);
    const double bytes = 0.5 * static_cast<double>(matrices) + head + 0.53 * cache;
    const double half_bytes = 2 * static_cast<double>(config.parameters()) + 2 * cache;
    fmt::print(
        "{:6} {:5} {:6} {:8.3f} {:7.1f} % {:10.3f} {:10.3f} {:9.2f} {:8.2f} {:10.2f} {:5.2f}\n",
        table_bits, sequences, length, 1e3 * ours, 100 * bytes / kBytesPerSecond / ours,
        1e3 * logits_part, 1e3 * theirs, theirs / ours, 1e-9 * used, 1e-9 * half_bytes,
        half_bytes / used);
    std::fflush(stdout);
    for (const int id : ids) backend->drop_sequence(id);
  }
}

}  // namespace
}  // namespace quarot

int main(int argc, char** argv) {
  const quarot::ModelConfig config =
      quarot::must(quarot::published_config(argc > 1 ? argv[1] : "llama-2-7b"));
  const std::string_view part = argc > 2 ? argv[2] : "";
  const bool json = argc > 3 && std::string_view(argv[3]) == "--json";
  if (part != "blocks") {
    for (const int table_bits : {8, 16}) quarot::bench_decode(config, table_bits);
  }
  if (part != "decode") quarot::bench_blocks(config, json);
  return 0;
}
