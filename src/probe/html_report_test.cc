#include "probe/html_report.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/mapped_file.h"
#include "engine/open_runnable.h"
#include "probe/figures.h"
#include "probe/report_json.h"
#include "support/data.h"
#include "support/model.h"

namespace quarot {
namespace {

using testing::data_folder;
using testing::value_of;
namespace fs = std::filesystem;

Probe stories_probe() {
  const OpenModel open =
      value_of(open_model(*data_folder() / "models" / "stories260k" / "stories260K.bin"));
  std::vector<std::vector<Token>> windows;
  const std::vector<Token> text = open.tokenizer->encode(
      "Once upon a time there was a small bridge. Tom and Lily ran to it and looked at the water. "
      "They saw a red fish and a big boat. The boat had a bell, and the bell was loud.");
  windows.push_back(text);
  NoProgress progress;
  return value_of(probe_model(*open.checkpoint, *open.tokenizer, value_of(recipe_by_name("quarot")),
                              windows, {.held_out_tokens = 16, .attribution_tokens = 16},
                              progress));
}

constexpr std::string_view kHostile = "</title><script>document.title='broken'</script>\"'&";

// Names from strangers wherever the report shows one.
Probe hostile(Probe probe) {
  probe.model = probe.text = probe.format = kHostile;
  for (std::string& token : probe.surface.tokens) token = kHostile;
  for (LoudPlace& place : probe.loud_places) place.token = kHostile;
  return probe;
}

std::string chromium() {
  for (const char* path : {"/usr/bin/chromium", "/usr/bin/google-chrome"}) {
    if (fs::exists(path)) return path;
  }
  return "";
}

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = ::popen(command.c_str(), "r");
  char buffer[4096];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, pipe))
    text.append(buffer, count);
  ::pclose(pipe);
  return text;
}

TEST(Escaped, LeavesNoMarkup) {
  EXPECT_EQ(escaped("<a href=\"x\">'&'</a>\n"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;\uFFFD");
  EXPECT_EQ(escaped("grün"), "grün");
}

TEST(Axis, MapsEnds) {
  const Axis axis{1, 100, 10, 30, true};
  EXPECT_DOUBLE_EQ(axis(1), 10);
  EXPECT_DOUBLE_EQ(axis(10), 20);
  EXPECT_DOUBLE_EQ(axis(1e9), 30);
  EXPECT_DOUBLE_EQ(axis(0), 10);
}

class HtmlReport : public ::testing::Test {
 protected:
  static const Probe& probe() {
    static const Probe probe = stories_probe();
    return probe;
  }
  void SetUp() override { QUAROT_NEEDS(data_folder()); }
};

TEST_F(HtmlReport, SaysWhatWasMeasured) {
  const Probe& p = probe();
  EXPECT_LT(p.logit_error, 1e-5);
  EXPECT_EQ(p.heat.size(), 5U);
  const double all = p.find("rotated", "all", "everything", true)->loss.kl;
  EXPECT_GT(all, 0);
  for (const auto& row : p.heat) {
    for (const double kl : row) EXPECT_GT(kl, 0);
  }
  for (const LayerProbe& layer : p.layers) {
    for (const double error : layer.treatments.exactness) EXPECT_LT(error, 1e-5);
  }
  const nlohmann::json json = to_json(p);
  EXPECT_EQ(json["sites"].size(), 5U * 4U);
  EXPECT_EQ(json["cache"].size(), 5U * 2U);
  EXPECT_EQ(json["treatments"].size(), 5U * 2U * 7U);
  EXPECT_EQ(json["cache_treatments"].size(), 5U * 2U * 2U);
  for (const auto& row : json["attribution"]["layer_by_site_kl"]) EXPECT_EQ(row.size(), 6U);
  EXPECT_EQ(json["attribution"]["layer_by_site_kl"].size(), 5U);
  EXPECT_EQ(json["attribution"]["rows"].size(), p.attribution.size());
}

TEST_F(HtmlReport, HasEveryFigureOnceAndNothingFromOutside) {
  const std::string html = html_report(probe());
  std::set<std::string> ids;
  for (const Figure& figure : figures(probe())) {
    EXPECT_TRUE(ids.insert(figure.id).second);
    EXPECT_NE(html.find("<figure id=\"" + figure.id + "\""), std::string::npos);
    EXPECT_FALSE(figure.rows.empty()) << figure.id;
    for (const auto& row : figure.rows) EXPECT_EQ(row.size(), figure.headers.size()) << figure.id;
  }
  EXPECT_EQ(ids.size(), 10U);
  for (const char* outside : {"src=", "@import", "url(", "https://"})
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  EXPECT_EQ(html.find("nan"), std::string::npos);
}

TEST_F(HtmlReport, KeepsHostileNamesText) {
  const std::string html = html_report(hostile(probe()));
  EXPECT_EQ(html.find("<script>document"), std::string::npos);
  EXPECT_NE(html.find("&lt;script&gt;document"), std::string::npos);
  for (const Figure& figure : figures(hostile(probe())))
    EXPECT_EQ(figure.picture.file(figure.title).find("<script"), std::string::npos);
}

// A real browser: no script errors, figures drawn, a picked layer filters, Escape brings all back.
TEST_F(HtmlReport, WorksInABrowser) {
  if (chromium().empty()) GTEST_SKIP() << "no chromium here";
  const fs::path folder = fs::temp_directory_path() / "quarot_probe_browser";
  fs::create_directories(folder);
  std::string html = html_report(hostile(probe()));
  const std::string errors =
      "<script>addEventListener('error', e => { window.failed = e.message; });</script>";
  html.insert(html.find("<title>"), errors);
  const std::string check = R"(<script>
    const shown = () => [...document.querySelectorAll('tr[data-layer]')].filter(r => !r.hidden);
    const every = shown().length;
    const pick = document.querySelector('[data-pick="2"]');
    pick.dispatchEvent(new MouseEvent('click', {bubbles: true}));
    const only = shown().every(r => r.dataset.layer === '2') && shown().length === every / 5;
    const pressed = pick.getAttribute('aria-pressed');
    dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}));
    const back = shown().length === every;
    pick.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}));
    const keys = shown().length === every / 5;
    const drawn = [...document.querySelectorAll('figure svg')].filter(s => s.getBoundingClientRect().height > 50).length;
    const closed = () => document.querySelectorAll('details:not([open])').length;
    const before = closed();
    dispatchEvent(new Event('beforeprint'));
    const paper = before > 5 && closed() === 0;
    dispatchEvent(new Event('afterprint'));
    const folds = paper && closed() === before;
    const wide = document.documentElement.scrollWidth > innerWidth;
    document.title = `verdict ${only} ${pressed} ${back} ${keys} ${folds} ${wide} ${drawn} ${window.failed}`;
  </script>)";
  html.insert(html.rfind("</body>"), check);
  std::ofstream(folder / "report.html") << html;
  const std::string dom =
      output_of(chromium() + " --headless --no-sandbox --disable-gpu --user-data-dir=" +
                (folder / "profile").string() + " --dump-dom file://" +
                (folder / "report.html").string() + " 2>/dev/null");
  EXPECT_NE(dom.find("<title>verdict true true true true true false 10 undefined</title>"),
            std::string::npos)
      << dom.substr(0, dom.find("</title>") + 8);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace quarot
