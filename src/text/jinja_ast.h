// The syntax tree of a template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace quarot::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct ArgumentNodes {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional;  // *args, or null
  ExpressionPtr more_named;       // **kwargs, or null
};

struct NoneNode {};
using LiteralNode = std::variant<NoneNode, bool, int64_t, double, std::string>;
struct NameNode {
  std::string name;
};
struct ListNode {
  bool tuple = false;
  std::vector<ExpressionPtr> items;
};
struct DictNode {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
};
struct AttributeNode {  // object.name
  ExpressionPtr object;
  std::string name;
};
struct ItemNode {  // object[index]
  ExpressionPtr object;
  ExpressionPtr index;
};
struct SliceNode {  // object[start:stop:step], each may be null
  ExpressionPtr object;
  ExpressionPtr start;
  ExpressionPtr stop;
  ExpressionPtr step;
};
struct CallNode {
  ExpressionPtr callee;
  ArgumentNodes arguments;
};
struct FilterNode {
  ExpressionPtr input;  // null where a block of text is filtered
  std::string name;
  ArgumentNodes arguments;
};
struct TestNode {
  ExpressionPtr input;
  std::string name;
  ArgumentNodes arguments;
};
enum class UnaryOperator { kNot, kMinus, kPlus };
struct UnaryNode {
  UnaryOperator op = UnaryOperator::kNot;
  ExpressionPtr operand;
};
enum class BinaryOperator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kJoin
};
struct BinaryNode {
  BinaryOperator op = BinaryOperator::kAdd;
  ExpressionPtr left;
  ExpressionPtr right;
};
struct LogicNode {  // `and`, or else `or`
  bool conjunction = false;
  ExpressionPtr left;
  ExpressionPtr right;
};
enum class Comparison {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};
struct CompareNode {  // a < b < c
  ExpressionPtr first;
  std::vector<std::pair<Comparison, ExpressionPtr>> rest;
};
struct ConditionalNode {
  ExpressionPtr condition;
  ExpressionPtr then;
  ExpressionPtr otherwise;  // or null: undefined
};

struct Expression {
  uint32_t offset = 0;  // in the source
  std::variant<LiteralNode, NameNode, ListNode, DictNode, AttributeNode, ItemNode, SliceNode,
               CallNode, FilterNode, TestNode, UnaryNode, BinaryNode, LogicNode, CompareNode,
               ConditionalNode>
      node;
};

// What an assignment fills: a name, an attribute of a namespace, or several of these.
struct Target {
  uint32_t offset = 0;
  std::string name;
  std::string attribute;      // empty: the name itself
  std::vector<Target> items;  // not empty: a tuple
};

struct Statement;
using Block = std::vector<Statement>;

struct TextNode {
  std::string text;
};
struct PrintNode {
  ExpressionPtr value;
};
struct IfNode {
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block otherwise;
};
struct ForNode {
  Target target;
  ExpressionPtr items;
  ExpressionPtr condition;  // or null
  Block body;
  Block otherwise;
};
struct SetNode {
  Target target;
  ExpressionPtr value;
};
struct SetBlockNode {
  Target target;
  ExpressionPtr filter;  // a chain of FilterNodes over the block, or null
  Block body;
};
struct WithNode {
  std::vector<std::pair<Target, ExpressionPtr>> assignments;
  Block body;
};
struct MacroNode {
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // name, default or null
  Block body;
};
struct CallBlockNode {
  ExpressionPtr call;
  MacroNode caller;
};
struct FilterBlockNode {
  ExpressionPtr filter;
  Block body;
};
struct GenerationNode {  // marks what the assistant says; renders as it is
  Block body;
};
enum class Jump { kBreak, kContinue };

struct Statement {
  uint32_t offset = 0;
  std::variant<TextNode, PrintNode, IfNode, ForNode, SetNode, SetBlockNode, WithNode, MacroNode,
               CallBlockNode, FilterBlockNode, GenerationNode, Jump>
      node;
};

}  // namespace quarot::jinja
