#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/data.h"

namespace quarot {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

fs::path template_folder() { return fs::path(QUAROT_SOURCE_DIR) / "tests" / "chat_templates"; }

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Json read_json(const fs::path& path) { return Json::parse(read_text(path), nullptr, false); }

// The output, or "error: <message>".
std::string render(const std::string& source, const Json& messages, bool add,
                   const Json& variables) {
  const Result<ChatTemplate> chat = ChatTemplate::parse(source);
  if (!chat.ok()) return "error: " + chat.error().message();
  const Result<std::string> text = chat->render(messages, add, variables);
  return text.ok() ? *text : "error: " + text.error().message();
}

std::string render(const std::string& source) {
  return render(source, Json::array(), false, Json::object());
}

// Null stands for an error, of which only that it happens and where is compared.
void expect_golden(const Json& expected, const std::string& found) {
  if (expected.is_null()) {
    EXPECT_TRUE(found.starts_with("error: chat template: line ")) << found;
  } else {
    EXPECT_EQ(found, expected.get<std::string>());
  }
}

// golden.json is what transformers' Jinja2 environment makes of these; see generate.py beside it.
TEST(ChatTemplate, RendersRealTemplatesAsTransformersDoes) {
  const Json golden = read_json(template_folder() / "golden.json");
  ASSERT_FALSE(golden.is_discarded());
  const auto data = testing::data_folder();
  std::map<std::string, std::string> sources;
  int skipped = 0;
  for (const Json& one : golden["templates"]) {
    const auto name = one["template"].get<std::string>();
    if (name.ends_with(".json") && !data) {
      ++skipped;
      continue;
    }
    std::string& source = sources[name];
    if (source.empty()) {
      source = name.ends_with(".json") ? read_json(*data / name)["chat_template"].get<std::string>()
                                       : read_text(template_folder() / name);
    }
    const Json& messages = golden["conversations"][one["conversation"].get<std::string>()];
    const Json& variables = golden["variables"][one["variables"].get<size_t>()];
    const bool add = one["add_generation_prompt"].get<bool>();
    SCOPED_TRACE(Json({name, one["conversation"], one["variables"], add}).dump());
    expect_golden(one["expected"], render(source, messages, add, variables));
  }
  EXPECT_GE(sources.size(), 14U);
  if (skipped > 0) GTEST_SKIP() << skipped << " cases need templates of the test data";
}

TEST(ChatTemplate, EvaluatesSnippetsAsJinjaDoes) {
  const Json golden = read_json(template_folder() / "golden.json");
  ASSERT_FALSE(golden.is_discarded());
  const Json messages = {golden["conversations"]["turns"][0], golden["conversations"]["turns"][2]};
  ASSERT_GE(golden["snippets"].size(), 130U);
  for (const Json& one : golden["snippets"]) {
    const auto source = one["template"].get<std::string>();
    SCOPED_TRACE(source);
    expect_golden(one["expected"], render(source, messages, true, golden["snippet_variables"]));
  }
}

TEST(ChatTemplate, GivesTheGoldenPromptOfSmolLm2) {
  QUAROT_NEEDS(testing::data_folder());
  const Json golden = read_json(*testing::data_folder() / "golden" / "smollm2.chat.json");
  const auto chat = ChatTemplate::parse(read_text(template_folder() / "smollm2.jinja"));
  ASSERT_TRUE(chat.ok());
  const std::vector<ChatMessage> messages = {{"user", "What is gravity?"}};
  const Result<std::string> text = chat->render(messages, true, Json::object());
  ASSERT_TRUE(text.ok()) << text.error().message();
  EXPECT_EQ(*text, golden["text"].get<std::string>());
}

TEST(ChatTemplate, NamesLineAndColumn) {
  EXPECT_EQ(render("é\n{{ 'ü' + 1 }}"),
            "error: chat template: line 2, column 8: cannot compute str + int");
  EXPECT_EQ(render("a\r\nb {% if x %}\n"),
            "error: chat template: line 2, column 11: '{% endif %}' expected, found the end of the "
            "template");
  EXPECT_EQ(render("{{ raise_exception('no tools') }}"),
            "error: chat template: line 1, column 19: no tools");
  EXPECT_EQ(render("{% macro f(x) %}{{ x.y.z }}{% endmacro %}\n{{ f({}) }}"),
            "error: chat template: line 1, column 23: 'y' is undefined");
  EXPECT_EQ(render("{{ 99999999999999999999 }}"),
            "error: chat template: line 1, column 4: the integer 99999999999999999999 does not fit "
            "64 bits");
}

TEST(ChatTemplate, TellsTheDayItIsGiven) {
  const Json given = {{"date", "2024-07-26"}};
  EXPECT_EQ(render("{{ strftime_now('%a %d %b %Y') }}", Json::array(), false, given),
            "Fri 26 Jul 2024");
  EXPECT_EQ(render("{{ strftime_now('%Y') | length }}"), "4");
  const Json wrong = {{"date", "today"}};
  EXPECT_TRUE(render("{{ strftime_now('%Y') }}", Json::array(), false, wrong).starts_with("error"));
}

TEST(ChatTemplate, KeepsTheOrderOfKeys) {
  const Json tools = Json::parse(R"([{"z": 1, "a": {"y": 2, "b": 3}}])");
  EXPECT_EQ(render("{{ tools | tojson }}", Json::array(), false, {{"tools", tools}}),
            R"([{"z": 1, "a": {"y": 2, "b": 3}}])");
}

TEST(ChatTemplate, RefusesVariablesItCannotHold) {
  EXPECT_TRUE(render("x", Json::array(), false, Json::array({1})).starts_with("error"));
  EXPECT_TRUE(render("x", Json::array(), false, {{"n", UINT64_MAX}}).starts_with("error"));
  Json deep = 1;
  for (int i = 0; i < 100000; ++i) deep = Json::array({std::move(deep)});
  EXPECT_TRUE(render("x", deep, false, Json::object()).starts_with("error"));
}

std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// Each is an error with a position, soon and in bounded memory.
TEST(ChatTemplate, StopsHostileTemplates) {
  const std::vector<std::string> hostile = {
      repeated("(", 100000) + "1" + repeated(")", 100000),
      "{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}",
      "{{ " + repeated("[", 100000) + " }}",
      "{{ " + repeated("not ", 100000) + "1 }}",
      "{{ " + repeated("-", 100000) + "1 }}",
      "{{ 1" + repeated(" + 1", 100000) + " }}",
      "{{ a" + repeated(".a", 100000) + " }}",
      "{{ a" + repeated("|string", 100000) + " }}",
      "{{ 1" + repeated(" if 1", 100000) + " }}",
      "{{ 1" + repeated(" if 1 else 1", 100000) + " }}",
      repeated("{% if 1 %}", 100000) + repeated("{% endif %}", 100000),
      "{% set " + repeated("(", 100000) + "a = 1 %}",
      "{{ 'a' * 10**9 }}",
      "{{ [1] * 10**9 }}",
      "{{ 'a' * 10**6 * 10**6 }}",
      "{{ range(10**9) }}",
      "{{ 2 ** 63 }}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ (-9223372036854775807 - 1) // -1 }}",
      "{{ -(-9223372036854775807 - 1) }}",
      "{{ (-9223372036854775807 - 1) | abs }}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f(x=f()) %}{% endmacro %}{{ f() }}",
      "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f() %}{% call f() %}{% endcall %}{% endmacro %}{{ f() }}",
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}"
      "{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}"
      "{% endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}"
      "{% endfor %}{{ ns.l | tojson }}",
      "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}"
      "{% set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l == ns.m }}",
      "{% set ns = namespace(l=1) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}"
      "{{ ns.l }}",
      "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
      "{{ (['a' * 1000000] * 100000) | join }}",
      "{{ ('\\n' * 1000000) | indent('x' * 1000000, blank=true) }}",
      "{{ [[1]] | tojson(indent=10**9) }}",
      "{{ range(99999) | list | unique | unique | list | length }}",
      "{{ strftime_now('%1000000d') }}",
      "{{ 'x' | int(base=99) }}",
      "{{ 1.5 | round(10**9) }}",
  };
  for (const std::string& source : hostile) {
    SCOPED_TRACE(source.substr(0, 120));
    const std::string found = render(source);
    if (source.front() == '(') {
      EXPECT_EQ(found, source);  // text, not a tag
    } else {
      EXPECT_TRUE(found.starts_with("error: chat template: line 1, column "))
          << found.substr(0, 99);
    }
  }
}

TEST(ChatTemplate, HoldsNoCycles) {
  EXPECT_EQ(render("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me.me == ns }}"), "True");
}

TEST(ChatTemplate, RendersFromSeveralThreads) {
  const auto chat =
      ChatTemplate::parse("{% for m in messages %}{{ m.content | upper }}{% endfor %}");
  ASSERT_TRUE(chat.ok());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const std::vector<ChatMessage> messages = {{"user", "abc"}};
      for (int turn = 0; turn < 50; ++turn) {
        EXPECT_EQ(*chat->render(messages, true, Json::object()), "ABC");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace quarot
