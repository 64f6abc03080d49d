#include "formats/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/atomic_file.h"
#include "base/error.h"
#include "formats/parsers.h"

namespace quarot {

namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kMaxDimensions = 4;
constexpr int64_t kDefaultAlignment = 32;

enum class ValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// What GgufValue holds for a stored T.
template <typename T>
struct Widened {
  using type = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
};
template <>
struct Widened<bool> {
  using type = bool;
};
template <>
struct Widened<std::string> {
  using type = std::string;
};

// The least a T takes in the file; a string is at least its length.
template <typename T>
constexpr size_t kStoredBytes = std::is_same_v<T, std::string> ? sizeof(uint64_t) : sizeof(T);

// Walks through the header; every step is checked against the end.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }

  template <typename T>
  Result<T> number() {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    if (remaining() < sizeof(T)) return ends(sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  Result<std::string> string() {
    QUAROT_ASSIGN_OR_RETURN(const auto length, number<uint64_t>());
    if (length > remaining()) return ends(length);
    std::string text(reinterpret_cast<const char*>(bytes_.data()) + position_,
                     static_cast<size_t>(length));
    position_ += text.size();
    return text;
  }

  // A count of things that take at least `least` bytes each, so that it can be trusted to reserve.
  Result<size_t> count(size_t least, std::string_view what) {
    QUAROT_ASSIGN_OR_RETURN(const auto value, number<uint64_t>());
    if (value > remaining() / least) {
      return error(ErrorCode::kCorrupt, "{} {}, more than the {} bytes left can hold", value, what,
                   remaining());
    }
    return static_cast<size_t>(value);
  }

  template <typename T>
  Result<typename Widened<T>::type> element() {
    if constexpr (std::is_same_v<T, std::string>) {
      return string();
    } else if constexpr (std::is_same_v<T, bool>) {
      QUAROT_ASSIGN_OR_RETURN(const auto byte, number<uint8_t>());
      if (byte > 1) return error(ErrorCode::kCorrupt, "a boolean is 0 or 1, not {}", byte);
      return byte == 1;
    } else {
      QUAROT_ASSIGN_OR_RETURN(const T value, number<T>());
      if constexpr (std::is_same_v<T, uint64_t>) {
        if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
          return error(ErrorCode::kUnsupported, "{} is beyond 2^63 - 1", value);
        }
      }
      return static_cast<typename Widened<T>::type>(value);
    }
  }

 private:
  Error ends(uint64_t wanted) const {
    return error(ErrorCode::kCorrupt,
                 "the file ends: {} bytes expected at byte {}, {} left; is it truncated?", wanted,
                 position_, remaining());
  }

  std::span<const std::byte> bytes_;
  size_t position_ = 0;
};

// visit(std::type_identity<T>) with the C++ type T that is stored.
template <typename Visit>
Result<GgufValue> with_type(uint32_t type, Visit visit) {
  switch (static_cast<ValueType>(type)) {
    case ValueType::kU8:
      return visit(std::type_identity<uint8_t>{});
    case ValueType::kI8:
      return visit(std::type_identity<int8_t>{});
    case ValueType::kU16:
      return visit(std::type_identity<uint16_t>{});
    case ValueType::kI16:
      return visit(std::type_identity<int16_t>{});
    case ValueType::kU32:
      return visit(std::type_identity<uint32_t>{});
    case ValueType::kI32:
      return visit(std::type_identity<int32_t>{});
    case ValueType::kU64:
      return visit(std::type_identity<uint64_t>{});
    case ValueType::kI64:
      return visit(std::type_identity<int64_t>{});
    case ValueType::kF32:
      return visit(std::type_identity<float>{});
    case ValueType::kF64:
      return visit(std::type_identity<double>{});
    case ValueType::kBool:
      return visit(std::type_identity<bool>{});
    case ValueType::kString:
      return visit(std::type_identity<std::string>{});
    case ValueType::kArray:
      return error(ErrorCode::kUnsupported, "arrays of arrays are not supported");
  }
  return error(ErrorCode::kCorrupt, "value type {} is not known", type);
}

template <typename T>
Result<GgufValue> read_array(Reader& reader) {
  QUAROT_ASSIGN_OR_RETURN(const size_t count, reader.count(kStoredBytes<T>, "array elements"));
  std::vector<typename Widened<T>::type> values;
  values.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    QUAROT_ASSIGN_OR_RETURN(auto value, reader.element<T>());
    values.push_back(std::move(value));
  }
  return GgufValue(std::move(values));
}

