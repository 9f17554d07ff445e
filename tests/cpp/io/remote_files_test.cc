#include "penstock/io/remote_files.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "memory_files.h"
#include "penstock/base/cancellation.h"
#include "penstock/base/error.h"
#include "penstock/io/file_pool.h"
#include "penstock/io/glob.h"

namespace penstock {
namespace {

using Names = std::vector<std::string>;

// Files in memory, by URL; the identity of a version is its content's length.
class FakeRemote final : public RemoteFiles {
 public:
  std::vector<std::string> glob(const std::string& url) override {
    asked.push_back("glob " + url);
    return {url};
  }
  std::vector<FileSystem::Entry> list(const std::string&) override { return {}; }
  About find(const std::string& url) override {
    asked.push_back("find " + url);
    const auto found = files.find(url);
    if (found == files.end()) throw Error(Code::kNotFound, "open", "no such file: " + url);
    return {found->second.size(), {1, found->second.size()}};
  }
  std::vector<std::byte> front(const std::string& url, const About&, uint64_t bytes) override {
    asked.push_back("front " + url);
    const std::string& data = files.at(url);
    const auto begin = reinterpret_cast<const std::byte*>(data.data());
    return {begin, begin + std::min<uint64_t>(bytes, data.size())};
  }
  os::Fd fetch(const std::string& url, const File::Identity& identity) override {
    asked.push_back("fetch " + url);
    if (files.at(url).size() != identity.inode) {
      throw Error(Code::kDataLoss, "open", url + " is another version");
    }
    os::Fd fd(memfd_create("copy", 0));
    EXPECT_EQ(write(fd.get(), files.at(url).data(), files.at(url).size()),
              static_cast<ssize_t>(files.at(url).size()));
    return fd;
  }
  void announce(const std::vector<std::string>& urls) noexcept override {
    for (const std::string& url : urls) asked.push_back("announce " + url);
  }

  std::map<std::string, std::string> files;
  Names asked;
};

struct RemoteFilesTest : ::testing::Test {
  RemoteFilesTest() { set_remote_files(remote); }
  ~RemoteFilesTest() override { set_remote_files(nullptr); }

  static std::string read(File& file, uint64_t begin, uint64_t bytes) {
    std::string text(bytes, '\0');
    const File::Segment segment{begin, reinterpret_cast<std::byte*>(text.data()), bytes};
    file.read({&segment, 1});
    return text;
  }

  const std::shared_ptr<FakeRemote> remote = std::make_shared<FakeRemote>();
  const std::shared_ptr<FileSystem> files = posix_files();
};

TEST(RemoteNames, a_url_is_told_from_a_path) {
  for (const char* url :
       {"https://host/a", "s3://bucket/a", "simplecache::gs://b/c", "memory://a"}) {
    EXPECT_TRUE(is_url(url)) << url;
  }
  for (const char* path : {"", "a", "/a/b", "a/b://c", "://a", "c://a", "a:b", "some thing://x"}) {
    EXPECT_FALSE(is_url(path)) << path;
  }
  EXPECT_EQ(without_query("https://host/a.gz?token=1"), "https://host/a.gz");
  EXPECT_EQ(without_query("/what?"), "/what?");
}

TEST_F(RemoteFilesTest, the_first_bytes_do_not_fetch_the_file) {
  const std::string url = "https://host/a";
  remote->files[url] = std::string(100'000, 'a') + "end";
  const std::shared_ptr<File> file = files->open(url);
  EXPECT_EQ(file->size(), 100'003u);
  EXPECT_EQ(read(*file, 0, 4), "aaaa");
  EXPECT_EQ(read(*file, 10, 2), "aa");
  EXPECT_EQ(remote->asked, (Names{"find " + url, "front " + url}));
  EXPECT_EQ(read(*file, 99'999, 4), "aend");
  EXPECT_EQ(read(*file, 0, 1), "a");
  EXPECT_EQ(remote->asked.back(), "fetch " + url);
  EXPECT_EQ(remote->asked.size(), 3u);
  EXPECT_EQ(file->path(), url);
}

TEST_F(RemoteFilesTest, a_pool_opens_the_version_that_it_had) {
  const std::string url = "https://host/a";
  remote->files[url] = "old";
  FilePool pool(files, std::make_shared<OpenFiles>(1));
  const uint32_t a = pool.add(url), b = pool.add("/dev/null/none");
  EXPECT_EQ(read(*pool.get(a), 0, 3), "old");
  EXPECT_THROW(pool.get(b), Error);  // closes the first
  remote->asked.clear();
  EXPECT_EQ(read(*pool.get(a), 0, 3), "old");
  EXPECT_EQ(remote->asked, Names{"fetch " + url});  // without looking for a new version
  remote->files[url] = "newer";
  EXPECT_THROW(pool.get(b), Error);
  try {
    pool.get(a);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kDataLoss);
  }
}

TEST_F(RemoteFilesTest, unused_open_files_of_a_path_are_closed) {
  const std::string url = "https://host/a";
  remote->files[url] = "old";
  const auto open = std::make_shared<OpenFiles>(4);
  FilePool pool(files, open);
  std::shared_ptr<File> held = pool.get(pool.add(url));
  open->close_unused(url);
  EXPECT_EQ(open->count(), 1u);
  held.reset();
  open->close_unused("https://host/b");
  EXPECT_EQ(open->count(), 1u);
  open->close_unused(url);
  EXPECT_EQ(open->count(), 0u);
}

TEST_F(RemoteFilesTest, braces_of_urls_are_a_list_and_patterns_are_the_servers) {
  EXPECT_EQ(glob(*files, {"https://h/{00..02}.tar", "s3://b/*"}),
            (Names{"https://h/00.tar", "https://h/01.tar", "https://h/02.tar", "s3://b/*"}));
  EXPECT_EQ(remote->asked.size(), 4u);
}

TEST_F(RemoteFilesTest, only_urls_are_announced) {
  files->will_open({"/a", "https://h/b"});
  files->will_open({"/a"});
  EXPECT_EQ(remote->asked, Names{"announce https://h/b"});
}

TEST(RemoteAccess, without_access_a_url_is_an_error) {
  try {
    posix_files()->open("https://host/a");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
  }
  posix_files()->will_open({"https://host/a"});  // a hint is none
}

TEST(CancellationTest, the_innermost_check_of_a_thread_counts) {
  Cancellation::check();
  const Cancellation outer([] { throw 1; });
  {
    const Cancellation inner(Cancellation::Check{});
    EXPECT_NO_THROW(Cancellation::check());
  }
  EXPECT_THROW(Cancellation::check(), int);
  EXPECT_THROW(Cancellation::current()(), int);
}

}  // namespace
}  // namespace penstock
