// Writing a rotated model and reading it back: the same function, whole or not at all.
#include "recipe/artifact.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "base/random.h"
#include "model/checksums.h"
#include "recipe/prepare.h"
#include "support/synthetic.h"

namespace quarot {
namespace {

namespace fs = std::filesystem;
using testing::data_folder;
using testing::value_of;

// Cancels at the n-th time it is asked.
class StopAt final : public Progress {
 public:
  explicit StopAt(int n) : left_(n) {}
  void stage(std::string_view, int64_t) override {}
  void advance(int64_t) override {}
  bool cancelled() const override { return left_-- <= 0; }

 private:
  mutable int left_;
};

// Cancels when so many layers are written.
class StopAfterLayers final : public Progress {
 public:
  explicit StopAfterLayers(int64_t layers) : left_(layers) {}
  void stage(std::string_view what, int64_t) override { writing_ = what == "writing layers"; }
  void advance(int64_t done) override { left_ -= writing_ ? done : 0; }
  bool cancelled() const override { return left_ <= 0; }

 private:
  bool writing_ = false;
  int64_t left_;
};

class Artifact : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::temp_directory_path() / fmt_name(info->name());
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  static std::string fmt_name(const std::string& test) {
    return "quarot-artifact-" + test + "-" + std::to_string(::getpid());
  }

  static Recipe rotation(const char* name) {
    Recipe recipe = value_of(recipe_by_name(name));
    recipe.weights.bits = kFloatBits;
    recipe.precision = Precision();
    recipe.calibration_tokens = 64;
    return recipe;
  }

  Result<ArtifactReport> write(const fs::path& source, const Recipe& recipe, const fs::path& folder,
                               Progress& progress, Dtype matrices = Dtype::kF32) {
    const auto checkpoint = value_of(open_checkpoint(source));
    ArtifactOptions options;
    options.matrices = matrices;
    return write_artifact(*checkpoint, testing::byte_tokenizer(64), recipe, options, folder,
                          progress);
  }

  static fs::path tiny(const char* name) { return *data_folder() / "models" / "tiny" / name; }
  static fs::path stories() {
    return *data_folder() / "models" / "stories260k" / "stories260K.bin";
  }

