#include "probe/html_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "engine/open_runnable.h"
#include "probe/figures.h"
#include "probe/plot.h"
#include "probe/report_json.h"
#include "support/browser.h"
#include "support/data.h"
#include "support/model.h"

namespace quarot {
namespace {

using testing::data_folder;
using testing::value_of;

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

TEST(Escaped, LeavesNoMarkup) {
  EXPECT_EQ(escaped("<a href=\"x\">'&'</a>\n"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;\u240A");
  EXPECT_EQ(escaped("grün 👍🏽"), "grün 👍🏽");
  EXPECT_EQ(escaped("a\u202Eb\u0085c\xff"), "a[U+202E]b[U+0085]c\uFFFD");
}

TEST(Axis, MapsEnds) {
  const Axis axis{1, 100, 10, 30, true};
  EXPECT_DOUBLE_EQ(axis(1), 10);
  EXPECT_DOUBLE_EQ(axis(10), 20);
  EXPECT_DOUBLE_EQ(axis(1e9), 30);
  EXPECT_DOUBLE_EQ(axis(0), 10);
}

TEST(Plot, TicksAreRoundAndStandWhereTheySay) {
  EXPECT_DOUBLE_EQ(round_step(1), 1);
  EXPECT_DOUBLE_EQ(round_step(29.0 / 15), 2);
  EXPECT_DOUBLE_EQ(round_step(0.034), 0.05);
  EXPECT_DOUBLE_EQ(round_step(7), 10);
  EXPECT_DOUBLE_EQ(round_step(0), 1);
  Svg svg(100, 100);
  const Plot plot{&svg, {0, 29, 0, 290}, {0, 1, 90, 10}};
  plot.ticks_x(10);
  const std::string picture = svg.file("");
  for (const char* tick : {"<text x=\"0\"", "<text x=\"100\"", "<text x=\"200\""})
    EXPECT_NE(picture.find(tick), std::string::npos) << picture;
  EXPECT_EQ(picture.find("30</text>"), std::string::npos);
}

TEST(Number, HasFourDigitsOrAllBeforeThePoint) {
  EXPECT_EQ(number(0.00012345), "0.0001234");
  EXPECT_EQ(number(-24242), "-24242");
  EXPECT_EQ(number(2.22e-16), "2.22e-16");
}

TEST(Shortened, CutsBetweenCharacters) {
  EXPECT_EQ(shortened("short"), "short");
  std::string umlauts;
  for (int i = 0; i < 41; ++i) umlauts += "ü";
  EXPECT_EQ(shortened(umlauts), umlauts.substr(0, 80) + "…");
  EXPECT_EQ(shortened("\xff"), "\uFFFD");
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
  if (testing::chromium().empty()) GTEST_SKIP() << "no chromium here";
  EXPECT_EQ(testing::title_in_browser(html_report(hostile(probe())), R"(
    const shown = () => [...document.querySelectorAll('tr[data-layer]')].filter(r => !r.hidden);
    const every = shown().length;
    const pick = document.querySelector('[data-pick="2"]');
    pick.dispatchEvent(new MouseEvent('click', {bubbles: true}));
    const only = shown().every(r => r.dataset.layer === '2') && shown().length === every / 5;
    const pressed = pick.getAttribute('aria-pressed');
    dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}));
    const back = shown().length === every;
    pick.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}));
    pick.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));
    const next = document.activeElement;
    const keys = shown().length === every / 5 && next.dataset.pick === '3' &&
      document.querySelectorAll('[data-pick][tabindex="0"]').length === 1;
    const drawn = [...document.querySelectorAll('figure svg')].filter(s => s.getBoundingClientRect().height > 50).length;
    const long = [...document.querySelectorAll('details')].filter(d => d.querySelectorAll('tr').length > 60).length;
    const closed = () => document.querySelectorAll('details:not([open])').length;
    const before = closed();
    dispatchEvent(new Event('beforeprint'));
    const paper = before > 5 && long > 0 && closed() === long;
    dispatchEvent(new Event('afterprint'));
    const folds = paper && closed() === before;
    const wide = document.documentElement.scrollWidth > innerWidth;
    document.title = `verdict ${only} ${pressed} ${back} ${keys} ${folds} ${wide} ${drawn} ${window.failed}`;
  )"),
            "verdict true true true true true false 10 undefined");
}

}  // namespace
}  // namespace quarot
