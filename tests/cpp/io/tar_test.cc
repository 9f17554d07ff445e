#include "penstock/io/tar.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bytes.h"
#include "memory_files.h"
#include "penstock/base/error.h"
#include "penstock/io/glob.h"
#include "penstock/io/record_stream.h"
#include "penstock/io/tar_index.h"
#include "tars.h"
#include "tests/cpp/errors.h"
#include "tfrecords.h"

namespace penstock {
namespace {

using testing::code_of;

// "key[ext=data ext=data]" of each sample, and "<why>" of each that is lost.
using Samples = std::vector<std::string>;

std::string sample_of(std::string_view record, uint64_t offset) {
  TarSample sample;
  const std::string why = sample.parse(bytes_of(record), offset);
  if (!why.empty()) return "<" + why + ">";
  std::string text = sample.key() + "[";
  for (const TarSample::Field& field : sample.fields()) {
    text += (text.back() == '[' ? "" : " ") + field.extension + "=";
    text.append(reinterpret_cast<const char*>(field.data.data()), field.data.size());
  }
  return text + "]";
}

Samples indexed(const std::string& bytes) {
  MemoryFiles files;
  files["file"] = bytes;
  const auto file = files.open("file");
  const RecordIndex index = index_tar(*file);
  Samples samples;
  uint64_t end = 0;
  for (uint64_t i = 0; i < index.size(); ++i) {
    const RecordIndex::Place place = index.at(i);
    EXPECT_EQ(place.offset, end);
    end += place.bytes;
    samples.push_back(
        place.damaged
            ? "<" + explain_tar_damage(*file, place) + ">"
            : sample_of(std::string_view(bytes).substr(place.offset, place.bytes), place.offset));
  }
  EXPECT_TRUE(end == bytes.size() || index.size() == 0);
  EXPECT_EQ(index.file_bytes(), bytes.size());
  return samples;
}

Samples streamed(const std::string& bytes, Compression compression = Compression::kNone,
                 size_t most = 64) {
  auto files = std::make_shared<MemoryFiles>();
  (*files)["file"] = compression == Compression::kNone ? bytes : compressed(bytes, compression);
  RecordStream stream(
      std::make_shared<StreamFiles>(std::make_shared<FilePool>(files),
                                    std::vector<std::string>{"file"}, std::vector{compression}),
      "tar", tar_framing());
  stream.begin();
  Samples samples;
  while (const size_t count = stream.read(most)) {
    auto failure = stream.failures().begin();
    for (size_t i = 0; i < count; ++i) {
      const auto& [place, record] = stream.row(i);
      if (failure != stream.failures().end() && failure->row == i) {
        samples.push_back("<" + (failure++)->why + ">");
      } else {
        samples.push_back(
            sample_of({reinterpret_cast<const char*>(record.data()), record.size()}, place.offset));
      }
    }
  }
  return samples;
}

// The same in every way of reading.
Samples samples_of(const std::string& bytes) {
  const Samples samples = indexed(bytes);
  for (size_t most : {1, 64}) {
    EXPECT_EQ(streamed(bytes, Compression::kNone, most), samples);
    EXPECT_EQ(streamed(bytes, Compression::kGzip, most), samples);
  }
  return samples;
}

TEST(TarTest, consecutive_entries_of_one_key_are_a_sample) {
  TarBytes tar;
  tar.add("a.jpg", "A").add("a.cls", "0").add("b.jpg", "").add("b.cls", std::string(512, 'b'));
  tar.add("c.cls", "2").add("a.cls", "3");
  const Samples expected{"a[jpg=A cls=0]", "b[jpg= cls=" + std::string(512, 'b') + "]", "c[cls=2]",
                         "a[cls=3]"};
  EXPECT_EQ(samples_of(tar.bytes), expected) << "without the blocks of its end";
  EXPECT_EQ(samples_of(tar.end().bytes), expected);
  EXPECT_EQ(samples_of(tar.bytes + std::string(9216, '\0')), expected);
  EXPECT_EQ(samples_of(""), Samples());
  EXPECT_EQ(samples_of(std::string(10240, '\0')), Samples());
}

// As webdataset's base_plus_ext and group_by_keys do, but where the comments say so.
TEST(TarTest, names_are_split_as_webdataset_does) {
  struct Case {
    const char *name, *key, *extension;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"a.jpg", "a", "jpg"},
           {"a.seg.png", "a", "seg.png"},
           {"dir/a.jpg", "dir/a", "jpg"},
           {"./a.jpg", "./a", "jpg"},
           {"v1.2/a.b/c.d.e", "v1.2/a.b/c", "d.e"},
           {"a.JPG", "a", "jpg"},
           {"A.Seg.PNG", "A", "seg.png"},
           {"a..x", "a", ".x"},
           {"__a.jpg", "__a", "jpg"},
           {"___.jpg", "___", "jpg"},
       }) {
    const auto parts = split_tar_name(c.name);
    ASSERT_TRUE(parts) << c.name;
    EXPECT_EQ(parts->key, c.key);
    EXPECT_EQ(parts->extension, c.extension);
  }
  for (const char* name :
       {"", "a", "dir.x/a", "dir/", ".jpg", "__index__", "__meta__/a.jpg", "____/a.jpg",
        // webdataset takes "dir/" for a key, and "" for an extension.
        "dir/.jpg", "a."}) {
    EXPECT_FALSE(split_tar_name(name)) << name;
  }
}

