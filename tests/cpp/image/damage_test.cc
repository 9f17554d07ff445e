#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "penstock/base/error.h"
#include "penstock/image/exif.h"
#include "penstock/image/picture.h"
#include "pictures.h"

namespace penstock {
namespace {

using image::Picture;
using testing::Bytes;

std::vector<Bytes> good_files() {
  const testing::Pixels pixels = testing::pixels_of(29, 21);
  return {testing::jpeg_of(pixels), testing::jpeg_of(pixels, true),
          testing::jpeg_of(testing::pixels_of(20, 20, 1)), testing::png_of(pixels)};
}

// The error's text; "" if there is none. Any error but kDataLoss is thrown.
std::string damage_of(const Bytes& bytes, Picture& picture, bool part = false) {
  try {
    picture.open(bytes, {});
    if (part) picture.crop(0, 0, 1, 1);
    (void)testing::written(picture);
  } catch (const Error& error) {
    if (error.code() != Code::kDataLoss) throw;
    EXPECT_EQ(error.operation(), "image.decode");
    return error.what();
  }
  return "";
}

TEST(ImageDamageTest, a_file_that_is_cut_anywhere_is_damaged) {
  Picture picture;
  for (const Bytes& good : good_files()) {
    for (size_t size = 0; size + 1 < good.size(); ++size) {
      // No byte behind the end may be read: the sanitizer watches this copy.
      const Bytes some(good.begin(), good.begin() + static_cast<long>(size));
      EXPECT_NE(damage_of(some, picture), "") << size << " of " << good.size();
      EXPECT_NE(damage_of(some, picture, true), "") << size << " of " << good.size();
    }
    EXPECT_EQ(damage_of(good, picture), "");
  }
}

TEST(ImageDamageTest, any_bytes_are_an_error_or_an_image) {
  std::mt19937 random(3);
  Picture picture;
  for (const Bytes& good : good_files()) {
    int damaged = 0;
    for (int i = 0; i < 3000; ++i) {
      Bytes bytes = good;
      for (int k = 0; k < 1 + i % 3; ++k) {
        bytes[random() % bytes.size()] = static_cast<std::byte>(random());
      }
      // Not those that claim to be as large as is allowed: they take their time.
      try {
        picture.open(bytes, {});
      } catch (const Error&) {
        ++damaged;
        continue;
      }
      if (int64_t{picture.width()} * picture.height() > 1 << 16) continue;
      damaged += damage_of(bytes, picture) != "";
    }
    EXPECT_GT(damaged, 500);
    EXPECT_EQ(damage_of(good, picture), "");
  }
}

TEST(ImageDamageTest, every_checksum_of_a_png_is_verified) {
  const Bytes good = testing::png_of(testing::pixels_of(12, 9));
  Picture picture;
  for (size_t i = 0; i < good.size(); ++i) {
    Bytes bytes = good;
    bytes[i] ^= std::byte{1};
    EXPECT_NE(damage_of(bytes, picture), "") << i;
  }
}

TEST(ImageDamageTest, a_header_that_claims_too_much_is_refused) {
  Picture picture;
  Bytes bytes = good_files()[0];
  size_t frame = 2;
  while (bytes[frame] != std::byte{0xFF} || bytes[frame + 1] != std::byte{0xC0}) ++frame;
  for (auto [high, says] : {std::pair{0xFE, "at most 178956970 are decoded"},
                            std::pair{0x30, "more than its bytes can hold"}}) {
    bytes[frame + 5] = bytes[frame + 7] = static_cast<std::byte>(high);
    EXPECT_NE(damage_of(bytes, picture).find(says), std::string::npos) << says;
  }
  EXPECT_EQ(damage_of(good_files()[0], picture), "");
}

TEST(ImageDamageTest, an_orientation_is_read_from_any_bytes) {
  std::mt19937 random(5);
  const char text[] =
      "\xff\xd8\xff\xe1\0\x22"
      "Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0\xff\xda";
  Bytes good(sizeof(text) - 1);
  std::memcpy(good.data(), text, good.size());
  EXPECT_EQ(image::jpeg_orientation(good), 6);
  for (int i = 0; i < 20000; ++i) {
    Bytes bytes(good.begin(), good.begin() + static_cast<long>(random() % (good.size() + 1)));
    for (unsigned k = 0; k < random() % 4 && !bytes.empty(); ++k) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    const int orientation = image::jpeg_orientation(bytes);
    EXPECT_GE(orientation, 1);
    EXPECT_LE(orientation, 8);
  }
}

}  // namespace
}  // namespace penstock
