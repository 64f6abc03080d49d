#include "recipe/bits_rule.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"

namespace quarot {

namespace {

constexpr std::string_view kEverywhere = "all";

constexpr std::string_view place_of(Space site) {
  switch (site) {
    case Space::kAttentionInput:
      return "qkv_proj";
    case Space::kFfnInput:
      return "gate_up_proj";
    default:
      return spaces_of(first_reader(site)).name;
  }
}

bool is_site(std::string_view place) {
  return place == kEverywhere || std::ranges::find(kSites, place, place_of) != kSites.end();
}

bool is_linear(std::string_view place) {
  return std::ranges::any_of(kRoles, [&](Role role) { return spaces_of(role).name == place; });
}

// Takes a number off the front of the text.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc() || text.starts_with('-')) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

bool take(char letter, std::string_view& text) {
  if (!text.starts_with(letter)) return false;
  text.remove_prefix(1);
  return true;
}

bool read_layers(std::string_view text, BitsRule& rule) {
  do {
    const std::optional<int64_t> first = take_number(text);
    const std::optional<int64_t> last = first && take('-', text) ? take_number(text) : first;
    if (!last || *last < *first) return false;
    rule.layers.emplace_back(*first, *last);
  } while (take(',', text));
  return text.empty();
}

bool read_bits(std::string_view text, BitsRule& rule) {
  for (const auto& [letter, bits] : {std::pair('W', &rule.weights), {'A', &rule.activations}}) {
    if (!take(letter, text)) continue;
    const std::optional<int64_t> number = take_number(text);
    if (!number || *number < 2 || *number > 8) return false;
    *bits = static_cast<int>(*number);
  }
  return text.empty() && (rule.weights > 0 || rule.activations > 0);
}

bool concerns(const BitsRule& rule, int64_t layer) {
  return rule.layers.empty() || std::ranges::any_of(rule.layers, [layer](const auto& range) {
           return range.first <= layer && layer <= range.second;
         });
}

}  // namespace

Result<BitsRule> parse_bits_rule(const std::string& text) {
  const size_t equals = std::min(text.find('='), text.size());
  const std::string_view where = std::string_view(text).substr(0, equals);
  const size_t at = std::min(where.find('@'), where.size());
  BitsRule rule;
  rule.place = where.substr(0, at);
  const bool known = is_site(rule.place) || is_linear(rule.place);
  if (!known || (at < where.size() && !read_layers(where.substr(at + 1), rule)) ||
      equals == text.size() || !read_bits(std::string_view(text).substr(equals + 1), rule)) {
    return error(ErrorCode::kInvalidArgument,
                 "site_bits \"{}\": expected PLACE=BITS or PLACE@LAYERS=BITS, such as o_proj=A8 or "
                 "down_proj@0-3,29=W8A8; places are all, qkv_proj, o_proj, gate_up_proj, down_proj "
                 "or one linear, bits 2 to 8",
                 text);
  }
  if (!is_site(rule.place) && rule.activations > 0) {
    return error(ErrorCode::kInvalidArgument,
                 "site_bits \"{}\": others read the activations of {} too; name them all, as "
                 "qkv_proj or gate_up_proj",
                 text, rule.place);
  }
  return rule;
}

std::string to_text(const BitsRule& rule) {
  std::string text = rule.place;
  char before = '@';
  for (const auto& [first, last] : rule.layers) {
    text += fmt::format("{}{}", before, first);
    if (last > first) text += fmt::format("-{}", last);
    before = ',';
  }
  text += '=';
  if (rule.weights > 0) text += fmt::format("W{}", rule.weights);
  if (rule.activations > 0) text += fmt::format("A{}", rule.activations);
  return text;
}

LayerBits bits_of(const std::vector<BitsRule>& rules, int64_t layer) {
  LayerBits bits;
  for (const BitsRule& rule : rules) {
    if (!concerns(rule, layer)) continue;
    const auto means = [&](Space site) {
      return rule.place == kEverywhere || rule.place == place_of(site);
    };
    for (const Role role : kRoles) {
      const RoleSpaces& spaces = spaces_of(role);
      if (rule.weights > 0 && (means(spaces.input) || rule.place == spaces.name))
        bits.weights[static_cast<size_t>(role)] = rule.weights;
    }
    for (const Space site : kSites) {
      if (rule.activations > 0 && means(site))
        bits.activations[site_index(site)] = rule.activations;
    }
  }
  return bits;
}

BitsRule rule_for(Space site, const std::vector<bool>& layers, int weights, int activations) {
  BitsRule rule{std::string(place_of(site)), {}, weights, activations};
  for (int64_t layer = 0; layer < std::ssize(layers); ++layer) {
    if (!layers[static_cast<size_t>(layer)]) continue;
    if (!rule.layers.empty() && rule.layers.back().second + 1 == layer) {
      ++rule.layers.back().second;
    } else {
      rule.layers.emplace_back(layer, layer);
    }
  }
  return rule;
}

Status check(const std::vector<BitsRule>& rules, const ModelConfig& config) {
  for (const BitsRule& rule : rules) {
    for (const auto& [first, last] : rule.layers) {
      if (last < config.layers) continue;
      return error(ErrorCode::kInvalidArgument, "site_bits \"{}\": the model has layers 0 to {}",
                   to_text(rule), config.layers - 1);
    }
  }
  return {};
}

}  // namespace quarot