TEST(TarTest, entries_without_a_key_are_passed_over) {
  TarBytes tar;
  tar.add("dir/", "", '5').add("README", std::string(2000, 'r')).add("dir/a.jpg", "A");
  tar.add("dir/link.txt", "", '1').add("dir/soft.txt", "", '2').add("pipe.x", "", '6');
  tar.add("NOTES", std::string(1500, 'n')).add("dir/a.cls", "0").add("old.d/", "", '\0');
  tar.add("dir/b.jpg", "B", '7').add("dir/b.cls", "1", '\0').add("device.x", "", '3').end();
  EXPECT_EQ(samples_of(tar.bytes), (Samples{"dir/a[jpg=A cls=0]", "dir/b[jpg=B cls=1]"}));
  // Links have no data, whatever their size says; unknown types have.
  TarBytes odd;
  odd.bytes = TarBytes::header("l.x", TarBytes::octal(5000, 11), '1');
  odd.add("volume.x", "name", 'V').add("a.x", "1").end();
  EXPECT_EQ(samples_of(odd.bytes), (Samples{"a[x=1]"}));
  TarBytes none;
  none.add("README", "r").end();
  EXPECT_EQ(samples_of(none.bytes), Samples());
}

TEST(TarTest, long_names_and_sizes_in_every_form) {
  const std::string name = "folder/" + std::string(300, 'n') + ".jpg";
  TarBytes tar;
  tar.add("././@LongLink", name + std::string(1, '\0'), 'L').add("cut", "gnu");
  tar.add("././@LongLink", std::string(200, 'k'), 'K').add("plain.x", "after K");
  tar.pax(TarBytes::pax_line("mtime", "1.5") + TarBytes::pax_line("path", "p\xC3\xA4x.cls"));
  tar.add("replaced", "pax");
  tar.pax(TarBytes::pax_line("size", "3"));
  tar.bytes += TarBytes::header("sized.x", TarBytes::octal(0, 11)) + TarBytes::padded("abc");
  tar.pax(TarBytes::pax_line("comment", "git"), 'g');
  tar.bytes += TarBytes::header("big.x", TarBytes::base256(5)) + TarBytes::padded("12345");
  tar.bytes += TarBytes::header("spaces.x", "         2 ") + TarBytes::padded("ok");
  std::string split = TarBytes::header("end.x", TarBytes::octal(1, 11));
  split.replace(345, 6, "pre/fi");
  TarBytes::sign(split);
  tar.bytes += split + TarBytes::padded("1");
  std::string gnu = split;  // in GNU's own format times are there
  gnu.replace(257, 8, std::string("ustar  \0", 8));
  TarBytes::sign(gnu);
  tar.bytes += gnu + TarBytes::padded("2");
  tar.end();
  EXPECT_EQ(samples_of(tar.bytes),
            (Samples{"folder/" + std::string(300, 'n') + "[jpg=gnu]", "plain[x=after K]",
                     "p\xC3\xA4x[cls=pax]", "sized[x=abc]", "big[x=12345]", "spaces[x=ok]",
                     "pre/fi/end[x=1]", "end[x=2]"}));
}

