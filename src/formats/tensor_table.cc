#include "formats/tensor_table.h"

#include <algorithm>

#include "base/error.h"
#include "base/parallel.h"

namespace quarot {

namespace {

constexpr int64_t kGrain = int64_t{1} << 16;  // elements; below, threads cost more than they save

// The row of the file that is row `row` of the tensor.
int64_t stored_row(int64_t row, int64_t head) {
  const int64_t within = row % head;
  const int64_t pair = within % (head / 2);
  return row - within + 2 * pair + within / (head / 2);
}

void decode_interleaved(const StoredTensor& tensor, int64_t first, MatrixRef out) {
  const BlockFormat& format = *tensor.format;
  const int64_t blocks = out.cols() / format.block_elements;
  const int64_t grain = std::max<int64_t>(1, kGrain / out.cols());
  parallel_for(out.rows(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t row = stored_row(first + r, tensor.interleaved_head);
      format.decode(tensor.bytes.data() + row * blocks * format.block_bytes, blocks,
                    out.row_data(r));
    }
  });
}

void decode_rows(const StoredTensor& tensor, int64_t first, MatrixRef out) {
  const BlockFormat& format = *tensor.format;
  const int64_t row_blocks = out.cols() / format.block_elements;
  const std::byte* data = tensor.bytes.data() + first * row_blocks * format.block_bytes;
  parallel_for(out.rows() * row_blocks, std::max<int64_t>(1, kGrain / format.block_elements),
               [&](int64_t begin, int64_t end) {
                 format.decode(data + begin * format.block_bytes, end - begin,
                               out.data() + begin * format.block_elements);
               });
}

}  // namespace

Result<FileView> map_file(const std::filesystem::path& path) {
  QUAROT_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  auto mapping = std::make_shared<const MappedFile>(std::move(file));
  const std::span<const std::byte> bytes = mapping->bytes();
  return FileView{path, bytes, std::move(mapping)};
}

Status TensorTable::add(TensorInfo info, StoredTensor stored) {
  if (!index_.emplace(info.name, infos_.size()).second) {
    return error(ErrorCode::kCorrupt, "{} is there twice", tensor_label(info.name));
  }
  infos_.push_back(std::move(info));
  stored_.push_back(std::move(stored));
  return {};
}

const TensorInfo* TensorTable::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &infos_[it->second];
}

Result<Matrix> TensorTable::read(std::string_view name) const {
  const TensorInfo* info = find(name);
  if (info == nullptr) return not_found(name);
  return read_rows(name, 0, info->rows());
}

Result<Matrix> TensorTable::read_rows(std::string_view name, int64_t first, int64_t count) const {
  const TensorInfo* info = find(name);
  if (info == nullptr) return not_found(name);
  const int64_t rows = info->rows();
  if (first < 0 || count < 0 || first > rows || count > rows - first) {
    return error(ErrorCode::kInvalidArgument, "{}: {} has {} rows, asked for {} from row {} on",
                 path_.string(), tensor_label(name), rows, count, first);
  }
  const StoredTensor& tensor = stored(*info);
  if (tensor.format->decode == nullptr) {
    return error(ErrorCode::kUnsupported, "{}: {} is of type {}, which cannot be read as numbers",
                 path_.string(), tensor_label(name), info->type);
  }
  Matrix out(count, info->cols());
  if (out.empty()) return out;
  if (tensor.interleaved_head != 0) {
    decode_interleaved(tensor, first, out);
  } else {
    decode_rows(tensor, first, out);
  }
  const auto row_bytes = static_cast<size_t>(info->bytes / rows);
  tensor.drop(tensor.interleaved_head != 0
                  ? tensor.bytes
                  : tensor.bytes.subspan(static_cast<size_t>(first) * row_bytes,
                                         static_cast<size_t>(count) * row_bytes));
  return out;
}

Error TensorTable::not_found(std::string_view name) const {
  return error(ErrorCode::kNotFound, "{}: no {} among its {} tensors", path_.string(),
               tensor_label(name), infos_.size());
}

std::string tensor_label(std::string_view name) {
  constexpr size_t kLongest = 200;
  return fmt::format("tensor {:?}", name.substr(0, kLongest));
}

}  // namespace quarot