  fs::path root_;
  NoProgress progress_;
};

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

TEST_F(Artifact, ReloadedGivesTheSameLogits) {
  QUAROT_NEEDS(data_folder());
  for (const char* family : testing::kTinyModels) {
    const Model original = testing::load(tiny(family));
    const std::vector<Token> tokens = testing::random_tokens(40, original.config.vocab, 1);
    const Matrix expected = testing::logits_of(original, tokens);
    for (const char* recipe : {"quarot", "balanced", "float"}) {
      const fs::path folder = root_ / (std::string(family) + "-" + recipe);
      (void)value_of(write(tiny(family), rotation(recipe), folder, progress_));
      const auto checkpoint = value_of(open_checkpoint(folder));
      ASSERT_TRUE(checkpoint->manifest().has_value());
      const PreparedModel reloaded = value_of(prepare_model(
          *checkpoint, testing::byte_tokenizer(64), Recipe(), std::nullopt, progress_));
      EXPECT_EQ(reloaded.recipe.name, recipe);
      EXPECT_LT(testing::relative_error(testing::logits_of(reloaded.model, tokens), expected), 1e-5)
          << family << " " << recipe;
    }
  }
}

// Tied tables too, that part where their bits do.
TEST_F(Artifact, KeepsTablesOfFewBitsAsTheyAre) {
  QUAROT_NEEDS(data_folder());
  for (const char* family : {"llama", "qwen2"}) {
    for (const auto& [embedding, head] : {std::pair{8, 4}, {4, 4}, {16, 8}}) {
      Recipe recipe = rotation("quarot");
      recipe.transforms.residual = false;
      recipe.embedding_bits = embedding;
      recipe.head_bits = head;
      const fs::path folder = root_ / fmt::format("{}-{}-{}", family, embedding, head);
      (void)value_of(write(tiny(family), recipe, folder, progress_));
      const Model reloaded = testing::load(folder);
      Model expected = testing::load(tiny(family));
      quantize_tables(recipe, expected);
      const auto same = [](const RowTable& a, const RowTable& b) {
        return a.storage() == b.storage() && a.bytes() == b.bytes() &&
               std::ranges::equal(a.to_matrix().elements(), b.to_matrix().elements());
      };
      EXPECT_TRUE(same(reloaded.embedding, expected.embedding));
      EXPECT_TRUE(same(reloaded.lm_head, expected.lm_head));
      EXPECT_EQ(reloaded.config.tied_embeddings, expected.config.tied_embeddings);
    }
  }
}

TEST_F(Artifact, InHalfPrecisionIsCloseAndSaysSo) {
  QUAROT_NEEDS(data_folder());
  const Model original = testing::load(tiny("llama"));
  const std::vector<Token> tokens = testing::random_tokens(40, original.config.vocab, 1);
  const Matrix expected = testing::logits_of(original, tokens);
  for (const auto& [dtype, name, error] :
       {std::tuple{Dtype::kF16, "float16", 2e-3}, {Dtype::kBF16, "bfloat16", 2e-2}}) {
    const fs::path folder = root_ / name;
    (void)value_of(write(tiny("llama"), rotation("quarot"), folder, progress_, dtype));
    const double found =
        testing::relative_error(testing::logits_of(testing::load(folder), tokens), expected);
    EXPECT_LT(found, error) << name;
    EXPECT_GT(found, error / 100) << name;  // the bytes are really half
    EXPECT_EQ(testing::read_json(folder / "config.json")["dtype"], name);
  }
}

TEST_F(Artifact, CarriesTheTokenizer) {
  QUAROT_NEEDS(data_folder());
  const fs::path folder = root_ / "out";
  (void)value_of(write(stories(), rotation("quarot"), folder, progress_));
  const auto before = value_of(value_of(open_checkpoint(stories()))->open_tokenizer());
  const auto after = value_of(value_of(open_checkpoint(folder))->open_tokenizer());
  for (const char* text : {"Once upon a time, there was a little girl.", "", "  é€\n\n\t42"})
    EXPECT_EQ(after->encode(text), before->encode(text)) << text;
  EXPECT_EQ(after->bos(), before->bos());
  EXPECT_EQ(after->adds_bos(), before->adds_bos());
  EXPECT_EQ(after->end_tokens(), before->end_tokens());
}

TEST_F(Artifact, CarriesTheTokenizerOfAGguf) {
  QUAROT_NEEDS(testing::smollm2());
  const auto checkpoint = value_of(open_checkpoint(*testing::smollm2()));
  testing::expect_ok(checkpoint->save_tokenizer(root_));
  const auto before = value_of(checkpoint->open_tokenizer());
  const auto after = value_of(open_tokenizer(root_));
  const char* text = "<|im_start|>user\nWhat is 12,345 · é?\n\n  ok<|im_end|>";
  EXPECT_EQ(after->encode(text), before->encode(text));
  EXPECT_EQ(after->chat_template(), before->chat_template());
  EXPECT_EQ(after->bos(), before->bos());
  EXPECT_EQ(after->adds_bos(), before->adds_bos());
  EXPECT_EQ(after->end_tokens(), before->end_tokens());
}

// Stopped at every step there is: never a folder that looks finished, and a second run completes
// what the first began.
TEST_F(Artifact, InterruptedLeavesNothingFinishedAndResumes) {
  QUAROT_NEEDS(data_folder());
  const Recipe recipe = rotation("quarot");
  const fs::path whole = root_ / "whole";
  (void)value_of(write(stories(), recipe, whole, progress_));
  int64_t resumed = 0;
  for (int step = 0; step < 5; ++step) {
    const fs::path folder = root_ / ("out" + std::to_string(step));
    const fs::path partial = folder.string() + ".partial";
    StopAt stop(step);
    const auto stopped = write(stories(), recipe, folder, stop);
    ASSERT_FALSE(stopped.ok());
    EXPECT_EQ(stopped.error().code(), ErrorCode::kCancelled);
    EXPECT_FALSE(fs::exists(folder));
    ASSERT_TRUE(fs::exists(partial));
    // What a kill in the midst of writing leaves behind.
    std::ofstream(partial / "model-00005-of-00006.safetensors.tmp-1") << "half a shard";
    const ArtifactReport report = value_of(write(stories(), recipe, folder, progress_));
    EXPECT_EQ(report.resumed_layers, step);
    resumed += report.resumed_layers;
    EXPECT_FALSE(fs::exists(partial));
    ASSERT_EQ(names_in(folder), names_in(whole));
    for (const std::string& name : names_in(whole)) {
      std::ifstream a(whole / name, std::ios::binary);
      std::ifstream b(folder / name, std::ios::binary);
      EXPECT_TRUE(
          std::equal(std::istreambuf_iterator<char>(a), {}, std::istreambuf_iterator<char>(b), {}))
          << name;
    }
  }
  EXPECT_EQ(resumed, 0 + 1 + 2 + 3 + 4);
}

// Ratios found on the way: kept in the shards, seen by GPTQ of the layers after them, and the same
// after an interruption.
TEST_F(Artifact, KeepsTheClipRatiosItFound) {
  QUAROT_NEEDS(data_folder());
  const auto checkpoint = value_of(open_checkpoint(stories()));
  const auto tokenizer = value_of(checkpoint->open_tokenizer());
  Recipe recipe = value_of(recipe_by_name("balanced-gptq"));
  recipe.precision.activations.search_clip = true;
  recipe.calibration_tokens = 256;
  const auto write_to = [&](const fs::path& folder, Progress& progress) {
    return write_artifact(*checkpoint, *tokenizer, recipe,
                          {.pack = true, .matrices = Dtype::kF16, .calibration = {}}, folder,
                          progress);
  };
  (void)value_of(write_to(root_ / "whole", progress_));
  const Model model = testing::load(root_ / "whole");
  const nlohmann::json manifest = testing::read_json(root_ / "whole" / "quarot.json");
  const Model in_memory =
      value_of(prepare_model(*checkpoint, *tokenizer, recipe, std::nullopt, progress_)).model;
  for (size_t l = 0; l < model.layers.size(); ++l) {
    const SiteClips& clips = model.layers[l].clips;
    EXPECT_EQ(clips, in_memory.layers[l].clips);
    for (const Role role : kRoles) {
      const float clip = clips[site_index(spaces_of(role).input)];
      EXPECT_EQ(manifest["errors"][l][std::string(spaces_of(role).name)]["a_clip"], clip);
      EXPECT_TRUE(clip >= 0.6F && clip <= 1) << clip;
    }
  }
  StopAfterLayers stop(2);
  ASSERT_FALSE(write_to(root_ / "resumed", stop).ok());
  EXPECT_EQ(value_of(write_to(root_ / "resumed", progress_)).resumed_layers, 2);
  for (const std::string& name : names_in(root_ / "whole")) {
    EXPECT_EQ(value_of(read_text_file(root_ / "resumed" / name)),
              value_of(read_text_file(root_ / "whole" / name)))
        << name;
  }
}

// The rules that a budget chose: in the manifest in place of it, the same after an interruption,
// and what a reloaded model runs by.
TEST_F(Artifact, KeepsTheBitsItChose) {
  QUAROT_NEEDS(data_folder());
  const auto checkpoint = value_of(open_checkpoint(stories()));
  const auto tokenizer = value_of(checkpoint->open_tokenizer());
  Recipe recipe = value_of(recipe_by_name("balanced-gptq"));
  recipe.calibration_tokens = recipe.gptq_tokens = 256;
  recipe.a_budget = 5;
  recipe.w_budget = 4.5;
  const auto write_to = [&](const fs::path& folder, Progress& progress) {
    return write_artifact(*checkpoint, *tokenizer, recipe, {.pack = true, .calibration = {}},
                          folder, progress);
  };
  (void)value_of(write_to(root_ / "whole", progress_));
  const PreparedModel in_memory =
      value_of(prepare_model(*checkpoint, *tokenizer, recipe, std::nullopt, progress_));
  EXPECT_FALSE(in_memory.recipe.site_bits.empty());
  EXPECT_EQ(testing::read_json(root_ / "whole" / "quarot.json")["recipe"],
            nlohmann::json(in_memory.recipe));
  const auto written = value_of(open_checkpoint(root_ / "whole"));
  const PreparedModel reloaded =
      value_of(prepare_model(*written, *tokenizer, Recipe(), std::nullopt, progress_));
  EXPECT_EQ(nlohmann::json(reloaded.recipe), nlohmann::json(in_memory.recipe));
  for (size_t l = 0; l < reloaded.model.layers.size(); ++l) {
    const Layer& layer = reloaded.model.layers[l];
    EXPECT_EQ(layer.activation_bits, in_memory.model.layers[l].activation_bits);
    for (const Role role : kRoles) {
      EXPECT_EQ(layer[role].quantized->quant.bits,
                in_memory.model.layers[l][role].quantized->quant.bits);
    }
  }
  const std::vector<Token> tokens = testing::random_tokens(40, reloaded.model.config.vocab, 1);
  const auto logits = [&](const PreparedModel& prepared) {
    return testing::logits_of(prepared.model, tokens, prepared.recipe.precision);
  };
  EXPECT_TRUE(std::ranges::equal(logits(reloaded).elements(), logits(in_memory).elements()));
  StopAfterLayers stop(2);
  ASSERT_FALSE(write_to(root_ / "resumed", stop).ok());
  EXPECT_EQ(value_of(write_to(root_ / "resumed", progress_)).resumed_layers, 2);
  for (const std::string& name : names_in(root_ / "whole")) {
    EXPECT_EQ(value_of(read_text_file(root_ / "resumed" / name)),
              value_of(read_text_file(root_ / "whole" / name)))
        << name;
  }
}

TEST_F(Artifact, AnotherRecipeStartsOver) {
  QUAROT_NEEDS(data_folder());
  const fs::path folder = root_ / "out";
  StopAt stop(3);
  ASSERT_FALSE(write(stories(), rotation("quarot"), folder, stop).ok());
  Recipe other = rotation("quarot");
  other.transforms.seed = 9;
  EXPECT_EQ(value_of(write(stories(), other, folder, progress_)).resumed_layers, 0);
  const Model reloaded = testing::load(folder);
  const std::vector<Token> tokens = testing::random_tokens(30, 512, 1);
  EXPECT_LT(testing::relative_error(testing::logits_of(reloaded, tokens),
                                    testing::logits_of(testing::load(stories()), tokens)),
            1e-5);
}

// The same name and config, as after another epoch of training.
TEST_F(Artifact, AnotherModelStartsOver) {
  QUAROT_NEEDS(data_folder());
  const fs::path source = root_ / "source";
  fs::copy(tiny("llama"), source);
  StopAfterLayers stop(1);
  ASSERT_FALSE(write(source, rotation("quarot"), root_ / "out", stop).ok());
  std::string weights = value_of(read_text_file(source / "model.safetensors"));
  const auto tensors = value_of(open_safetensors(source));
  const auto norm = value_of(tensors->raw("model.norm.weight")).bytes;
  const std::string bytes(reinterpret_cast<const char*>(norm.data()), norm.size());
  weights[weights.find(bytes)] ^= 1;
  testing::expect_ok(write_file_atomically(source / "model.safetensors", weights));
  EXPECT_EQ(value_of(write(source, rotation("quarot"), root_ / "out", progress_)).resumed_layers,
            0);
}

// "out.partial" may be anybody's.
TEST_F(Artifact, FilesThatItDidNotWriteStay) {
  QUAROT_NEEDS(data_folder());
  const fs::path partial = root_ / "out.partial";
  fs::create_directory(partial);
  std::ofstream(partial / "thesis.txt") << "years of work";
  const auto refused = write(stories(), rotation("quarot"), root_ / "out", progress_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message().find("out.partial"), std::string::npos);
  EXPECT_EQ(value_of(read_text_file(partial / "thesis.txt")), "years of work");
  // What a kill before the mark, or after it, leaves is its own.
  fs::remove(partial / "thesis.txt");
  for (const char* name : {"partial.json.tmp-1", "quarot.json"}) {
    std::ofstream(partial / name) << "{}";
    (void)value_of(write(stories(), rotation("quarot"), root_ / "out", progress_));
    fs::remove_all(root_ / "out");
    fs::create_directory(partial);
  }
}

// Found by calibration before the first layer, fused, and found again where a run goes on.
TEST_F(Artifact, KeepsTheBasisItFound) {
  QUAROT_NEEDS(data_folder());
  const auto checkpoint = value_of(open_checkpoint(stories()));
  const auto tokenizer = value_of(checkpoint->open_tokenizer());
  for (const BasisKind kind : {BasisKind::kLearned, BasisKind::kPrincipal}) {
    Recipe recipe = value_of(recipe_by_name("quarot"));
    recipe.transforms.kind = kind;
    recipe.calibration_tokens = 256;
    const fs::path folder = root_ / fmt::format("of-kind-{}", static_cast<int>(kind));
    const auto write_to = [&](Progress& progress) {
      return write_artifact(*checkpoint, *tokenizer, recipe, {.pack = true, .calibration = {}},
                            folder, progress);
    };
    StopAfterLayers stop(2);
    ASSERT_FALSE(write_to(stop).ok());
    EXPECT_EQ(value_of(write_to(progress_)).resumed_layers, 2);
    const PreparedModel in_memory =
        value_of(prepare_model(*checkpoint, *tokenizer, recipe, std::nullopt, progress_));
    const Model reloaded = testing::load(folder);
    EXPECT_TRUE(std::ranges::equal(reloaded.embedding.to_matrix().elements(),
                                   in_memory.model.embedding.to_matrix().elements()));
    for (size_t l = 0; l < reloaded.layers.size(); ++l) {
      for (const Role role : kRoles) {
        EXPECT_TRUE(
            std::ranges::equal(reloaded.layers[l][role].quantized->values.elements(),
                               in_memory.model.layers[l][role].quantized->values.elements()));
      }
    }
  }
}

TEST_F(Artifact, RefusesWhatItCannotDo) {
  QUAROT_NEEDS(data_folder());
  const auto refused = [&](const fs::path& source, const Recipe& recipe, const fs::path& folder,
                           ErrorCode code, const std::string& message) {
    const auto result = write(source, recipe, folder, progress_);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code(), code) << result.error().message();
    EXPECT_NE(result.error().message().find(message), std::string::npos)
        << result.error().message();
  };
  const fs::path there = root_ / "there";
  fs::create_directory(there);
  refused(stories(), rotation("quarot"), there, ErrorCode::kInvalidArgument, "exists already");
  EXPECT_TRUE(names_in(there).empty());
  fs::create_symlink(root_ / "nowhere", root_ / "link");
  refused(stories(), rotation("quarot"), root_ / "link", ErrorCode::kInvalidArgument,
          "exists already");
  Recipe group = rotation("quarot");
  group.precision.activations = {.bits = 4, .group = 7};
  refused(stories(), group, root_ / "group", ErrorCode::kInvalidArgument, "7");
  EXPECT_FALSE(fs::exists(root_ / "group.partial"));
  refused(stories(), rotation("quarot"), root_ / std::string(300, 'x'), ErrorCode::kIo, "cannot");
  std::ofstream(root_ / "file") << "x";
  refused(stories(), rotation("quarot"), root_ / "file" / "out", ErrorCode::kIo, "cannot");
  // A model that carries a recipe takes no other.
  const fs::path once = root_ / "once";
  (void)value_of(write(stories(), rotation("quarot"), once, progress_));
  refused(once, rotation("quarot"), root_ / "twice", ErrorCode::kInvalidArgument,
          "carries a recipe already");
}

