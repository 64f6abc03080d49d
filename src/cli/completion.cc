// quarot completion: a script that teaches bash or zsh the commands and their options.
#include <cstdio>

#include "cli/common.h"

namespace quarot::cli {

namespace {

// "command:--option --option" a line, read off the parser itself so that it cannot go stale.
std::string words_of(const CLI::App& command) {
  std::string words;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) words += " --" + name;
  }
  return words;
}

std::string bash_script(const CLI::App& app) {
  std::string commands;
  std::string cases;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands += " " + command->get_name();
    cases += "    " + command->get_name() + ") words=\"" + words_of(*command).substr(1) + "\" ;;\n";
  }
  return "_quarot() {\n"
         "  local current=\"${COMP_WORDS[COMP_CWORD]}\" words=\"\"\n"
         "  if [ \"$COMP_CWORD\" -eq 1 ]; then words=\"" +
         commands.substr(1) +
         " --help --version\"\n"
         "  else case \"${COMP_WORDS[1]}\" in\n" +
         cases +
         "  esac; fi\n"
         "  case \"$current\" in\n"
         "    -*) COMPREPLY=($(compgen -W \"$words\" -- \"$current\")) ;;\n"
         "    *) if [ \"$COMP_CWORD\" -eq 1 ]; then COMPREPLY=($(compgen -W \"$words\" -- "
         "\"$current\"))\n"
         "       else COMPREPLY=($(compgen -f -- \"$current\")); fi ;;\n"
         "  esac\n"
         "}\n"
         "complete -o filenames -F _quarot quarot\n";
}

}  // namespace

void add_completion(CLI::App& app, Command& selected) {
  CLI::App* command = app.add_subcommand("completion", "Print a completion script for bash or zsh");
  auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "bash or zsh")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  add_command(*command,
              "  source <(quarot completion bash)\n"
              "  source <(quarot completion zsh)   # after compinit",
              selected, [&app, shell] {
                // zsh runs bash's completions through its own emulation; its first line is for
                // zsh's fpath.
                if (*shell == "zsh") {
                  std::fputs("#compdef quarot\nautoload -U +X bashcompinit && bashcompinit\n",
                             stdout);
                }
                std::fputs(bash_script(app).c_str(), stdout);
                return kDone;
              });
}

}  // namespace quarot::cli
