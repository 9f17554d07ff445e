#include "penstock/image/encode.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
// After cstdio, which it takes FILE from.
#include <jpeglib.h>
// After jpeglib.
#include <jerror.h>
#include <png.h>

#include <new>
#include <string>

#include "penstock/base/error.h"

namespace penstock::image {
namespace {

// libjpeg and libpng end their calls by longjmp: the functions that take these jumps have no
// objects with destructors.
struct JpegWriter {
  jpeg_error_mgr errors;
  jpeg_compress_struct info;
  jmp_buf escape;
  unsigned char* file = nullptr;
  unsigned long bytes = 0;
  char text[JMSG_LENGTH_MAX] = {};
};

[[noreturn]] void leave_jpeg(j_common_ptr info) {
  auto& writer = *static_cast<JpegWriter*>(info->client_data);
  info->err->format_message(info, writer.text);
  std::longjmp(writer.escape, 1);
}

// False after a jump, with the reason in writer.text.
bool write_jpeg(JpegWriter& writer, const ImageView& pixels, int quality) {
  jpeg_compress_struct& info = writer.info;
  info.err = jpeg_std_error(&writer.errors);
  info.client_data = &writer;
  writer.errors.error_exit = leave_jpeg;
  if (setjmp(writer.escape) != 0) return false;
  jpeg_create_compress(&info);
  jpeg_mem_dest(&info, &writer.file, &writer.bytes);
  info.image_width = static_cast<JDIMENSION>(pixels.width);
  info.image_height = static_cast<JDIMENSION>(pixels.height);
  info.input_components = pixels.channels;
  info.in_color_space = pixels.channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = const_cast<JSAMPROW>(pixels.row(static_cast<int>(info.next_scanline)));
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  return true;
}

struct PngWriter {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::vector<uint8_t>* to = nullptr;
  char text[128] = {};
  bool no_memory = false;
};

void leave_png(png_structp png, png_const_charp text) {
  auto& writer = *static_cast<PngWriter*>(png_get_error_ptr(png));
  std::snprintf(writer.text, sizeof(writer.text), "%s", text);
  png_longjmp(png, 1);
}

void ignore_warning(png_structp, png_const_charp) {}

void take_bytes(png_structp png, png_bytep bytes, size_t count) {
  auto& writer = *static_cast<PngWriter*>(png_get_io_ptr(png));
  try {
    writer.to->insert(writer.to->end(), bytes, bytes + count);
  } catch (const std::bad_alloc&) {
    writer.no_memory = true;
  }
  if (writer.no_memory) png_error(png, "no memory");
}

void flush_nothing(png_structp) {}

// False after a jump, with the reason in writer.text.
bool write_png(PngWriter& writer, const ImageView& pixels) {
  constexpr int kColours[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB,
                              PNG_COLOR_TYPE_RGB_ALPHA};
  writer.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &writer, leave_png, ignore_warning);
  if (writer.png == nullptr) return false;
  if (setjmp(png_jmpbuf(writer.png)) != 0) return false;
  writer.info = png_create_info_struct(writer.png);
  if (writer.info == nullptr) return false;
  png_set_write_fn(writer.png, &writer, take_bytes, flush_nothing);
  png_set_user_limits(writer.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_set_IHDR(writer.png, writer.info, static_cast<png_uint_32>(pixels.width),
               static_cast<png_uint_32>(pixels.height), 8, kColours[pixels.channels - 1],
               PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(writer.png, writer.info);
  for (int y = 0; y < pixels.height; ++y) png_write_row(writer.png, pixels.row(y));
  png_write_end(writer.png, nullptr);
  return true;
}

}  // namespace

void encode(const ImageView& pixels, const EncodeOptions& options, std::vector<uint8_t>& to) {
  to.clear();
  std::string failure;
  bool no_memory = false;
  if (options.as == Encoding::kJpeg) {
    JpegWriter writer;
    if (write_jpeg(writer, pixels, options.quality)) {
      try {
        to.assign(writer.file, writer.file + writer.bytes);
      } catch (const std::bad_alloc&) {
        no_memory = true;
      }
    } else {
      no_memory = writer.errors.msg_code == JERR_OUT_OF_MEMORY;
      failure = writer.text;
    }
    jpeg_destroy_compress(&writer.info);
    std::free(writer.file);
  } else {
    PngWriter writer;
    writer.to = &to;
    if (!write_png(writer, pixels)) {
      no_memory = writer.no_memory || writer.info == nullptr;
      failure = writer.text;
    }
    png_destroy_write_struct(&writer.png, &writer.info);
  }
  if (no_memory) throw std::bad_alloc();
  if (!failure.empty()) throw Error(Code::kInternal, "image.encode", failure);
}

}  // namespace penstock::image
