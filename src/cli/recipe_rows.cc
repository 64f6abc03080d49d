#include "cli/recipe_rows.h"

#include <chrono>

#include "base/error.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "cli/terminal.h"
#include "quarot/version.h"

namespace quarot::cli {

namespace {

// Puts the row and the time left for all rows before each stage's name.
class RowProgress final : public Progress {
 public:
  RowProgress(size_t rows, bool quiet) : terminal_(quiet), rows_(rows) {}

  void begin(size_t row) {
    row_ = fmt::format("{}/{}", row + 1, rows_);
    if (row == 0) return;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    const double row_seconds = elapsed.count() / static_cast<double>(row);
    row_ += fmt::format(", {} left in all",
                        format_seconds(row_seconds * static_cast<double>(rows_ - row)));
  }

  void stage(std::string_view name, int64_t total) override {
    terminal_.stage(fmt::format("{}: {}", row_, name), total);
  }
  void advance(int64_t steps) override { terminal_.advance(steps); }
  bool cancelled() const override { return terminal_.cancelled(); }

 private:
  TerminalProgress terminal_;
  size_t rows_;
  std::string row_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

Result<std::vector<Measured>> measure_rows(Evaluator& evaluator, const std::vector<RecipeRow>& rows,
                                           bool quiet) {
  RowProgress progress(rows.size(), quiet);
  std::vector<Measured> results;
  for (size_t i = 0; i < rows.size(); ++i) {
    QUAROT_RETURN_IF_ERROR(progress.check());
    progress.begin(i);
    const bool another = i + 1 < rows.size() && rows[i + 1].model == nullptr;
    Result<Measured> result =
        rows[i].model != nullptr
            ? evaluator.measure(*rows[i].model, progress)
            : evaluator.measure(rows[i].recipe, another ? &rows[i + 1].recipe : nullptr, progress);
    if (!result.ok() && result.error().code() == ErrorCode::kCancelled) return result.error();
    if (!result.ok()) return result.error().with_context(rows[i].label);
    results.push_back(*std::move(result));
  }
  return results;
}

std::string program_identity() {
  const Result<MappedFile> program = MappedFile::open("/proc/self/exe");
  if (!program.ok()) return std::string(version());
  return fmt::format("{} {}", version(), content_hash(program->bytes()));
}

}  // namespace quarot::cli
