// Continues a prompt, then answers three questions in one batch:
//   quarot_generate MODEL "Once upon a time"
#include <quarot/engine.h>

#include <iostream>

namespace {

int fail(const quarot::Error& error) {
  std::cerr << error.message() << '\n';
  return 1;
}

bool print(std::string_view text) {
  std::cout << text << std::flush;
  return static_cast<bool>(std::cout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: quarot_generate MODEL PROMPT\n";
    return 2;
  }
  quarot::Result<quarot::Engine> opened = quarot::Engine::open(argv[1]);
  if (!opened.ok()) return fail(opened.error());
  quarot::Engine& engine = *opened;
  std::cerr << engine.model().family << ", " << engine.model().bits << '\n';

  // One text, streamed.
  quarot::GenerationOptions options;
  options.max_tokens = 32;
  quarot::Sequence story = engine.new_sequence();
  const auto said = engine.generate(story, engine.tokenize(argv[2]), options, print);
  if (!said.ok()) return fail(said.error());
  std::cout << '\n';

  // Three texts in one batch: their prompts together, then a token of each at a time.
  std::vector<quarot::Sequence> sequences;
  std::vector<std::vector<quarot::Token>> next;
  for (const char* prompt : {"One day", "The old man", "In the garden"}) {
    sequences.push_back(engine.new_sequence());
    next.push_back(engine.tokenize(prompt));
  }
  quarot::Sampler greedy{quarot::SamplingOptions()};
  for (int i = 0; i < 16; ++i) {
    std::vector<quarot::Step> steps;
    for (size_t s = 0; s < sequences.size(); ++s) steps.push_back({&sequences[s], next[s]});
    const auto logits = engine.run(steps);
    if (!logits.ok()) return fail(logits.error());
    const size_t vocab = logits->size() / sequences.size();
    for (size_t s = 0; s < sequences.size(); ++s) {
      const std::span<const float> row(logits->data() + s * vocab, vocab);
      next[s] = {greedy.sample(row, sequences[s].tokens())};
    }
  }
  for (const quarot::Sequence& sequence : sequences)
    std::cout << "- " << engine.detokenize(sequence.tokens()) << '\n';
}