Status open_all(const fs::path& folder) {
  auto checkpoint = open_checkpoint(folder);
  if (!checkpoint.ok()) return checkpoint.error();
  const auto model = load_model(**checkpoint);
  return model.ok() ? Status() : Status(model.error());
}

// In every file of a packed model some random bit is flipped, and again: loading it fails, and says
// which file, or which tensor, it was.
TEST_F(Artifact, AFlippedBitIsFoundAndNamed) {
  QUAROT_NEEDS(data_folder());
  const fs::path folder = root_ / "out";
  Recipe recipe = value_of(recipe_by_name("quarot"));
  const auto checkpoint = value_of(open_checkpoint(stories()));
  (void)value_of(write_artifact(*checkpoint, *value_of(checkpoint->open_tokenizer()), recipe,
                                {.pack = true, .matrices = Dtype::kF16, .calibration = {}}, folder,
                                progress_));
  testing::expect_ok(open_all(folder));
  Random random(1);
  for (const std::string& name : names_in(folder)) {
    for (int i = 0; i < 20; ++i) {
      const auto size = fs::file_size(folder / name);
      // The last byte is a tensor's; a header is short beside the data.
      const auto place =
          i == 0 ? size - 1 : random.below(i < 10 ? std::min<uint64_t>(size, 500) : size);
      const auto flip = [&, bit = char(1 << random.below(8))] {
        std::fstream file(folder / name, std::ios::binary | std::ios::in | std::ios::out);
        file.seekg(static_cast<std::streamoff>(place));
        const int byte = file.get();
        file.seekp(static_cast<std::streamoff>(place));
        file.put(static_cast<char>(byte ^ bit));
      };
      flip();
      const Status status = open_all(folder);
      flip();
      ASSERT_FALSE(status.ok()) << name << " at " << place;
      const std::string& message = status.error().message();
      EXPECT_TRUE(message.find(name) != std::string::npos ||
                  message.find("tensor model.") != std::string::npos ||
                  message.find("tensor lm_head.") != std::string::npos)
          << name << " at " << place << ": " << message;
      if (i == 0 && name.ends_with(".safetensors")) {
        EXPECT_NE(message.find("damaged"), std::string::npos) << message;
        EXPECT_NE(message.find("tensor "), std::string::npos) << message;
      }
    }
  }
  testing::expect_ok(open_all(folder));
}

