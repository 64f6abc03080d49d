#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/folder_lock.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/random.h"

namespace quarot {
namespace {

namespace fs = std::filesystem;

class TemporaryFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("quarot-base-{}", ::getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_;
};

Result<int> half(int x) {
  if (x % 2 != 0) return error(ErrorCode::kInvalidArgument, "{} is odd", x);
  return x / 2;
}

Result<int> quarter(int x) {
  QUAROT_ASSIGN_OR_RETURN(const int h, half(x));
  QUAROT_RETURN_IF_ERROR(half(h));
  return h / 2;
}

TEST(Status, ErrorsPassThrough) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(7).error().message(), "7 is odd");
  EXPECT_EQ(quarter(6).error().message(), "3 is odd");
  EXPECT_TRUE(Status().ok());
}

using MappedFileTest = TemporaryFolder;

TEST_F(MappedFileTest, ReadsWhatWasWritten) {
  const fs::path path = folder_ / "a";
  ASSERT_TRUE(write_file_atomically(path, "hello").ok());
  auto file = MappedFile::open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->bytes().size(), 5U);
  EXPECT_EQ(static_cast<char>(file->bytes()[1]), 'e');
  EXPECT_EQ(*read_text_file(path), "hello");
  EXPECT_FALSE(read_text_file(path, 4).ok());
}

TEST_F(MappedFileTest, RefusesWhatIsNoFile) {
  EXPECT_EQ(MappedFile::open(folder_ / "none").error().code(), ErrorCode::kNotFound);
  const fs::path pipe = folder_ / "pipe";  // nobody writes to it
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const fs::path& path : {folder_, pipe}) {
    EXPECT_EQ(MappedFile::open(path).error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(read_text_file(path).error().code(), ErrorCode::kInvalidArgument);
  }
}

TEST_F(MappedFileTest, EmptyFileIsEmpty) {
  ASSERT_TRUE(write_file_atomically(folder_ / "e", "").ok());
  EXPECT_TRUE(MappedFile::open(folder_ / "e")->bytes().empty());
}

using AtomicFileTest = TemporaryFolder;

TEST_F(AtomicFileTest, NothingAppearsWithoutCommit) {
  {
    auto file = AtomicFile::create(folder_ / "b");
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->write("half").ok());
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(AtomicFileTest, ReplacesNothingButFiles) {
  const fs::path pipe = folder_ / "pipe", folder = folder_ / "folder", link = folder_ / "link";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_directory(folder);
  fs::create_symlink("pipe", link);
  for (const fs::path& path : {pipe, folder, link}) {
    const Status written = write_file_atomically(path, "x");
    ASSERT_FALSE(written.ok()) << path;
    EXPECT_EQ(written.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(written.error().message().find("expected a regular file"), std::string::npos);
  }
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 3);
}

TEST_F(AtomicFileTest, FollowsALink) {
  const fs::path file = folder_ / "file", link = folder_ / "link", nowhere = folder_ / "nowhere";
  ASSERT_TRUE(write_file_atomically(file, "old").ok());
  fs::create_symlink("file", link);
  ASSERT_TRUE(write_file_atomically(link, "new").ok());
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(*read_text_file(file), "new");
  fs::create_symlink("none", nowhere);
  EXPECT_EQ(write_file_atomically(nowhere, "x").error().code(), ErrorCode::kIo);
}

using FolderLockTest = TemporaryFolder;

TEST_F(FolderLockTest, OneHolderAtATime) {
  {
    const auto first = FolderLock::acquire(folder_);
    ASSERT_TRUE(first.ok()) << first.error().message();
    const auto second = FolderLock::acquire(folder_);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(second.error().message().find("another process"), std::string::npos);
  }
  EXPECT_TRUE(FolderLock::acquire(folder_).ok());
  EXPECT_EQ(FolderLock::acquire(folder_ / "none").error().code(), ErrorCode::kIo);
}

TEST(Parallel, CoversEveryElementOnce) {
  for (const int64_t count : {0, 1, 7, 1000}) {
    std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
    parallel_for(count, 3, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) ++seen[static_cast<size_t>(i)];
    });
    for (const auto& n : seen) EXPECT_EQ(n.load(), 1);
  }
}

TEST(Parallel, OneThreadSetsTheCountForAll) {
  const int threads = thread_count();
  set_thread_count(threads + 2);
  int seen = 0;
  std::thread([&] { seen = thread_count(); }).join();
  set_thread_count(threads);
  EXPECT_EQ(seen, threads + 2);
}

TEST(Random, IsTheSameEverywhere) {
  // xoshiro256** seeded by splitmix64(0), computed independently.
  Random random(0);
  EXPECT_EQ(random.next(), 0x99ec5f36cb75f2b4U);
  EXPECT_EQ(random.next(), 0xbf6e1f784956452aU);
}

TEST(Random, NormalHasUnitVariance) {
  Random random(1, "test");
  double sum = 0;
  double squares = 0;
  constexpr int kCount = 200000;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.01);
}

TEST(Hash, KnownValue) {
  EXPECT_EQ(content_hash(""), "99aa06d3014798d86001c324468d497f");  // XXH3-128 of nothing
  EXPECT_NE(content_hash("a"), content_hash("b"));
}

TEST(Memory, PeakIsPlausible) {
  EXPECT_GT(peak_resident_bytes(), 1 << 20);
  AlignedVector<float> v(3);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(v.data()) % kAlignment, 0U);
}

}  // namespace
}  // namespace quarot
