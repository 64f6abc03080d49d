#include "cli/bench_speed.h"

#include <charconv>
#include <chrono>

#include "base/error.h"

namespace quarot::cli {

namespace {

constexpr int64_t kPrefillChunk = 512;

}  // namespace

Result<SpeedTest> parse_speed_test(const std::string& name) {
  SpeedTest test;
  test.name = name;
  test.generates = name.starts_with("tg");
  const char* const end = name.data() + name.size();
  bool good = test.generates || name.starts_with("pp");
  if (good) {
    std::from_chars_result read = std::from_chars(name.data() + 2, end, test.tokens);
    good = read.ec == std::errc() && test.tokens > 0;
    if (good && read.ptr != end && *read.ptr == '@') {
      read = std::from_chars(read.ptr + 1, end, test.depth);
      good = read.ec == std::errc() && test.depth >= 0;
    }
    good = good && read.ptr == end;
  }
  if (good) return test;
  return error(ErrorCode::kInvalidArgument,
               "test \"{}\": expected ppN (a prompt of N tokens) or tgN (N tokens generated), with "
               "@DEPTH after it for as many tokens in the cache",
               name);
}

Status check(const SpeedTest& test, int64_t context) {
  if (test.tokens <= context && test.depth <= context - test.tokens) return {};
  return error(ErrorCode::kInvalidArgument, "test {}: the model's context holds {} tokens",
               test.name, context);
}

void SpeedMeter::step(Backend& backend, int64_t position, int64_t count) {
  Batch batch;
  batch.chunks = {{sequence_, 0, count, position}};
  for (int64_t i = 0; i < count; ++i) {
    batch.tokens.push_back(static_cast<Token>(random_.below(static_cast<uint64_t>(vocab_))));
  }
  forward(backend, batch);
  filled_ = std::max(filled_, position + count);
}

Status SpeedMeter::fill(Backend& backend, int64_t depth, Progress& progress) {
  while (filled_ < depth) {
    QUAROT_RETURN_IF_ERROR(progress.check());
    const int64_t count = std::min(kPrefillChunk, depth - filled_);
    step(backend, filled_, count);
    progress.advance(count);
  }
  return {};
}

Result<double> SpeedMeter::run(Backend& backend, const SpeedTest& test, Progress& progress) {
  QUAROT_RETURN_IF_ERROR(check(test, backend.config().max_positions));
  if (sequence_ < 0) sequence_ = backend.add_sequence();
  progress.stage(test.name, std::max<int64_t>(test.depth - filled_, 0) + test.tokens);
  QUAROT_RETURN_IF_ERROR(fill(backend, test.depth, progress));
  const int64_t count = test.generates ? 1 : test.tokens;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t done = 0; done < test.tokens; done += count) {
    QUAROT_RETURN_IF_ERROR(progress.check());
    step(backend, test.depth + done, count);
    backend.logits(count - 1, 1, logits_);
  }
  QUAROT_RETURN_IF_ERROR(backend.status());
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  progress.advance(test.tokens);
  return static_cast<double>(test.tokens) / elapsed.count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace quarot::cli
