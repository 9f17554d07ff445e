#include "penstock/io/tar_writer.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/io/tar.h"

namespace penstock {
namespace {

constexpr size_t kNameBytes = 100, kPrefixBytes = 155;
constexpr uint64_t kMaxOctal = (uint64_t{1} << 33) - 1;  // of eleven digits

// "<bytes of the line> <keyword>=<value>\n"
std::string pax_line(std::string_view keyword, std::string_view value) {
  const std::string rest = " " + std::string(keyword) + "=" + std::string(value) + "\n";
  size_t length = rest.size() + 1;
  while (std::to_string(length).size() + rest.size() != length) ++length;
  return std::to_string(length) + rest;
}

// Where a header's prefix ends and its name begins: at a slash. nullopt: the name needs a pax
// header.
std::optional<size_t> split(std::string_view name) {
  const auto ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (!std::all_of(name.begin(), name.end(), ascii)) return std::nullopt;
  if (name.size() <= kNameBytes) return 0;
  const size_t slash = name.find('/', name.size() - std::min(name.size(), kNameBytes + 1));
  if (slash == name.npos || slash == 0 || slash > kPrefixBytes || slash + 1 == name.size()) {
    return std::nullopt;
  }
  return slash + 1;
}

}  // namespace

TarWriter::TarWriter(FileSystem& files, const std::string& path, Compression compression)
    : sink_(files, path, compression) {}

void TarWriter::write(std::string_view key, std::span<const Field> fields) {
  if (sink_.closed()) throw Error(Code::kClosed, "tar", "the file was closed");
  check(key, fields);
  for (const Field& field : fields) {
    entry(std::string(key) + "." + std::string(field.extension), field.data);
  }
  last_key_ = key;
  ++samples_;
}

void TarWriter::check(std::string_view key, std::span<const Field> fields) const {
  const auto refuse = [&](const std::string& why) {
    throw Error(Code::kInvalidArgument, "tar", "key '" + escape_invalid_utf8(key) + "': " + why);
  };
  if (fields.empty()) refuse("the sample has no fields");
  if (samples_ > 0 && key == last_key_) refuse("the sample before has the same key");
  for (size_t i = 0; i < fields.size(); ++i) {
    const std::string extension(fields[i].extension);
    const std::string name = std::string(key) + "." + extension;
    const std::string shown = "'" + escape_invalid_utf8(extension) + "'";
    if (const char* why = fault_of_tar_name(name))
      refuse("with the extension " + shown + " " + why);
    const std::optional<TarName> parts = split_tar_name(name);
    if (!parts || parts->key != key) {
      refuse("a key is a path whose last part has no dot in it, and an extension " + shown +
             " has no slash");
    }
    if (parts->extension != extension) refuse("the extension " + shown + " is not in lower case");
    const auto same = [&](const Field& other) { return other.extension == extension; };
    if (extension == "__key__" || std::any_of(fields.begin(), fields.begin() + i, same)) {
      refuse("the extension " + shown + " comes twice");
    }
  }
}

void TarWriter::entry(const std::string& name, std::span<const std::byte> data) {
  const std::optional<size_t> begin = split(name);
  std::string extended;
  if (!begin) extended += pax_line("path", name);
  if (data.size() > kMaxOctal) extended += pax_line("size", std::to_string(data.size()));
  if (!extended.empty()) {
    header("pax_header", "", extended.size(), 'x');
    append(std::as_bytes(std::span(extended)));
    pad(extended.size());
  }
  // A reader without pax gets the beginning of the name.
  const std::string_view text = name;
  const size_t from = begin.value_or(0);
  header(text.substr(from, kNameBytes), from == 0 ? "" : text.substr(0, from - 1), data.size(),
         '0');
  append(data);
  pad(data.size());
}

void TarWriter::header(std::string_view name, std::string_view prefix, uint64_t size, char type) {
  std::array<char, TarEntry::kBlock> block{};
  const auto text = [&](size_t at, std::string_view value) {
    std::copy(value.begin(), value.end(), block.begin() + static_cast<std::ptrdiff_t>(at));
  };
  text(0, name);
  text(100, "0000444");
  text(108, "0000000");
  text(116, "0000000");
  std::snprintf(&block[124], 12, "%011llo",
                static_cast<unsigned long long>(std::min(size, kMaxOctal)));
  text(136, "00000000000");
  text(148, "        ");
  block[156] = type;
  text(257, "ustar");
  text(263, "00");
  text(345, prefix);
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  std::snprintf(&block[148], 8, "%06o", sum);
  append(std::as_bytes(std::span(block)));
}

void TarWriter::pad(uint64_t bytes) {
  constexpr std::array<std::byte, TarEntry::kBlock> kZeroes{};
  append(
      std::span(kZeroes).first((TarEntry::kBlock - bytes % TarEntry::kBlock) % TarEntry::kBlock));
}

void TarWriter::append(std::span<const std::byte> bytes) {
  bytes_ += bytes.size();
  sink_.append(bytes);
}

void TarWriter::close() {
  if (sink_.closed()) return;
  constexpr std::array<std::byte, 2 * TarEntry::kBlock> kEnd{};
  append(kEnd);
  sink_.close();
}

}  // namespace penstock
