// What every command shares: its common options, recipe options, exit statuses.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/terminal.h"
#include "model/checkpoint.h"
#include "recipe/recipe.h"
#include "runtime/make_backend.h"

namespace quarot::cli {

// Exit statuses, documented in --help.
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;  // the input or the machine is at fault
inline constexpr int kWrongUsage = 2;
inline constexpr int kInterrupted = 130;

struct CommonOptions {
  std::string device = "cpu";
  int threads = 0;  // 0: all
  bool json = false;
  bool quiet = false;

  void add_to(CLI::App& command);
  void add_output_to(CLI::App& command);  // of a command that computes nothing: --json, --quiet
  // Thread count; kUnsupported for a device that this build, this machine or, unless it takes one,
  // this command does not have.
  Status apply(bool takes_device = false) const;
  Device compute_device() const { return device == "cuda" ? Device::kCuda : Device::kCpu; }
};

// --recipe and everything over it. DESIGN.md, section 10.
class RecipeOptions {
 public:
  void add_to(CLI::App& command, const std::string& default_recipe);
  Result<Recipe> recipe() const;
  Result<Recipe> recipe(const std::string& name) const;  // the options over another recipe
  std::optional<std::filesystem::path> calibration() const;
  std::optional<uint64_t> seed() const { return seed_; }
  bool given() const;  // any of the options was

 private:
  CLI::App* command_ = nullptr;
  std::string name_;
  std::optional<int> w_bits_, a_bits_, k_bits_, v_bits_, embedding_bits_, head_bits_;
  std::optional<int64_t> w_group_, a_group_, calibration_tokens_;
  std::string scaling_, alpha_, w_method_, w_clip_, a_clip_, center_, rotate_, basis_, calibration_;
  std::vector<std::string> site_bits_, fields_;
  std::optional<float> kv_clip_;
  std::optional<double> a_budget_, w_budget_;
  std::optional<uint64_t> seed_;
};

// For numbers without an upper limit.
CLI::Validator at_least(int64_t least);

// A command adds its options to the app and says what to run.
using Command = std::function<int()>;
void add_command(CLI::App& command, const std::string& examples, Command& selected, Command run);

// Names come from files, which may be a stranger's: their line breaks and escape sequences are
// shown, not obeyed.
std::string one_line(std::string_view text);

// Prints the error on standard error and gives the exit status.
int report(const Error& error);

void print_json(const nlohmann::json& json);

// Each is one file.
void add_inspect(CLI::App& app, Command& selected);
void add_rotate(CLI::App& app, Command& selected);
void add_quantize(CLI::App& app, Command& selected);
void add_eval(CLI::App& app, Command& selected);
void add_compare(CLI::App& app, Command& selected);
void add_study(CLI::App& app, Command& selected);
void add_bench(CLI::App& app, Command& selected);
void add_generate(CLI::App& app, Command& selected);
void add_chat(CLI::App& app, Command& selected);
void add_probe(CLI::App& app, Command& selected);
void add_completion(CLI::App& app, Command& selected);

}  // namespace quarot::cli
