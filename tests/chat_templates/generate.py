#!/usr/bin/env python3
"""Writes golden.json: what transformers' own Jinja2 environment makes of the templates here.

Needs transformers and jinja2 (made with 5.x and 3.1.6). Usage: generate.py [DATA_FOLDER]
Templates that belong to the test data are named by their path in it, not copied.
Every line of snippets.txt is one template; \\n and \\r stand for line ends outside of tags.
"""
import datetime
import json
import pathlib
import re
import sys

import transformers.utils.chat_template_utils as utils

HERE = pathlib.Path(__file__).parent
DATE = "2024-07-26"


class FixedDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromisoformat(DATE)


utils.datetime = FixedDate

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather in a \"city\" (°C)",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "the city's name"},
        "days": {"type": "integer", "enum": [1, 3, 7]}}, "required": ["city"]}}}
CLOCK = {"type": "function", "function": {
    "name": "now", "description": "the time", "parameters": {"type": "object", "properties": {}}}}
SYSTEM = {"role": "system", "content": "Be brief.\nBe kind. "}
HELLO = {"role": "user", "content": " Hello, \"world\"!\n"}
REPLY = {"role": "assistant", "content": "<think>\nhmm\n</think>\n\nHi 👋 it's me.\n"}
MORE = {"role": "user", "content": "Größe? {{ x }} {% y %} \\ 'q' 日本語"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{
    "type": "function", "id": "abcdef123",
    "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}}]}
CALL_TEXT = {**CALL, "content": ""}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "abcdef123",
          "content": "{\"temp\": 21.5}"}
PARTS = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " look "}]}

CONVERSATIONS = {
    "one": [HELLO],
    "system": [SYSTEM, HELLO],
    "turns": [HELLO, REPLY, MORE],
    "system turns": [SYSTEM, HELLO, REPLY, MORE, REPLY],
    "twice user": [HELLO, MORE],
    "call": [HELLO, CALL, RESULT],
    "call text": [SYSTEM, HELLO, CALL_TEXT, RESULT, REPLY, MORE],
    "parts": [PARTS],
    "no-think": [{"role": "system", "content": "Short. /no_think"}, HELLO, REPLY],
    "empty": [],
}
VARIABLES = [
    {"bos_token": "<s>", "eos_token": "</s>", "date": DATE},
    {"bos_token": "<s>", "eos_token": "</s>", "date": DATE, "tools": [WEATHER, CLOCK]},
    {"bos_token": "<s>", "eos_token": "</s>", "date": DATE, "enable_thinking": False,
     "tools": [WEATHER], "tools_in_user_message": False, "builtin_tools": ["get_weather", "x"]},
]
SNIPPET_VARIABLES = {"m": {"a": 1, "b": {"c": "é"}, "z": [1.5, None, True]}, "l": [{"a": 7}, "end"]}


def render(template, messages, add, variables):
    values = {"tools": None, "documents": None, **variables}
    try:
        compiled = utils._compile_jinja_template(template)
        return compiled.render(messages=messages, add_generation_prompt=add, **values)
    except Exception:  # whatever it is, ours must fail too
        return None


def lines():
    for line in (HERE / "snippets.txt").read_text().splitlines():
        pieces = re.split(r"(\{\{.*?\}\}|\{%.*?%\})", line)
        yield "".join(p if p[:2] in ("{{", "{%") else
                      p.replace("\\n", "\n").replace("\\r", "\r") for p in pieces)


def main():
    data = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "../../../shared/data"
    sources = {p.name: p.read_text() for p in sorted(HERE.glob("*.jinja"))}
    for name in ("llama3", "qwen3"):
        path = f"tokenizers/{name}/tokenizer_config.json"
        sources[path] = json.loads((data / path).read_text())["chat_template"]
    golden = {"conversations": CONVERSATIONS, "variables": VARIABLES, "templates": [],
              "snippet_variables": SNIPPET_VARIABLES, "snippets": []}
    for name, source in sources.items():
        for conversation, messages in CONVERSATIONS.items():
            for index, variables in enumerate(VARIABLES):
                for add in (False, True):
                    golden["templates"].append({
                        "template": name, "conversation": conversation, "variables": index,
                        "add_generation_prompt": add,
                        "expected": render(source, messages, add, variables)})
    for snippet in lines():
        golden["snippets"].append({"template": snippet, "expected": render(
            snippet, [HELLO, MORE], True, SNIPPET_VARIABLES)})
    (HERE / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")


main()
