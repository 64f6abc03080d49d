#include "runtime/cpu_layer_stream.h"

#include <gtest/gtest.h>

#include "support/model.h"
#include "support/synthetic.h"

namespace quarot {
namespace {

TEST(CpuLayerStream, OnDiskIsTheSame) {
  const Model model = testing::random_model(testing::config_json(), 1);
  const std::vector<std::vector<Token>> windows = {testing::random_tokens(9, 96, 1),
                                                   testing::random_tokens(30, 96, 2)};
  NoProgress progress;
  CpuLayerStream in_memory(model.config, {}, {}, progress);
  CpuLayerStream on_disk(model.config, {}, {}, progress);
  testing::expect_ok(in_memory.reserve(39));
  testing::expect_ok(on_disk.reserve(39, 0));
  for (CpuLayerStream* stream : {&in_memory, &on_disk}) {
    for (const std::vector<Token>& window : windows) {
      testing::expect_ok(stream->add_window(window, embedding_rows(model.embedding, window)));
    }
    for (int64_t i = 0; i < model.config.layers; ++i) {
      stream->put_layer(i, model.layers[static_cast<size_t>(i)]);
      testing::expect_ok(stream->run_layer());
      stream->take_layer();
    }
  }
  for (int64_t window = 0; window < 2; ++window) {
    const ConstMatrixRef expected = in_memory.residual(window);
    const ConstMatrixRef found = on_disk.residual(window);
    ASSERT_EQ(found.rows(), std::ssize(windows[static_cast<size_t>(window)]));
    for (int64_t r = 0; r < found.rows(); ++r) {
      EXPECT_TRUE(std::ranges::equal(found.row(r), expected.row(r))) << r;
    }
  }
  EXPECT_FALSE(on_disk.add_window(windows[0], Matrix(9, model.config.hidden, 0.0F)).ok())
      << "more than was reserved";
}

}  // namespace
}  // namespace quarot
