// quarot bench: how fast a model runs, and what holds it.
#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "cli/bench_kernels.h"
#include "cli/bench_peer.h"
#include "cli/bench_speed.h"
#include "cli/common.h"
#include "cli/model_input.h"
#include "cli/table.h"
#include "kernels/cpu/dispatch.h"
#include "model/synthetic.h"
#include "runtime/make_backend.h"
#include "runtime/timed_backend.h"

namespace quarot::cli {

namespace {

struct BenchOptions {
  ModelInput model;
  CommonOptions common;
  RecipeOptions recipe;
  std::vector<std::string> tests = {"pp128", "pp512", "tg64", "tg32@2048", "tg32@6000"};
  bool chose_tests = false;  // else those of the above that the model's context holds
  int repetitions = 5;
  std::string config;  // instead of a model: a published shape
  bool random_weights = false;
  bool operations = false;
  bool kernels = false;
  Peer peer;
};

// Tokens a second, one entry a repetition.
struct Speed {
  SpeedTest test;
  std::vector<double> ours;
  std::vector<double> peer;                    // with --compare
  std::vector<double> products;                // a float model's prompts: its matrix products alone
  std::vector<TimedBackend::Time> operations;  // with --operations, of a further repetition
};

double median_ratio(const std::vector<double>& x, const std::vector<double>& y) {
  std::vector<double> ratios;
  for (size_t i = 0; i < x.size(); ++i) ratios.push_back(x[i] / y[i]);
  return median(ratios);
}

struct Outcome {
  Recipe recipe;
  Execution execution = Execution::kSimulated;
  std::string_view instructions;
  double stored_bytes = 0;
  int64_t model_bytes = 0;  // in the device's memory, once the model is ready
  int64_t cache_bytes = 0;  // at the deepest test
  int64_t peak_bytes = 0;
  std::vector<Speed> speeds;
};

Status time_operations(Backend& backend, SpeedMeter& meter, Speed& speed, Progress& progress) {
  TimedBackend timed(backend);
  QUAROT_ASSIGN_OR_RETURN(const double rate, meter.run(timed, speed.test, progress));
  speed.operations.assign(timed.times().begin(), timed.times().end());
  const double whole = static_cast<double>(speed.test.tokens) / rate;
  double known = 0;
  for (const TimedBackend::Time& time : speed.operations) known += time.seconds;
  speed.operations.push_back({"other", whole - known});
  return {};
}

Result<std::vector<SpeedTest>> parse_tests(const std::vector<std::string>& names) {
  std::vector<SpeedTest> tests;
  for (const std::string& name : names) {
    QUAROT_ASSIGN_OR_RETURN(tests.emplace_back(), parse_speed_test(name));
  }
  return tests;
}

// What is compared takes turns, so that what else the machine does meets both.
Result<std::vector<Speed>> measure(const BenchOptions& options, const std::vector<SpeedTest>& tests,
                                   bool is_float, Backend& backend, Progress& progress) {
  std::vector<Speed> speeds;
  for (const SpeedTest& test : tests) {
    const Status fits = check(test, backend.config().max_positions);
    if (fits.ok()) {
      speeds.emplace_back().test = test;
    } else if (options.chose_tests || &test == &tests.front()) {
      return fits.error();
    }
  }
  Peer peer = options.peer;
  peer.threads = thread_count();
  SpeedMeter meter(backend.config());
  for (int repetition = -1; repetition < options.repetitions; ++repetition) {  // −1 to warm up
    for (Speed& speed : speeds) {
      QUAROT_ASSIGN_OR_RETURN(const double rate, meter.run(backend, speed.test, progress));
      if (repetition < 0) continue;
      speed.ours.push_back(rate);
      if (is_float && !speed.test.generates) {
        speed.products.push_back(static_cast<double>(speed.test.tokens) /
                                 float_products_seconds(backend.config(), speed.test.tokens));
      }
      if (peer.program.empty()) continue;
      QUAROT_ASSIGN_OR_RETURN(const double peer_rate, run_peer(peer, speed.test));
      speed.peer.push_back(peer_rate);
    }
  }
  for (Speed& speed : speeds) {
    if (options.operations)
      QUAROT_RETURN_IF_ERROR(time_operations(backend, meter, speed, progress));
  }
  return speeds;
}

// What --config and --random-weights ask for, or the model.
Result<RunnableModel> runnable_of(const BenchOptions& options, Outcome& outcome,
                                  Progress& progress) {
  const Device device = options.common.compute_device();
  QUAROT_ASSIGN_OR_RETURN(const Recipe recipe, options.recipe.recipe());
  if (options.config.empty()) {
    QUAROT_ASSIGN_OR_RETURN(OpenModel open, open_model(options.model.path));
    for (const TensorInfo& info : open.checkpoint->tensors().tensors())
      outcome.stored_bytes += static_cast<double>(info.bytes);
    return make_runnable(std::move(open), recipe, options.model.chosen_execution(), device,
                         options.recipe.calibration(), progress);
  }
  if (!recipe.weights.enabled()) {
    return error(ErrorCode::kInvalidArgument,
                 "--random-weights are integers of 4 bits: choose a recipe that has such, as "
                 "--recipe quarot");
  }
  RunnableModel runnable;
  QUAROT_ASSIGN_OR_RETURN(const ModelConfig config, published_config(options.config));
  const TableBits tables{recipe.embedding_bits, recipe.head_bits};
  QUAROT_ASSIGN_OR_RETURN(
      runnable.backend, make_synthetic_backend(config, recipe.transforms, recipe.precision, tables,
                                               progress, device));
  runnable.recipe = recipe;
  runnable.execution = Execution::kPacked;
  return runnable;
}

// --device cuda is for whole models; --config takes the place of MODEL.
Status check_options(const BenchOptions& options) {
  const bool on_gpu = options.common.compute_device() == Device::kCuda;
  if (on_gpu && (options.operations || options.kernels || !options.peer.program.empty())) {
    return error(ErrorCode::kUnsupported,
                 "--operations, --kernels and --compare measure the CPU; leave out --device cuda");
  }
  if (options.config.empty() == options.model.path.empty() ||
      options.config.empty() == options.random_weights) {
    return error(ErrorCode::kInvalidArgument,
                 "expected a MODEL, or in its place --config NAME --random-weights");
  }
  return {};
}

Result<Outcome> bench_model(const BenchOptions& options, Progress& progress) {
  QUAROT_RETURN_IF_ERROR(check_options(options));
  if (options.peer.program.empty() != options.peer.model.empty()) {
    return error(ErrorCode::kInvalidArgument,
                 "--compare PROGRAM and --compare-model FILE go together");
  }
  QUAROT_ASSIGN_OR_RETURN(const std::vector<SpeedTest> tests, parse_tests(options.tests));
  const Device device = options.common.compute_device();
  QUAROT_ASSIGN_OR_RETURN(const cpu::Kernels* kernels, cpu::kernels());
  Outcome outcome;
  outcome.instructions = device == Device::kCuda ? "cuda" : kernels->name;
  QUAROT_ASSIGN_OR_RETURN(const RunnableModel runnable, runnable_of(options, outcome, progress));
  outcome.recipe = runnable.recipe;
  outcome.execution = runnable.execution;
  outcome.model_bytes = used_bytes(device);
  QUAROT_ASSIGN_OR_RETURN(outcome.speeds, measure(options, tests, runnable.recipe.is_float(),
                                                  *runnable.backend, progress));
  outcome.cache_bytes = runnable.backend->cache_bytes();
  outcome.peak_bytes = device == Device::kCuda ? used_bytes(device) : peak_resident_bytes();
  return outcome;
}

nlohmann::json to_json(const BenchOptions& options, const Outcome& outcome) {
  nlohmann::json tests = nlohmann::json::array();
  for (const Speed& speed : outcome.speeds) {
    nlohmann::json test = {{"test", speed.test.name},
                           {"tokens_per_second", median(speed.ours)},
                           {"samples", speed.ours}};
    const auto beside = [&](const char* key, const std::vector<double>& samples) {
      if (samples.empty()) return;
      test[key] = {{"tokens_per_second", median(samples)},
                   {"samples", samples},
                   {"ratio", median_ratio(speed.ours, samples)}};
    };
    beside("compared", speed.peer);
    beside("products_alone", speed.products);
    for (const TimedBackend::Time& time : speed.operations)
      test["operations"][time.operation] = time.seconds;
    tests.push_back(std::move(test));
  }
  return {{"model", options.config.empty() ? options.model.path : options.config},
          {"recipe", outcome.recipe},
          {"bits", bits_label(outcome.recipe)},
          {"execution", execution_name(outcome.execution)},
          {"instructions", outcome.instructions},
          {"threads", thread_count()},
          {"stored_bytes", outcome.stored_bytes},
          {"model_bytes", outcome.model_bytes},
          {"cache_bytes", outcome.cache_bytes},
          {"peak_bytes", outcome.peak_bytes},
          {"tests", tests}};
}

std::string speeds_text(const std::vector<Speed>& speeds) {
  const bool compared = !speeds.front().peer.empty();
  const bool products =
      std::ranges::any_of(speeds, [](const Speed& s) { return !s.products.empty(); });
  std::vector<std::string> headers = {"<test", "tokens/s", "lowest", "highest"};
  if (compared) headers.insert(headers.end(), {"compared", "ratio"});
  if (products) headers.insert(headers.end(), {"products alone", "ratio"});
  Table table(std::move(headers));
  const auto rate = [](double value) { return fmt::format("{:.1f}", value); };
  for (const Speed& speed : speeds) {
    std::vector<std::string> cells = {speed.test.name, rate(median(speed.ours)),
                                      rate(std::ranges::min(speed.ours)),
                                      rate(std::ranges::max(speed.ours))};
    for (const std::vector<double>* beside : {&speed.peer, &speed.products}) {
      if (beside->empty()) continue;
      cells.push_back(rate(median(*beside)));
      cells.push_back(fmt::format("{:.2f}", median_ratio(speed.ours, *beside)));
    }
    table.add(std::move(cells));
  }
  return table.text();
}

// One column a test, each operation's share of the time.
std::string operations_text(const std::vector<Speed>& speeds) {
  std::vector<std::string> headers = {"<share of time"};
  for (const Speed& speed : speeds) headers.push_back(speed.test.name);
  Table table(std::move(headers));
  for (size_t i = 0; i < speeds.front().operations.size(); ++i) {
    std::vector<std::string> cells = {std::string(speeds.front().operations[i].operation)};
    for (const Speed& speed : speeds) {
      double whole = 0;
      for (const TimedBackend::Time& time : speed.operations) whole += time.seconds;
      cells.push_back(fmt::format("{:.1f} %", 100 * speed.operations[i].seconds / whole));
    }
    table.add(std::move(cells));
  }
  return table.text();
}

std::string text_of(const Outcome& outcome) {
  std::string text = speeds_text(outcome.speeds) + "\n";
  if (!outcome.speeds.front().operations.empty()) text += operations_text(outcome.speeds) + "\n";
  return text + fmt::format(
                    "{} ({}), {}, {}, {} threads\n"
                    "memory: file {}, model ready {}, cache {}, peak {}\n",
                    outcome.recipe.name, bits_label(outcome.recipe),
                    execution_name(outcome.execution), outcome.instructions, thread_count(),
                    format_bytes(outcome.stored_bytes),
                    format_bytes(static_cast<double>(outcome.model_bytes)),
                    format_bytes(static_cast<double>(outcome.cache_bytes)),
                    format_bytes(static_cast<double>(outcome.peak_bytes)));
}

Result<ModelConfig> config_of(const BenchOptions& options) {
  if (!options.config.empty()) return published_config(options.config);
  QUAROT_ASSIGN_OR_RETURN(const auto checkpoint, open_checkpoint(options.model.path));
  return parse_config(checkpoint->config(), options.model.path);
}

struct KernelOutcome {
  std::string_view instructions;
  std::vector<KernelSpeed> speeds;
};

Result<KernelOutcome> bench_kernels(const BenchOptions& options, Progress& progress) {
  QUAROT_RETURN_IF_ERROR(check_options(options));
  QUAROT_ASSIGN_OR_RETURN(const cpu::Kernels* kernels, cpu::kernels());
  QUAROT_ASSIGN_OR_RETURN(const ModelConfig config, config_of(options));
  KernelOutcome outcome;
  outcome.instructions = kernels->name;
  QUAROT_ASSIGN_OR_RETURN(outcome.speeds, measure_kernels(*kernels, config, progress));
  return outcome;
}

struct LimitName {
  std::string_view name, unit;
};

constexpr LimitName name_of(Limit limit) {
  switch (limit) {
    case Limit::kDotProducts:
      return {"int8 dot products", "GMAC/s"};
    case Limit::kFloatProducts:
      return {"float multiply-adds", "GMAC/s"};
    case Limit::kMemory:
      return {"memory reads", "GB/s"};
  }
  return {};
}

nlohmann::json to_json(const BenchOptions& options, const KernelOutcome& outcome) {
  nlohmann::json kernels = nlohmann::json::array();
  for (const KernelSpeed& speed : outcome.speeds) {
    kernels.push_back({{"kernel", speed.name},
                       {"limit", name_of(speed.limit).name},
                       {"per_second", speed.rate},
                       {"share", speed.share}});
  }
  return {{"model", options.config.empty() ? options.model.path : options.config},
          {"instructions", outcome.instructions},
          {"threads", thread_count()},
          {"kernels", kernels}};
}

std::string text_of(const KernelOutcome& outcome) {
  Table table({"<kernel", "speed", "<", "of limit", "<the limit"});
  for (const KernelSpeed& speed : outcome.speeds) {
    const LimitName limit = name_of(speed.limit);
    table.add({speed.name, fmt::format("{:.1f}", speed.rate / 1e9), std::string(limit.unit),
               fmt::format("{:.0f} %", 100 * speed.share), std::string(limit.name)});
  }
  return table.text() + fmt::format("\n{}, {} threads\n", outcome.instructions, thread_count());
}

// Runs the measurement and prints what comes of it.
template <typename Measure>
int run(const BenchOptions& options, const Measure& measure) {
  const auto outcome = [&]() -> decltype(measure(options, std::declval<Progress&>())) {
    TerminalProgress progress(options.common.quiet);
    QUAROT_RETURN_IF_ERROR(options.common.apply(true));
    return measure(options, progress);
  }();
  if (!outcome.ok()) return report(outcome.error());
  if (options.common.json) {
    print_json(to_json(options, *outcome));
  } else {
    std::fputs(text_of(*outcome).c_str(), stdout);
  }
  return kDone;
}

}  // namespace

void add_bench(CLI::App& app, Command& selected) {
  CLI::App* command = app.add_subcommand("bench", "Measure how fast a model runs");
  auto options = std::make_shared<BenchOptions>();
  options->model.add_to(*command);
  command->get_option("MODEL")->required(false);
  command->add_option("--config", options->config,
                      "in place of MODEL: the shape of " + published_names());
  command->add_flag("--random-weights", options->random_weights,
                    "with --config: integers of 4 bits by chance, the same in every layer");
  options->model.add_execution_to(*command);
  command
      ->add_option("--tests", options->tests,
                   "ppN: a prompt of N tokens; tgN: N tokens generated; @DEPTH: after so many")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  command
      ->add_option("-r,--repetitions", options->repetitions, "of each test, after one to warm up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("--operations", options->operations, "where the time of each test goes");
  command->add_flag("--kernels", options->kernels,
                    "instead, each kernel at the model's shapes against the machine's limits");
  command->add_option("--compare", options->peer.program,
                      "a benchmark program to time in turns with ours (llama-bench's options)");
  command->add_option("--compare-model", options->peer.model, "the model file it is given");
  options->recipe.add_to(*command, "float");
  options->common.add_to(*command);
  add_command(*command,
              "  quarot bench artifact/\n"
              "  quarot bench model.gguf --recipe balanced --tests pp512,tg64 --operations\n"
              "  quarot bench --config llama-2-7b --random-weights --recipe quarot --device cuda\n"
              "  quarot bench artifact/ --compare llama-bench --compare-model model-Q4_0.gguf",
              selected, [options, command] {
                options->chose_tests = command->count("--tests") > 0;
                return options->kernels ? run(*options, bench_kernels) : run(*options, bench_model);
              });
}

}  // namespace quarot::cli
