#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "text/sentencepiece.h"
#include "text/token_decoder.h"
#include "text/unknown.h"
#include "text/vocabulary.h"

namespace quarot {
namespace {

using Kind = SentencePieceModel::Kind;
using Piece = SentencePieceModel::Piece;

static_assert(std::endian::native == std::endian::little);

template <typename T>
T load(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

// One field of a protocol buffer message. https://protobuf.dev/programming-guides/encoding/
struct Field {
  uint64_t number = 0;
  uint64_t value = 0;      // of a varint, or a fixed 32 or 64 bits
  std::string_view bytes;  // of what has a length
};

class WireReader {
 public:
  explicit WireReader(std::string_view message) : rest_(message) {}

  bool at_end() const { return rest_.empty(); }

  Result<Field> next() {
    QUAROT_ASSIGN_OR_RETURN(const uint64_t key, varint());
    Field field;
    field.number = key >> 3;
    switch (key & 7) {
      case 0: {
        QUAROT_ASSIGN_OR_RETURN(field.value, varint());
        return field;
      }
      case 1:
        return fixed<uint64_t>(field);
      case 2: {
        QUAROT_ASSIGN_OR_RETURN(const uint64_t length, varint());
        if (length > rest_.size()) return ended();
        field.bytes = rest_.substr(0, length);
        rest_.remove_prefix(length);
        return field;
      }
      case 5:
        return fixed<uint32_t>(field);
      default:
        return error(ErrorCode::kCorrupt, "not a SentencePiece model: wire type {}", key & 7);
    }
  }

 private:
  static Error ended() {
    return error(ErrorCode::kCorrupt,
                 "not a SentencePiece model, or cut short: a field runs past "
                 "the end");
  }

  template <typename T>
  Result<Field> fixed(Field field) {
    if (rest_.size() < sizeof(T)) return ended();
    field.value = load<T>(rest_);
    rest_.remove_prefix(sizeof(T));
    return field;
  }

  Result<uint64_t> varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    return ended();
  }

  std::string_view rest_;
};

Result<Piece> read_piece(std::string_view message) {
  Piece piece;
  for (WireReader reader(message); !reader.at_end();) {
    QUAROT_ASSIGN_OR_RETURN(const Field field, reader.next());
    if (field.number == 1) piece.content = field.bytes;
    if (field.number == 2) piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
    if (field.number == 3) {
      if (field.value < 1 || field.value > 6)
        return error(ErrorCode::kCorrupt, "a piece of type {}", field.value);
      piece.kind = static_cast<Kind>(field.value);
    }
  }
  return piece;
}

struct TrainerSpec {
  uint64_t model_type = 1;
  bool space_as_suffix = false;
  int32_t bos = 1;
  int32_t eos = 2;
};

Result<TrainerSpec> read_trainer_spec(std::string_view message) {
  TrainerSpec spec;
  for (WireReader reader(message); !reader.at_end();) {
    QUAROT_ASSIGN_OR_RETURN(const Field field, reader.next());
    if (field.number == 3) spec.model_type = field.value;
    if (field.number == 24) spec.space_as_suffix = field.value != 0;
    if (field.number == 41) spec.bos = static_cast<int32_t>(field.value);
    if (field.number == 42) spec.eos = static_cast<int32_t>(field.value);
  }
  return spec;
}

Status read_normalizer_spec(std::string_view message, SentencePieceModel& model) {
  for (WireReader reader(message); !reader.at_end();) {
    QUAROT_ASSIGN_OR_RETURN(const Field field, reader.next());
    if (field.number == 2 && !field.bytes.empty()) {
      return error(ErrorCode::kUnsupported,
                   "the model normalises text by a character map; known: identity");
    }
    if (field.number == 3) model.add_dummy_prefix = field.value != 0;
    if (field.number == 4) model.remove_extra_whitespaces = field.value != 0;
    if (field.number == 5) model.escape_whitespaces = field.value != 0;
  }
  return {};
}

Status apply_trainer_spec(const TrainerSpec& spec, SentencePieceModel& model) {
  if (spec.model_type != 1 && spec.model_type != 2) {
    return error(ErrorCode::kUnsupported, "model type {}; known: 1 (unigram), 2 (BPE)",
                 spec.model_type);
  }
  if (spec.space_as_suffix)
    return error(ErrorCode::kUnsupported, "the model marks spaces at the end of words");
  model.algorithm = spec.model_type == 2 ? SentencePieceModel::Algorithm::kBpe
                                         : SentencePieceModel::Algorithm::kUnigram;
  // The defaults name ids that need not be control pieces.
  const auto control = [&](int32_t id) -> std::optional<Token> {
    if (id < 0 || static_cast<size_t>(id) >= model.pieces.size()) return std::nullopt;
    if (model.pieces[static_cast<size_t>(id)].kind != Kind::kControl) return std::nullopt;
    return id;
  };
  model.bos = control(spec.bos);
  model.eos = control(spec.eos);
  return {};
}

}  // namespace

Result<SentencePieceModel> parse_sentencepiece_model(std::string_view bytes) {
  SentencePieceModel model;
  TrainerSpec spec;
  for (WireReader reader(bytes); !reader.at_end();) {
    QUAROT_ASSIGN_OR_RETURN(const Field field, reader.next());
    if (field.number == 1) {
      QUAROT_ASSIGN_OR_RETURN(Piece piece, read_piece(field.bytes));
      model.pieces.push_back(std::move(piece));
    } else if (field.number == 2) {
      QUAROT_ASSIGN_OR_RETURN(spec, read_trainer_spec(field.bytes));
    } else if (field.number == 3) {
      QUAROT_RETURN_IF_ERROR(read_normalizer_spec(field.bytes, model));
    }
  }
  if (model.pieces.empty()) return error(ErrorCode::kCorrupt, "a SentencePiece model of no pieces");
  QUAROT_RETURN_IF_ERROR(apply_trainer_spec(spec, model));
  return model;
}

Result<SentencePieceModel> parse_llama2c_vocabulary(std::string_view bytes) {
  constexpr size_t kEntryHeader = 8;
  SentencePieceModel model;
  model.algorithm = SentencePieceModel::Algorithm::kBpe;
  model.remove_extra_whitespaces = false;
  if (bytes.size() < 4) return error(ErrorCode::kCorrupt, "{} bytes, too few", bytes.size());
  bytes.remove_prefix(4);  // the longest token's length, of use to C
  while (!bytes.empty()) {
    const size_t id = model.pieces.size();
    if (bytes.size() < kEntryHeader)
      return error(ErrorCode::kCorrupt, "the file ends inside token {}", id);
    Piece piece;
    piece.score = load<float>(bytes);
    const auto length = load<int32_t>(bytes.substr(4));
    bytes.remove_prefix(kEntryHeader);
    if (length < 0 || static_cast<size_t>(length) > bytes.size()) {
      return error(ErrorCode::kCorrupt, "token {} is said to have {} bytes, but {} are left", id,
                   length, bytes.size());
    }
    piece.content = replace_all(bytes.substr(0, static_cast<size_t>(length)), " ", "▁");
    if (byte_token_value(piece.content)) piece.kind = Kind::kByte;
    bytes.remove_prefix(static_cast<size_t>(length));
    model.pieces.push_back(std::move(piece));
  }
  // The first three are fixed; the format writes <s> and </s> with line feeds around them.
  if (model.pieces.size() < 3 || model.pieces[0].content != "<unk>" ||
      model.pieces[1].content != "\n<s>\n" || model.pieces[2].content != "\n</s>\n") {
    return error(ErrorCode::kCorrupt,
                 "not a llama2.c vocabulary: it does not begin with <unk>, "
                 "<s>, </s>");
  }
  model.pieces[0].kind = Kind::kUnknown;
  model.pieces[1] = {"<s>", 0, Kind::kControl};
  model.pieces[2] = {"</s>", 0, Kind::kControl};
  model.bos = 1;
  model.eos = 2;
  return model;
}

}  // namespace quarot