Result<GgufValue> read_value(Reader& reader) {
  QUAROT_ASSIGN_OR_RETURN(const auto type, reader.number<uint32_t>());
  if (static_cast<ValueType>(type) == ValueType::kArray) {
    QUAROT_ASSIGN_OR_RETURN(const auto element_type, reader.number<uint32_t>());
    return with_type(element_type, [&]<typename T>(std::type_identity<T>) -> Result<GgufValue> {
      return read_array<T>(reader);
    });
  }
  return with_type(type, [&]<typename T>(std::type_identity<T>) -> Result<GgufValue> {
    QUAROT_ASSIGN_OR_RETURN(auto value, reader.element<T>());
    return GgufValue(std::move(value));
  });
}

Status read_metadata(Reader& reader, size_t count, GgufContents& contents) {
  for (size_t i = 0; i < count; ++i) {
    auto key = reader.string();
    if (!key.ok()) return key.error().with_context(fmt::format("metadata {} of {}", i + 1, count));
    const std::string label = fmt::format("metadata {:?}", key->substr(0, 200));
    auto value = read_value(reader);
    if (!value.ok()) return value.error().with_context(label);
    if (!contents.metadata.emplace(*std::move(key), *std::move(value)).second) {
      return error(ErrorCode::kCorrupt, "{} is there twice", label);
    }
  }
  return {};
}

Result<int64_t> alignment(const GgufContents& contents) {
  const auto it = contents.metadata.find("general.alignment");
  if (it == contents.metadata.end()) return kDefaultAlignment;
  const auto* value = std::get_if<int64_t>(&it->second);
  if (value == nullptr || *value <= 0 || !std::has_single_bit(static_cast<uint64_t>(*value)) ||
      *value > int64_t{1} << 30) {
    return error(ErrorCode::kCorrupt, "general.alignment must be a power of two up to 2^30");
  }
  return *value;
}

// A tensor's entry; its offset counts from the start of the data, which is not known yet.
struct Entry {
  TensorInfo info;
  const BlockFormat* format;
  uint64_t offset;
};

Result<Entry> read_shape_and_place(Reader& reader, std::string name) {
  QUAROT_ASSIGN_OR_RETURN(const auto dimensions, reader.number<uint32_t>());
  if (dimensions > kMaxDimensions) {
    return error(ErrorCode::kCorrupt, "{} dimensions, expected at most {}", dimensions,
                 kMaxDimensions);
  }
  std::vector<int64_t> shape(dimensions);  // stored innermost first
  for (size_t i = shape.size(); i-- > 0;) {
    QUAROT_ASSIGN_OR_RETURN(shape[i], reader.element<uint64_t>());
  }
  QUAROT_ASSIGN_OR_RETURN(const auto type, reader.number<uint32_t>());
  QUAROT_ASSIGN_OR_RETURN(const auto offset, reader.number<uint64_t>());
  const BlockFormat* format = ggml_format(type);
  if (format == nullptr) return error(ErrorCode::kUnsupported, "type {} is not known", type);
  QUAROT_ASSIGN_OR_RETURN(const int64_t bytes, format->bytes(shape));
  return Entry{
      {std::move(name), std::string(format->name), std::move(shape), bytes}, format, offset};
}

Result<Entry> read_entry(Reader& reader) {
  QUAROT_ASSIGN_OR_RETURN(std::string name, reader.string());
  const std::string label = tensor_label(name);
  auto entry = read_shape_and_place(reader, std::move(name));
  if (!entry.ok()) return entry.error().with_context(label);
  return entry;
}

Status check_place(const Entry& entry, size_t data_bytes, int64_t alignment) {
  if (entry.offset % static_cast<uint64_t>(alignment) != 0) {
    return error(ErrorCode::kCorrupt, "{}: offset {}, expected a multiple of {}",
                 tensor_label(entry.info.name), entry.offset, alignment);
  }
  const auto bytes = static_cast<uint64_t>(entry.info.bytes);
  if (entry.offset > data_bytes || bytes > data_bytes - entry.offset) {
    return error(ErrorCode::kCorrupt,
                 "{}: {} bytes at offset {} of the data, which has {}: is the file truncated?",
                 tensor_label(entry.info.name), bytes, entry.offset, data_bytes);
  }
  return {};
}

Status check_overlaps(const std::vector<Entry>& entries) {
  std::vector<const Entry*> order;
  for (const Entry& entry : entries) {
    if (entry.info.bytes > 0) order.push_back(&entry);
  }
  std::ranges::sort(order, {}, &Entry::offset);
  for (size_t i = 1; i < order.size(); ++i) {
    const Entry& before = *order[i - 1];
    if (order[i]->offset < before.offset + static_cast<uint64_t>(before.info.bytes)) {
      return error(ErrorCode::kCorrupt, "{} and {} overlap", tensor_label(before.info.name),
                   tensor_label(order[i]->info.name));
    }
  }
  return {};
}