TEST_F(Artifact, WithoutItsManifestIsRefused) {
  QUAROT_NEEDS(data_folder());
  const fs::path folder = root_ / "out";
  const auto checkpoint = value_of(open_checkpoint(stories()));
  (void)value_of(write_artifact(
      *checkpoint, *value_of(checkpoint->open_tokenizer()), value_of(recipe_by_name("quarot")),
      {.pack = true, .matrices = Dtype::kF16, .calibration = {}}, folder, progress_));
  fs::remove(folder / "quarot.json");
  const Status status = open_all(folder);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message().find("quarot.json is missing"), std::string::npos);
}

// What quarot.json says of itself.
TEST_F(Artifact, ManifestHoldsWhatReproducesIt) {
  QUAROT_NEEDS(data_folder());
  std::ofstream(root_ / "text.txt") << "Once upon a time there was a girl who had a red ball.";
  const auto checkpoint = value_of(open_checkpoint(stories()));
  Recipe recipe = value_of(recipe_by_name("balanced"));
  recipe.weight_method = WeightMethod::kGptq;
  recipe.transforms.seed = 7;
  const ArtifactOptions options = {
      .pack = true, .matrices = Dtype::kF16, .calibration = root_ / "text.txt"};
  (void)value_of(write_artifact(*checkpoint, *value_of(checkpoint->open_tokenizer()), recipe,
                                options, root_ / "out", progress_));
  const nlohmann::json manifest = testing::read_json(root_ / "out" / "quarot.json");
  EXPECT_EQ(manifest["recipe"], nlohmann::json(recipe));
  EXPECT_EQ(manifest["bases"]["ffn"], Orthogonal::hadamard(172).description());
  EXPECT_TRUE(manifest["bases"].contains("norm_output"));
  EXPECT_EQ(manifest["calibration"].get<std::string>().size(), 32U);
  EXPECT_GT(manifest["calibration_tokens"], 10);
  ASSERT_EQ(manifest["errors"].size(), 5U);
  for (const nlohmann::json& layer : manifest["errors"]) {
    for (const Role role : kRoles) {
      const nlohmann::json& error = layer[std::string(spaces_of(role).name)];
      EXPECT_GT(error["weight"], 1e-3);
      EXPECT_LT(error["weight"], 0.1);
      EXPECT_LT(error["output"], 0.1);
    }
  }
}

