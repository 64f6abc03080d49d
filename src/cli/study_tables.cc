#include "cli/study_tables.h"

#include "base/error.h"

namespace quarot::cli {

namespace {

using nlohmann::json;

const json kGptq = {{"w_method", "gptq"}};
const json kFloatActivations = {{"a_bits", 16}, {"k_bits", 16}, {"v_bits", 16}};
const json kFloatProducts = {{"w_bits", 16}, {"a_bits", 16}};

json with(json base, const json& changes) {
  base.update(changes);
  return base;
}

json all_bits(int bits) {
  return {{"w_bits", bits}, {"a_bits", bits}, {"k_bits", bits}, {"v_bits", bits}};
}

json without(std::initializer_list<const char*> spaces) {
  json transforms = json::object();
  for (const char* space : spaces) transforms[space] = false;
  return {{"transforms", transforms}};
}

json basis(const char* kind) { return {{"transforms", {{"kind", kind}}}}; }

std::vector<StudyRow> main_rows() {
  return {{"float", "float"},
          {"RTN", "naive"},
          {"SmoothQuant", "smoothquant", all_bits(4)},
          {"OmniQuant", "omniquant", {{"k_bits", 4}, {"v_bits", 4}}},
          {"QUIK", "quik", {{"k_bits", 4}, {"v_bits", 4}}},
          {"Atom", "atom"},
          {"QuaRot RTN", "quarot"},
          {"QuaRot GPTQ", "quarot", kGptq},
          {"balanced RTN", "balanced"},
          {"balanced GPTQ", "balanced", kGptq},
          {"balanced-gptq", "balanced-gptq"}};
}

std::vector<StudyRow> rival_rows() {
  return {{"float", "float"},
          {"SmoothQuant", "smoothquant"},
          {"SmoothQuant, α searched", "smoothquant-searched"},
          {"LLM.int8()", "llm-int8"},
          {"AWQ", "awq"},
          {"QuIP", "quip"},
          {"QuIP#", "quip-sharp"},
          {"OmniQuant", "omniquant"},
          {"QUIK", "quik"},
          {"Atom", "atom"},
          {"KIVI", "kivi"},
          {"KVQuant", "kvquant"}};
}

std::vector<StudyRow> activation_rows() {
  const json eight = {{"a_bits", 8}};
  return {{"float", "float"},
          {"RTN", "naive", eight},
          {"QuaRot RTN", "quarot", eight},
          {"QuaRot GPTQ", "quarot", with(kGptq, eight)},
          {"balanced RTN", "balanced", eight},
          {"balanced GPTQ", "balanced", with(kGptq, eight)},
          {"balanced-gptq", "balanced-gptq", eight}};
}

std::vector<StudyRow> group_rows() {
  std::vector<StudyRow> rows = {{"float", "float"}};
  for (const auto& [label, recipe] : {std::pair("QuaRot GPTQ", "quarot"),
                                      {"balanced GPTQ", "balanced"},
                                      {"balanced-gptq", "balanced-gptq"}}) {
    rows.push_back({label, recipe, kGptq});
    for (const int group : {256, 128, 64, 32}) {
      rows.push_back({fmt::format("{}, groups of {}", label, group), recipe,
                      with(kGptq, {{"w_group", group}, {"a_group", group}})});
    }
  }
  return rows;
}

// What balanced-gptq adds to the paper's method, each alone and each left out.
std::vector<StudyRow> gain_rows() {
  const std::pair<const char*, json> parts[] = {
      {"quantised inputs", {{"gptq_quantized_inputs", true}}},
      {"the float residual stream as aim",
       {{"gptq_quantized_inputs", true}, {"gptq_residual", 0.5}}},
      {"clip ratios searched", {{"a_search_clip", true}}},
  };
  const json taken_back[] = {
      {{"gptq_quantized_inputs", false}}, {{"gptq_residual", 0.0}}, {{"a_search_clip", false}}};
  std::vector<StudyRow> rows = {
      {"float", "float"}, {"QuaRot GPTQ", "quarot", kGptq}, {"balanced GPTQ", "balanced", kGptq}};
  for (const auto& [label, changes] : parts) {
    rows.push_back({fmt::format("and {}", label), "balanced", with(kGptq, changes)});
  }
  rows.push_back({"all of them: balanced-gptq", "balanced-gptq"});
  for (size_t i = 0; i < std::size(parts); ++i) {
    rows.push_back({fmt::format("all but {}", parts[i].first), "balanced-gptq", taken_back[i]});
  }
  rows.push_back({"all but the scaling", "balanced-gptq", {{"scaling", "none"}}});
  rows.push_back({"all, and act-order", "balanced-gptq", {{"gptq_act_order", true}}});
  rows.push_back({"all, A asymmetric", "balanced-gptq", {{"a_symmetric", false}}});
  return rows;
}

std::vector<StudyRow> cache_rows() {
  std::vector<StudyRow> rows = {{"float", "float"}};
  for (const auto& [label, recipe] : {std::pair("QuaRot", "quarot"), {"balanced", "balanced"}}) {
    for (const int k : {4, 3, 2}) {
      for (const int v : {4, 3, 2}) {
        rows.push_back({fmt::format("{} K{}V{}", label, k, v), recipe,
                        with(kFloatProducts, {{"k_bits", k}, {"v_bits", v}})});
      }
    }
  }
  return rows;
}

std::vector<StudyRow> weight_rows() {
  std::vector<StudyRow> rows = {{"float", "float"}};
  for (const int bits : {4, 3, 2}) {
    const json rtn = with(kFloatActivations, {{"w_bits", bits}});
    const json gptq = with(rtn, kGptq);
    const std::string label = fmt::format("W{} ", bits);
    rows.push_back({label + "RTN", "naive", rtn});
    rows.push_back({label + "GPTQ", "naive", gptq});
    rows.push_back({label + "QuaRot RTN", "quarot", rtn});
    rows.push_back({label + "QuaRot GPTQ", "quarot", gptq});
    rows.push_back({label + "balanced GPTQ", "balanced", gptq});
  }
  return rows;
}

std::vector<StudyRow> bits_rows() {
  std::vector<StudyRow> rows = {{"float", "float"}};
  for (const int bits : {8, 6, 4}) {
    for (const auto& [label, recipe] :
         {std::pair("RTN", "naive"), {"QuaRot RTN", "quarot"}, {"balanced RTN", "balanced"}}) {
      rows.push_back({fmt::format("{}, {} bits", label, bits), recipe, all_bits(bits)});
    }
  }
  return rows;
}

// 8 bits for some sites: of one role, or as a budget chooses them.
std::vector<StudyRow> budget_rows() {
  const std::string recipe = "balanced-gptq";
  const auto named = [](const char* rule) { return json{{"site_bits", {rule}}}; };
  std::vector<StudyRow> rows = {{"float", "float"}, {recipe, recipe}};
  rows.push_back({"A8 where o_proj reads", recipe, named("o_proj=A8")});
  for (const double budget : {4.25, 4.5, 5.0, 6.0})
    rows.push_back({fmt::format("A within {}", budget), recipe, {{"a_budget", budget}}});
  rows.push_back({"A8", recipe, {{"a_bits", 8}}});
  rows.push_back({"W8 of o_proj", recipe, named("o_proj=W8")});
  for (const double budget : {4.25, 4.5, 5.0})
    rows.push_back({fmt::format("W within {}", budget), recipe, {{"w_budget", budget}}});
  rows.push_back({"W8", recipe, {{"w_bits", 8}}});
  return rows;
}

}  // namespace

const std::vector<StudyTable>& study_tables() {
  static const std::vector<StudyTable> kTables = {
      {"main", "W4A4KV4", main_rows()},
      {"zero-shot", "Zero-shot tasks at W4A4KV4", main_rows(), 1, true},
      {"rivals", "Other systems, each at the bits it was published with", rival_rows()},
      {"w4a8", "W4A8KV4: activations of 8 bits", activation_rows()},
      {"groups", "Groups of weights and activations at W4A4KV4", group_rows()},
      {"gains", "What balanced-gptq is made of, at W4A4KV4", gain_rows()},
      {"budget", "8 bits for some activations or weights, W4A4KV4 else", budget_rows()},
      {"cache", "Bits of keys and values, everything else float", cache_rows()},
      {"weights", "Weights alone, with and without rotation", weight_rows()},
      {"basis",
       "The basis of the residual stream at W4A4KV4, RTN",
       {{"float", "float"},
        {"randomised Hadamard", "quarot"},
        {"Hadamard without signs", "quarot", basis("plain-hadamard")},
        {"random orthogonal", "quarot", basis("random")},
        {"principal components", "principal"},
        {"learned", "quarot", basis("learned")}},
       3},
      {"half",
       "Online transforms in half precision at W4A4KV4, RTN",
       {{"float", "float"},
        {"QuaRot", "quarot"},
        {"QuaRot, half precision", "quarot", {{"online_half", true}}},
        {"balanced", "balanced"},
        {"balanced, half precision", "balanced", {{"online_half", true}}}}},
      {"rtn", "Round to nearest at 8, 6 and 4 bits", bits_rows()},
      {"rotations",
       "Each rotation left out in turn at W4A4KV4, RTN",
       {{"float", "float"},
        {"QuaRot", "quarot"},
        {"without R1", "quarot", without({"residual"})},
        {"without R2", "quarot", without({"value", "heads"})},
        {"without R3", "quarot", without({"query_key"})},
        {"without R4", "quarot", without({"ffn"})},
        {"balanced", "balanced"},
        {"balanced without R1", "balanced", without({"norm_output"})},
        {"balanced without R2", "balanced", without({"value", "heads"})},
        {"balanced without R3", "balanced", without({"query_key"})},
        {"balanced without R4", "balanced", without({"ffn"})}}},
      {"seeds",
       "Seeds at W4A4KV4",
       {{"float", "float"},
        {"QuaRot RTN", "quarot"},
        {"QuaRot GPTQ", "quarot", kGptq},
        {"balanced RTN", "balanced"},
        {"balanced GPTQ", "balanced", kGptq},
        {"balanced-gptq", "balanced-gptq"}},
       5}};
  return kTables;
}

Result<Recipe> recipe_of(const StudyRow& row) {
  QUAROT_ASSIGN_OR_RETURN(const Recipe base, recipe_by_name(row.recipe));
  json json = base;
  json.merge_patch(row.changes);
  return parse_recipe(json, row.label);
}

}  // namespace quarot::cli