TEST(TarTest, sparse_files_are_passed_over) {
  TarBytes tar;
  std::string sparse = TarBytes::header("s.x", TarBytes::octal(600, 11), 'S');
  sparse[482] = 1;
  TarBytes::sign(sparse);
  std::string more(512, '\0');
  more[504] = 1;
  tar.bytes = sparse + more + std::string(512, '\0') + std::string(1024, 'd');
  tar.pax(TarBytes::pax_line("GNU.sparse.major", "1")).add("t.x", "map and data");
  tar.add("a.x", "1").end();
  EXPECT_EQ(samples_of(tar.bytes), (Samples{"a[x=1]"}));
}

TEST(TarTest, archives_one_after_the_other_are_one) {
  TarBytes one, two;
  one.add("a.x", "1").end();
  two.add("b.x", "2").end();
  EXPECT_EQ(samples_of(one.bytes + two.bytes), (Samples{"a[x=1]", "b[x=2]"}));
}

TEST(TarTest, a_sample_that_cannot_be_is_lost_alone) {
  const auto lost = [](const std::string& name, const std::string& says) {
    TarBytes tar;
    tar.add("a.x", "1").pax(TarBytes::pax_line("path", name)).add("n", "2");
    tar.add("c.x", "3").end();
    const Samples samples = samples_of(tar.bytes);
    ASSERT_EQ(samples.size(), 3u) << name;
    EXPECT_EQ(samples[0] + samples[2], "a[x=1]c[x=3]");
    EXPECT_NE(samples[1].find("at byte 1024: " + says), std::string::npos) << samples[1];
  };
  lost("../b.x", "it climbs out of its folder");
  lost("b/../../c.x", "it climbs out of its folder");
  lost("/etc/b.x", "it climbs out of its folder: its name is absolute");
  lost("b\xFF.x", "its name is not UTF-8");
  lost("b.x\x01", "its name has a control character");
  lost("b.__KEY__", "sample 'b' has two of '__key__'");
  TarBytes twice;
  twice.add("a.x", "1").add("b.JPG", "2").add("b.y", "3").add("b.jpg", "4").add("c.x", "5").end();
  EXPECT_EQ(
      samples_of(twice.bytes),
      (Samples{"a[x=1]", "<entry 'b.jpg' at byte 3072: sample 'b' has two of 'jpg'>", "c[x=5]"}));
  // Dots within a name are none of a path.
  TarBytes fine;
  fine.add("a..b/c...x", "1").end();
  EXPECT_EQ(samples_of(fine.bytes), (Samples{"a..b/c[..x=1]"}));
}

// Three samples of two entries each; a sample takes 2048 bytes.
TarBytes three() {
  TarBytes tar;
  for (const char* key : {"a", "b", "c"}) {
    tar.add(std::string(key) + ".jpg", key).add(std::string(key) + ".cls", key);
  }
  return tar.end();
}

