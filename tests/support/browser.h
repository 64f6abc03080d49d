// A page in a real browser, where there is one.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace quarot::testing {

inline std::string chromium() {
  for (const char* path : {"/usr/bin/chromium", "/usr/bin/google-chrome"}) {
    if (std::filesystem::exists(path)) return path;
  }
  return "";
}

// The document's title, markup escaped, once the script `check` has run behind the page's own;
// window.failed is the message of a script's error, where there was one.
inline std::string title_in_browser(std::string html, const std::string& check) {
  namespace fs = std::filesystem;
  const fs::path folder =
      fs::temp_directory_path() / ("quarot-browser-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  html.insert(html.find("<title>"),
              "<script>addEventListener('error', e => { window.failed = e.message; });</script>");
  html.insert(html.rfind("</body>"), "<script>" + check + "</script>");
  std::ofstream(folder / "page.html") << html;
  const std::string command =
      chromium() +
      " --headless --no-sandbox --disable-gpu --user-data-dir=" + (folder / "profile").string() +
      " --dump-dom file://" + (folder / "page.html").string() + " 2>/dev/null";
  std::string dom;
  FILE* pipe = ::popen(command.c_str(), "r");
  char buffer[4096];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, pipe)) dom.append(buffer, count);
  ::pclose(pipe);
  fs::remove_all(folder);
  const size_t begin = dom.find("<title>");
  if (begin == std::string::npos) return "";
  return dom.substr(begin + 7, dom.find("</title>") - begin - 7);
}

}  // namespace quarot::testing