// Checksums find damage, not forgery: what quarot.json says is checked like any recipe.
TEST_F(Artifact, ARecipeThatDoesNotFitItsModelIsRefused) {
  QUAROT_NEEDS(data_folder());
  const fs::path folder = root_ / "out";
  (void)value_of(write(stories(), rotation("quarot"), folder, progress_));
  const nlohmann::json written = testing::read_json(folder / "quarot.json");
  const auto expect_refused = [&](const nlohmann::json& changes, const std::string& message) {
    nlohmann::json manifest = written;
    manifest["recipe"].merge_patch(changes);
    testing::expect_ok(add_checksums({}, manifest));
    std::ofstream(folder / "quarot.json") << manifest;
    const auto checkpoint = value_of(open_checkpoint(folder));
    const auto prepared =
        prepare_model(*checkpoint, testing::byte_tokenizer(64), Recipe(), std::nullopt, progress_);
    ASSERT_FALSE(prepared.ok()) << changes;
    EXPECT_NE(prepared.error().message().find("quarot.json: "), std::string::npos);
    EXPECT_NE(prepared.error().message().find(message), std::string::npos)
        << prepared.error().message();
  };
  expect_refused({{"a_bits", 4}, {"a_group", 1000}}, "groups of 1000");
  expect_refused({{"a_bits", 4}, {"site_bits", {"o_proj@5=A8"}}}, "layers 0 to 4");
  expect_refused({{"a_bits", 4}, {"site_bits", {"o_proj=A99"}}}, "expected PLACE=BITS");
  // Of another version, which may have meant something by it.
  expect_refused({{"bits_of_thought", 4}}, "write the model again");
  expect_refused({{"transforms", {{"everything", true}}}}, "\"everything\" is no field");
}

TEST_F(Artifact, OfAPathWithATrailingSlash) {
  QUAROT_NEEDS(data_folder());
  (void)value_of(write(stories(), rotation("quarot"), root_ / "out" / "", progress_));
  EXPECT_TRUE(fs::exists(root_ / "out" / "quarot.json"));
  EXPECT_EQ(names_in(root_), std::vector<std::string>{"out"});
}

}  // namespace
}  // namespace quarot