TEST(TarTest, a_damaged_header_costs_its_sample) {
  for (int sample : {0, 1, 2}) {
    for (int entry : {0, 1}) {
      std::string bytes = three().bytes;
      const size_t at = 2048 * sample + 1024 * entry;
      bytes[at + 3] ^= 1;
      Samples expected{"a[jpg=a cls=a]", "b[jpg=b cls=b]", "c[jpg=c cls=c]"};
      const std::string key(1, static_cast<char>('a' + sample));
      expected[sample] = "<at byte " + std::to_string(at) +
                         ": the checksum of a header does not match" +
                         (entry == 0 ? ">" : ", behind entry '" + key + ".jpg'>");
      EXPECT_EQ(indexed(bytes), expected);
      // From the front, damage is a record, and so is what is left of the sample.
      const Samples stream = streamed(bytes);
      EXPECT_EQ(stream.size(), 4u);
      EXPECT_EQ(
          std::count(stream.begin(), stream.end(), "<the checksum of a header does not match>"), 1);
      EXPECT_EQ(streamed(bytes, Compression::kGzip, 1), stream);
      expected.erase(expected.begin() + sample);
      for (const std::string& other : expected) {
        EXPECT_EQ(std::count(stream.begin(), stream.end(), other), 1) << other;
      }
    }
  }
}

TEST(TarTest, damage_within_a_sample_is_that_sample) {
  TarBytes tar;
  for (const char* key : {"a", "b", "c"}) {
    for (const char* end : {".x", ".y", ".z"}) tar.add(std::string(key) + end, "");
  }
  std::string bytes = tar.end().bytes;
  bytes[512 * 4] ^= 1;  // b.y
  EXPECT_EQ(indexed(bytes),
            (Samples{"a[x= y= z=]",
                     "<at byte 2048: the checksum of a header does not match, behind entry 'b.x'>",
                     "c[x= y= z=]"}));
}

TEST(TarTest, samples_that_have_less_are_not_all_damaged) {
  TarBytes tar;
  tar.add("a.x", "").add("a.y", "");
  for (int i = 0; i < 8; ++i) tar.add("b" + std::to_string(i) + ".x", "");
  std::string bytes = tar.end().bytes;
  bytes[512 * 5] ^= 1;  // the fourth of these
  const Samples samples = indexed(bytes);
  // It may have had entries of both neighbours, and of no others.
  EXPECT_EQ(samples.size(), 7u);
  EXPECT_EQ(std::count_if(samples.begin(), samples.end(),
                          [](const std::string& text) { return text.starts_with('<'); }),
            1);
}

TEST(TarTest, a_file_that_was_cut_loses_its_last_sample) {
  const std::string whole = three().bytes;
  for (size_t end = 4097; end < 6144; ++end) {
    const std::string bytes = whole.substr(0, end);
    const Samples samples = indexed(bytes);
    // Data ends in front of its padding.
    if (end >= 5633) {
      EXPECT_EQ(samples.back(), "c[jpg=c cls=c]") << end;
    } else if (end >= 4609 && end <= 5120) {
      EXPECT_EQ(samples.back(), "c[jpg=c]") << end;
    } else {
      EXPECT_TRUE(samples.back().starts_with('<')) << end << samples.back();
      EXPECT_NE(samples.back().find("the file ends within"), std::string::npos);
    }
    ASSERT_EQ(samples.size(), 3u) << end;
    EXPECT_EQ(samples[0] + samples[1], "a[jpg=a cls=a]b[jpg=b cls=b]");
    const Samples stream = streamed(bytes);
    EXPECT_EQ(stream[0] + stream[1], "a[jpg=a cls=a]b[jpg=b cls=b]");
    if (samples.back().starts_with('<')) {
      EXPECT_NE(stream.back().find("the file ends within"), std::string::npos) << end;
    } else {
      EXPECT_EQ(stream, samples) << end;
    }
  }
}

TEST(TarTest, lengths_beyond_the_file_take_no_memory) {
  for (const std::string& size :
       {TarBytes::octal(077777777777, 11), TarBytes::base256(uint64_t{1} << 61)}) {
    TarBytes tar;
    tar.add("a.x", "1");
    tar.bytes += TarBytes::header("b.x", size) + std::string(4096, 'd');
    const Samples samples = indexed(tar.bytes);
    ASSERT_EQ(samples.size(), 2u);
    EXPECT_EQ(samples[1], "<entry 'b.x' at byte 1024: the file ends within it>");
    EXPECT_EQ(streamed(tar.bytes), (Samples{"a[x=1]", "<the file ends within an entry>"}));
  }
}

