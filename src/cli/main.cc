#include <fmt/format.h>

#include <charconv>
#include <csignal>
#include <cstdio>

#include "cli/common.h"
#include "quarot/version.h"

namespace quarot::cli {

namespace {

// What was printed may still fail to arrive: a full disk, a reader that went away.
int finish_output(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  std::fputs(
      "quarot: cannot write to standard output; is the disk full, or did its reader go away?\n",
      stderr);
  return status == kDone ? kFailed : status;
}

// Empty where the app has a command of that name.
std::string unknown_command(CLI::App& app, std::string_view name) {
  std::string known;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == name) return "";
    known += (known.empty() ? "" : ", ") + command->get_name();
  }
  return fmt::format("quarot: there is no command \"{}\"; there are {}\n", name, known);
}

// On its own the parser takes -1 for 2^64 - 1, and what is too large for the largest there is.
template <typename Integer>
std::string check_integer(const std::string& text) {
  Integer value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, failed] = std::from_chars(text.data(), end, value);
  if (failed == std::errc() && rest == end) return "";
  return fmt::format("{} is no whole number from {} to {}", text,
                     std::numeric_limits<Integer>::min(), std::numeric_limits<Integer>::max());
}

void check_integers(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands({})) {
    for (CLI::Option* option : command->get_options({})) {
      const std::string type = option->get_type_name();
      if (type.starts_with("INT")) option->check(check_integer<int64_t>);
      if (type.starts_with("UINT")) option->check(check_integer<uint64_t>);
    }
  }
}

// What the parser found wrong, and whose --help says what is right.
std::string wrong_usage(const CLI::App* app, const CLI::Error& error) {
  std::string name = "quarot";
  for (const CLI::App* command : app->get_subcommands()) name += " " + command->get_name();
  return fmt::format("quarot: {}; see {} --help\n", error.what(), name);
}

int run(int argc, char** argv) {
  // A closed pipe and a file beyond the limit are errors like any other.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app(
      "Rotate a language model so that no channel is an outlier, and quantise weights, activations "
      "and KV cache to 4 bits.");
  app.name("quarot");
  app.set_version_flag("--version", std::string(version()));
  app.require_subcommand(1);
  app.failure_message(wrong_usage);
  app.footer(
      "Exit status: 0 done; 1 the input or the machine is at fault; 2 wrong usage; 130 "
      "interrupted.");
  Command selected;
  for (const auto add : {add_inspect, add_probe, add_rotate, add_quantize, add_eval, add_compare,
                         add_study, add_bench, add_generate, add_chat, add_completion}) {
    add(app, selected);
  }
  check_integers(app);
  if (argc < 2) {
    std::fputs(app.help().c_str(), stderr);
    return kWrongUsage;
  }
  if (argv[1][0] != '-') {
    const std::string unknown = unknown_command(app, argv[1]);
    std::fputs(unknown.c_str(), stderr);
    if (!unknown.empty()) return kWrongUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const bool asked =
        e.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);  // --help, --version
    app.exit(e);
    return asked ? finish_output(kDone) : kWrongUsage;
  }
  catch_interrupt();
  return finish_output(selected());
}

}  // namespace

}  // namespace quarot::cli

int main(int argc, char** argv) {
  try {
    return quarot::cli::run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("quarot: out of memory\n", stderr);
    return quarot::cli::kFailed;
  } catch (const std::exception& e) {  // no input is known to lead here
    std::fputs(fmt::format("quarot: {}\n", e.what()).c_str(), stderr);
    return quarot::cli::kFailed;
  }
}
