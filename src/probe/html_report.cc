#include "probe/html_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "probe/assets.h"
#include "probe/figures.h"
#include "probe/plot.h"

namespace quarot {

namespace {

// Whether a column's cells are numbers, which stand on the right.
bool is_numeric(const std::vector<std::vector<std::string>>& rows, size_t column) {
  return std::ranges::all_of(rows, [column](const auto& row) {
    const std::string& cell = row[column];
    return cell.empty() || cell.find_first_of("0123456789") <= 1;
  });
}

std::string table(const std::vector<std::string>& headers,
                  const std::vector<std::vector<std::string>>& rows, int layer_column) {
  std::string html = "<div class=\"scroll\"><table><thead><tr>";
  std::vector<std::string_view> opens;  // of each column's cells
  for (size_t column = 0; column < headers.size(); ++column) {
    const bool numeric = is_numeric(rows, column);
    opens.emplace_back(numeric ? "<td>" : "<td class=\"text\">");
    html += fmt::format("<th scope=\"col\"{}>{}</th>", numeric ? "" : " class=\"text\"",
                        escaped(headers[column]));
  }
  html += "</tr></thead><tbody>";
  for (const auto& row : rows) {
    html += layer_column < 0 ? "<tr>"
                             : fmt::format("<tr data-layer=\"{}\">",
                                           escaped(row[static_cast<size_t>(layer_column)]));
    for (size_t column = 0; column < row.size(); ++column)
      html += fmt::format("{}{}</td>", opens[column], escaped(row[column]));
    html += "</tr>";
  }
  return html + "</tbody></table></div>";
}

// A number and its % stay on one line.
std::string sentence_markup(std::string_view sentence) {
  std::string text = escaped(sentence);
  for (size_t at = 0; (at = text.find(" %", at)) != std::string::npos;)
    text.replace(at, 1, "&nbsp;");
  return text;
}

std::string section(const Figure& figure) {
  return fmt::format(
      "<figure id=\"{}\"><h2>{}</h2><figcaption><p>{}</p></figcaption>\n"
      "<div class=\"scroll\">{}</div>\n<details><summary>The "
      "numbers</summary>{}</details></figure>\n",
      figure.id, escaped(figure.title), sentence_markup(figure.sentence),
      figure.picture.inline_markup(figure.title + ". " + figure.sentence),
      table(figure.headers, figure.rows, figure.layer_column));
}

std::string layer_table(const Probe& probe) {
  std::vector<std::vector<std::string>> rows;
  for (size_t l = 0; l < probe.layers.size(); ++l) {
    for (size_t p = 0; p < kPoints.size(); ++p) {
      const auto& [before, after] = probe.layers[l].points[p];
      const LayerTreatments& t = probe.layers[l].treatments;
      const bool site = p < kSites.size();
      rows.push_back({fmt::format("{}", l), std::string(space_name(kPoints[p])),
                      number(before.peak_over_rms), number(after.peak_over_rms),
                      number(before.kurtosis), number(after.kurtosis), number(before.incoherence),
                      number(after.incoherence), fmt::format("{}", before.loud_channels),
                      fmt::format("{}", after.loud_channels),
                      fmt::format("{:.6g}", site ? t.norm_before[p] : before.norm),
                      fmt::format("{:.6g}", site ? t.norm_after[p] : after.norm),
                      site ? fmt::format("{:.1e}", t.exactness[p]) : ""});
    }
  }
  return table({"layer", "site", "largest/RMS", "rotated", "kurtosis", "rotated", "μ", "rotated",
                "above 6.0", "rotated", "‖X‖", "‖X̃‖", "change of outputs"},
               rows, 0);
}

std::string weight_table(const Probe& probe) {
  std::vector<std::vector<std::string>> rows;
  for (size_t l = 0; l < probe.layers.size(); ++l) {
    for (const Role role : kRoles) {
      const auto i = static_cast<size_t>(role);
      rows.push_back({fmt::format("{}", l), std::string(spaces_of(role).name),
                      number(probe.layers[l].weight_incoherence[i]),
                      number(probe.layers[l].rotated_weight_incoherence[i])});
    }
  }
  return table({"layer", "linear", "μ", "rotated"}, rows, 0);
}

std::string token_table(const Probe& probe) {
  std::vector<std::vector<std::string>> rows;
  for (const LoudPlace& p : probe.loud_places) {
    rows.push_back({shortened(p.token), fmt::format("{}", p.window), fmt::format("{}", p.position),
                    fmt::format("{}", p.channel), number(p.loudest.value),
                    number(p.loudest.over_median), fmt::format("{}", p.loudest_layer),
                    fmt::format("{}", p.layers)});
  }
  return table({"token", "window", "position", "channel", "value", "over the median",
                "loudest behind layer", "massive behind layers"},
               rows, -1);
}

std::string token_sentence(const Probe& probe) {
  int64_t massive = 0;
  for (const LoudPlace& p : probe.loud_places) massive += p.layers > 0 ? 1 : 0;
  const LoudPlace& first = probe.loud_places.front();
  return fmt::format(
      "The loudest elements of the residual stream: position {} of window {}, channel {}, holds {} "
      "behind layer {}, {} times its token's median. {} of these {} are massive (over 100, and "
      "1000 times the median).",
      first.position, first.window, first.channel, number(first.loudest.value), first.loudest_layer,
      number(first.loudest.over_median), massive, probe.loud_places.size());
}

double worst_exactness(const Probe& probe) {
  double worst = 0;
  for (const LayerProbe& layer : probe.layers) {
    for (const double error : layer.treatments.exactness) worst = std::max(worst, error);
  }
  return worst;
}

std::string details(std::string_view id, std::string_view title, std::string_view sentence,
                    const std::string& table) {
  return fmt::format(
      "<figure><h2>{}</h2><p>{}</p><details id=\"{}\"><summary>The numbers</summary>{}</details>"
      "</figure>\n",
      escaped(title), escaped(sentence), id, table);
}

}  // namespace

std::string html_report(const Probe& probe) {
  const std::vector<Figure> all = figures(probe);
  std::string links;
  std::string sections;
  for (const Figure& figure : all) {
    links += fmt::format("<li><a href=\"#{}\">{}</a></li>", figure.id, escaped(figure.title));
    sections += section(figure);
  }
  return fmt::format(
             "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
             "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
             "<title>quarot probe: {0}</title>\n<style>\n{1}{2}</style></head>\n<body>\n"
             "<header><h1>{0}</h1><p class=\"about\">{3} layers, hidden {4}, {5}; recipe {6} at "
             "{7}, over {8} tokens in {9} windows of {10}; {11:.0f} s, peak {15:.2f} GB.</p>"
             "<p>The rotation changes the logits by {12:.1e} and the outputs of any site by "
             "{13:.1e} at most: it is the same function in another basis.</p></header>\n"
             "<nav aria-label=\"Figures\"><ul>{14}</ul></nav>\n<main>\n",
             escaped(probe.model), kReportCss, kFigureCss, probe.config.layers, probe.config.hidden,
             escaped(probe.format), escaped(probe.recipe), escaped(probe.bits), probe.tokens,
             probe.windows, escaped(probe.text), probe.seconds, probe.logit_error,
             worst_exactness(probe), links, 1e-9 * static_cast<double>(probe.peak_bytes)) +
         sections +
         details(
             "layers", "Every site",
             "Before and after the rotation, at what each linear reads and what the cache holds. "
             "‖X‖, taken before a norm's gain where that folds into the readers, equals ‖X̃‖ "
             "unless the recipe scales.",
             layer_table(probe)) +
         details("weights", "Incoherence of the weights",
                 "μ = max|W|·√(mn)/‖W‖: near 4 for a Gaussian matrix, larger with outliers.",
                 weight_table(probe)) +
         details("tokens", "Massive tokens", token_sentence(probe), token_table(probe)) +
         "</main>\n<div id=\"filter\" role=\"status\" hidden><output></output> "
         "<button type=\"button\">All layers</button></div>\n<script>\n" +
         std::string(kReportJs) + "</script>\n</body></html>\n";
}

}  // namespace quarot