TEST(TarTest, headers_that_lie_are_damage) {
  const auto damaged = [](const std::string& header, const std::string& says) {
    TarBytes tar;
    tar.add("a.x", "1");
    tar.bytes += header;
    tar.add("c.x", "3").end();
    const Samples samples = indexed(tar.bytes);
    ASSERT_EQ(samples.size(), 3u) << says;
    EXPECT_EQ(samples[0] + samples[2], "a[x=1]c[x=3]");
    EXPECT_NE(samples[1].find(says), std::string::npos) << samples[1];
    EXPECT_EQ(streamed(tar.bytes), (Samples{"a[x=1]", "<" + says + ">", "c[x=3]"}));
  };
  damaged(TarBytes::header("b.x", "00000000009"), "the size in a header is no number");
  damaged(TarBytes::header("b.x", std::string(12, '\xFF')), "the size in a header is no number");
  damaged(TarBytes::header("b.x", "\x8F" + std::string(11, '\xFF')),
          "the size in a header is no number");
  damaged(TarBytes::header("b.x", TarBytes::octal(2 << 20, 11), 'x'),
          "an extended header is longer than 1 MiB");
  const auto pax = [](const std::string& lines, char type = 'x') {
    TarBytes tar;
    return tar.pax(lines, type).bytes;
  };
  for (const char* lines :
       {"path=x\n", "8 path=x\n", "99 path=x\n", "10 pathxx\n", "9 path=xy", "5 =\n"}) {
    damaged(pax(lines), "a pax header is malformed");
  }
  damaged(pax(TarBytes::pax_line("size", "-1")), "a pax header is malformed");
  damaged(pax(TarBytes::pax_line("path", std::string("a\0b", 3))), "a pax header is malformed");
  damaged(pax(TarBytes::pax_line("path", "all.x"), 'g'), "a global pax header sets names or sizes");
  damaged(pax(TarBytes::pax_line("path", "b.x")) + std::string(512, '\0'),
          "an extended header without an entry");
  damaged(std::string(700, 'g').append(324, '\0'), "the checksum of a header does not match");
}

TEST(TarTest, checksums_of_signed_bytes_are_taken) {
  TarBytes tar;
  std::string block = TarBytes::header("\xC3\xA4.x", TarBytes::octal(0, 11));
  std::memset(block.data() + 148, ' ', 8);
  int64_t sum = 0;
  for (const char c : block) sum += static_cast<signed char>(c);
  block.replace(148, 8, TarBytes::octal(static_cast<uint64_t>(sum), 6) + std::string("\0 ", 2));
  EXPECT_EQ(samples_of(block), (Samples{"\xC3\xA4[x=]"}));
}

TEST(TarTest, what_is_appended_later_is_no_part_of_the_last_sample) {
  TarBytes tar;
  tar.add("a.x", "1").add("a.y", "2").add("b.x", "3").end();
  EXPECT_EQ(sample_of(tar.bytes, 0), "a[x=1 y=2]");
}

TEST(TarTest, a_large_archive_is_indexed_by_its_headers) {
  MemoryFiles files;
  TarBytes tar;
  for (int i = 0; i < 5; ++i) tar.add("k" + std::to_string(i) + ".x", std::string(1 << 20, 'd'));
  files["file"] = tar.end().bytes;
  const auto file = files.open("file");
  int reads = 0;
  files.before_read("file", [&] { ++reads; });
  EXPECT_EQ(index_tar(*file).size(), 5u);
  EXPECT_LE(reads, 7);
  Progress progress;
  progress.stop = true;
  EXPECT_EQ(code_of([&] { index_tar(*file, &progress); }), Code::kClosed);
  files.before_read("file", [&] { files["file"].resize(100); });
  EXPECT_EQ(code_of([&] { index_tar(*file); }), Code::kDataLoss);
}

