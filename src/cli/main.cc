#include <cstdio>

#include "cli/common.h"
#include "quarot/version.h"

namespace quarot::cli {

namespace {

int run(int argc, char** argv) {
  CLI::App app(
      "Rotate a language model so that no channel is an outlier, and quantise weights, activations "
      "and KV "
      "cache to 4 bits.");
  app.name("quarot");
  app.set_version_flag("--version", std::string(version()));
  app.require_subcommand(1);
  app.footer(
      "Exit status: 0 done; 1 the input or the machine is at fault; 2 wrong usage; 130 "
      "interrupted.");
  Command selected;
  for (const auto add : {add_inspect, add_probe, add_rotate, add_quantize, add_eval, add_generate,
                         add_chat, add_completion}) {
    add(app, selected);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const bool asked =
        e.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);  // --help, --version
    app.exit(e);
    return asked ? kDone : kWrongUsage;
  }
  catch_interrupt();
  return selected();
}

}  // namespace

}  // namespace quarot::cli

int main(int argc, char** argv) {
  try {
    return quarot::cli::run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("quarot: out of memory\n", stderr);
    return quarot::cli::kFailed;
  }
}