Status read_tensors(Reader& reader, size_t count, const FileView& file, GgufContents& contents) {
  std::vector<Entry> entries;
  entries.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    auto entry = read_entry(reader);
    if (!entry.ok()) return entry.error();
    entries.push_back(*std::move(entry));
  }
  QUAROT_ASSIGN_OR_RETURN(const int64_t align, alignment(contents));
  const auto unit = static_cast<size_t>(align);
  const size_t start = (reader.position() + unit - 1) / unit * unit;
  const auto data = file.bytes.subspan(std::min(start, file.bytes.size()));
  for (const Entry& entry : entries) {
    QUAROT_RETURN_IF_ERROR(check_place(entry, data.size(), align));
  }
  QUAROT_RETURN_IF_ERROR(check_overlaps(entries));
  for (Entry& entry : entries) {
    const auto bytes =
        data.subspan(static_cast<size_t>(entry.offset), static_cast<size_t>(entry.info.bytes));
    QUAROT_RETURN_IF_ERROR(
        contents.tensors.add(std::move(entry.info), {entry.format, bytes, file.mapping}));
  }
  return {};
}

Status check_version(uint32_t magic, uint32_t version) {
  if (magic != kMagic) {
    return error(ErrorCode::kCorrupt, "no GGUF file: it starts with {:#010x}, expected {:#010x}",
                 magic, kMagic);
  }
  if ((version & 0xffffU) == 0) {
    return error(ErrorCode::kUnsupported,
                 "big-endian GGUF; convert it to little-endian (gguf-convert-endian)");
  }
  if (version != 2 && version != 3) {
    return error(ErrorCode::kUnsupported, "GGUF version {}, expected 2 or 3", version);
  }
  return {};
}

Result<GgufContents> parse(const FileView& file) {
  constexpr size_t kLeastTensor = 8 + 4 + 4 + 8;  // an empty name, no dimensions, type, offset
  constexpr size_t kLeastMetadata = 8 + 4 + 1;    // an empty key, type, one byte
  Reader reader(file.bytes);
  QUAROT_ASSIGN_OR_RETURN(const auto magic, reader.number<uint32_t>());
  QUAROT_ASSIGN_OR_RETURN(const auto version, reader.number<uint32_t>());
  QUAROT_RETURN_IF_ERROR(check_version(magic, version));
  QUAROT_ASSIGN_OR_RETURN(const size_t tensors, reader.count(kLeastTensor, "tensors"));
  QUAROT_ASSIGN_OR_RETURN(const size_t pairs, reader.count(kLeastMetadata, "metadata pairs"));
  GgufContents contents{TensorTable(file.path), {}, {}};
  const size_t begin = reader.position();
  QUAROT_RETURN_IF_ERROR(read_metadata(reader, pairs, contents));
  contents.metadata_bytes = file.bytes.subspan(begin, reader.position() - begin);
  QUAROT_RETURN_IF_ERROR(read_tensors(reader, tensors, file, contents));
  return contents;
}

class MappedGguf final : public TableSource<GgufFile> {
 public:
  MappedGguf(GgufContents contents, std::shared_ptr<const MappedFile> mapping)
      : TableSource(std::move(contents.tensors)),
        metadata_(std::move(contents.metadata)),
        metadata_bytes_(contents.metadata_bytes),
        mapping_(std::move(mapping)) {}

  const std::map<std::string, GgufValue, std::less<>>& metadata() const override {
    return metadata_;
  }
  std::span<const std::byte> metadata_bytes() const override { return metadata_bytes_; }

 private:
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::span<const std::byte> metadata_bytes_;
  std::shared_ptr<const MappedFile> mapping_;  // what the bytes lie in
};

}  // namespace

Result<GgufContents> parse_gguf(const FileView& file) {
  auto contents = parse(file);
  if (!contents.ok()) return contents.error().with_context(file.path.string());
  return contents;
}

Result<std::unique_ptr<GgufFile>> open_gguf(const std::filesystem::path& path) {
  QUAROT_ASSIGN_OR_RETURN(const FileView file, map_file(path));
  QUAROT_ASSIGN_OR_RETURN(GgufContents contents, parse_gguf(file));
  return std::unique_ptr<GgufFile>(std::make_unique<MappedGguf>(std::move(contents), file.mapping));
}

Status write_gguf_metadata(const GgufFile& gguf, const std::filesystem::path& path) {
  struct Header {
    uint32_t magic = kMagic;
    uint32_t version = 3;
    uint64_t tensors = 0;
    uint64_t pairs = 0;
  };
  const Header header{.pairs = gguf.metadata().size()};
  QUAROT_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  QUAROT_RETURN_IF_ERROR(file.write(std::as_bytes(std::span(&header, 1))));
  QUAROT_RETURN_IF_ERROR(file.write(gguf.metadata_bytes()));
  return file.commit();
}

}  // namespace quarot