TEST(TarTest, the_first_sound_sample_says_which_fields_there_are) {
  MemoryFiles files;
  const auto fields = [&](const std::string& bytes) {
    std::string all;
    for (Compression compression : {Compression::kNone, Compression::kGzip}) {
      files["file"] = compression == Compression::kNone ? bytes : compressed(bytes, compression);
      std::string text;
      for (const std::string& name : first_tar_fields(files.open("file"), compression)) {
        text += name + ",";
      }
      EXPECT_TRUE(all.empty() || all == text) << all << " and " << text;
      all = text;
    }
    return all;
  };
  std::string bytes = three().bytes;
  EXPECT_EQ(fields(bytes), "jpg,cls,");
  EXPECT_EQ(fields(bytes.substr(0, 2048)), "jpg,cls,") << "a single one";
  std::string first = bytes;
  first[3] ^= 1;  // what is left of it has one field
  EXPECT_EQ(fields(first), "jpg,cls,");
  first[3] ^= 1;
  first[1024] ^= 1;
  EXPECT_EQ(fields(first), "jpg,cls,");
  first[2048 + 1024] ^= 1;
  EXPECT_EQ(fields(first), "jpg,cls,");
  EXPECT_EQ(fields(""), "");
  EXPECT_EQ(fields(std::string(5000, 'x')), "");
  TarBytes upper;
  upper.add("README", "").add("a.JPG", "").add("a.jpg", "").add("a.y", "").end();
  EXPECT_EQ(fields(upper.bytes), "jpg,y,");
}

TEST(TarTest, a_file_tells_whether_it_is_compressed) {
  MemoryFiles files;
  const auto compression = [&](const std::string& path, const std::string& bytes) {
    files[path] = bytes;
    return compression_of_tar(*files.open(path));
  };
  const std::string plain = three().bytes;
  EXPECT_EQ(compression("a.tar", plain), Compression::kNone);
  EXPECT_EQ(compression("a.tgz", compressed(plain, Compression::kGzip)), Compression::kGzip);
  EXPECT_EQ(compression("a.tar.gz", ""), Compression::kNone);
  EXPECT_EQ(compression("a.tar.gz", "damaged"), Compression::kGzip);
  EXPECT_EQ(compression("b.tar.gz", plain), Compression::kNone) << "named so, and it is not";
  TarBytes odd;  // a name that looks like gzip
  odd.add("\x1F\x8B\x08.x", "").end();
  EXPECT_EQ(compression("c", odd.bytes), Compression::kNone);
}

TEST(BracesTest, are_expanded_as_a_shell_does) {
  const auto expanded = [](const char* pattern) {
    std::string all;
    for (const std::string& path : expand_braces(pattern).patterns) all += path + " ";
    return all;
  };
  EXPECT_EQ(expanded("s-{000..003}.tar"), "s-000.tar s-001.tar s-002.tar s-003.tar ");
  EXPECT_EQ(expanded("s-{8..11}"), "s-8 s-9 s-10 s-11 ");
  EXPECT_EQ(expanded("s-{2..0}"), "s-2 s-1 s-0 ");
  EXPECT_EQ(expanded("s-{09..10}"), "s-09 s-10 ");
  EXPECT_EQ(expanded("{a,b}/{0..1}"), "a/0 a/1 b/0 b/1 ");
  EXPECT_EQ(expanded("{a,}x"), "ax x ");
  EXPECT_EQ(expanded("{1..2}{3..4}"), "13 14 23 24 ");
  for (const char* same : {"a", "{", "}", "{}", "{a}", "{a..c}", "{1..}", "a{1", "}{"}) {
    EXPECT_EQ(expanded(same), std::string(same) + " ");
  }
  EXPECT_EQ(code_of([] { expand_braces("{0..9999}{0..9999}"); }), Code::kInvalidArgument);
}

}  // namespace
}  // namespace penstock
