#include "penstock/pipeline/engine/sample_layout.h"

#include <utility>

#include "penstock/base/byte_reader.h"
#include "penstock/base/error.h"

namespace penstock {
namespace {

template <class T>
void put(std::vector<std::byte>& out, const T& value) {
  const auto* from = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), from, from + sizeof(T));
}

}  // namespace

SampleLayout::SampleLayout(const Example& sample) {
  auto refuse = [](const std::string& why) { return Error(Code::kInvalidArgument, "batch", why); };
  if (sample.empty()) throw refuse("a sample without tensors");
  for (const auto& [name, tensor] : sample) {
    if (!tensor.defined()) throw refuse("'" + name + "' of a sample has no data");
    if (tensor.ndim() > 255) throw refuse("'" + name + "' of a sample has more than 255 axes");
    names_.push_back(name);
    fields_.push_back(Field::of(tensor.dtype(), tensor.shape()));
    put(bytes_, static_cast<uint32_t>(name.size()));
    const auto* text = reinterpret_cast<const std::byte*>(name.data());
    bytes_.insert(bytes_.end(), text, text + name.size());
    put(bytes_, tensor.dtype());
    put(bytes_, static_cast<uint8_t>(tensor.ndim()));
    for (int64_t length : tensor.shape()) put(bytes_, length);
  }
}

SampleLayout::SampleLayout(std::span<const std::byte> bytes) : bytes_(bytes.begin(), bytes.end()) {
  ByteReader in(bytes, Code::kInternal, "batch");  // the workers wrote it
  while (in.left() > 0) {
    names_.push_back(in.text(in.get<uint32_t>()));
    auto dtype = in.get<DType>();
    Shape shape(in.get<uint8_t>());
    for (int64_t& length : shape) length = in.get<int64_t>();
    if (!is_valid(dtype)) throw Error(Code::kInternal, "batch", "a layout with no dtype");
    fields_.push_back(Field::of(dtype, std::move(shape)));
  }
}

bool SampleLayout::matches(const Example& sample) const {
  if (sample.size() != names_.size()) return false;
  for (size_t i = 0; i < names_.size(); ++i) {
    const auto& [name, tensor] = sample[i];
    if (!tensor.defined() || tensor.dtype() != fields_[i].dtype || name != names_[i] ||
        tensor.shape() != fields_[i].shape) {
      return false;
    }
  }
  return true;
}

std::string SampleLayout::to_string() const {
  std::string text = "{";
  for (size_t i = 0; i < names_.size(); ++i) {
    if (i > 0) text += ", ";
    text += names_[i] + ": " + std::string(name_of(*fields_[i].dtype)) + " " +
            penstock::to_string(fields_[i].shape);
  }
  return text + "}";
}

}  // namespace penstock
