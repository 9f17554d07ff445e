#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

namespace penstock {

// Archives made by the format's description, header by header.
struct TarBytes {
  std::string bytes;

  static std::string octal(uint64_t number, int digits) {
    std::array<char, 32> text;
    std::snprintf(text.data(), text.size(), "%0*llo", digits,
                  static_cast<unsigned long long>(number));
    return text.data();
  }
  static void sign(std::string& block) {
    std::memset(block.data() + 148, ' ', 8);
    uint64_t sum = 0;
    for (const char c : block) sum += static_cast<unsigned char>(c);
    block.replace(148, 8, octal(sum, 6) + std::string("\0 ", 2));
  }
  // `size`: as its 12 bytes say it.
  static std::string header(std::string_view name, const std::string& size, char type = '0') {
    std::string block(512, '\0');
    block.replace(0, name.size(), name);
    block.replace(100, 7, "0000644");
    block.replace(124, size.size(), size);
    block[156] = type;
    block.replace(257, 8,
                  std::string("ustar\0"
                              "00",
                              8));
    sign(block);
    return block;
  }
  static std::string padded(std::string_view data) {
    std::string all(data);
    all.resize((all.size() + 511) / 512 * 512);
    return all;
  }
  static std::string base256(uint64_t number) {
    std::string text(12, '\0');
    text[0] = '\x80';
    for (int i = 0; i < 8; ++i) text[11 - i] = static_cast<char>(number >> (8 * i));
    return text;
  }
  static std::string pax_line(const std::string& keyword, const std::string& value) {
    const std::string rest = " " + keyword + "=" + value + "\n";
    size_t length = rest.size() + 1;
    while (std::to_string(length).size() + rest.size() != length) ++length;
    return std::to_string(length) + rest;
  }

  TarBytes& add(std::string_view name, std::string_view data, char type = '0') {
    bytes += header(name, octal(data.size(), 11), type) + padded(data);
    return *this;
  }
  TarBytes& pax(const std::string& lines, char type = 'x') { return add("pax", lines, type); }
  TarBytes& end() {
    bytes.append(1024, '\0');
    return *this;
  }
};

}  // namespace penstock
