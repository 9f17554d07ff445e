#include "penstock/pipeline/sample_layout.h"

#include <cstring>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {
namespace {

template <class T>
void put(std::vector<std::byte>& out, const T& value) {
  const auto* from = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), from, from + sizeof(T));
}

// Takes bytes off the front of a layout; the workers wrote it, but it is read with care.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}
  bool done() const { return left_.empty(); }
  std::span<const std::byte> take(size_t n) {
    if (n > left_.size()) throw Error(Code::kInternal, "batch", "a layout shorter than it says");
    auto taken = left_.first(n);
    left_ = left_.subspan(n);
    return taken;
  }
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

 private:
  std::span<const std::byte> left_;
};

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
  Reader in(bytes);
  while (!in.done()) {
    auto name = in.take(in.get<uint32_t>());
    names_.emplace_back(reinterpret_cast<const char*>(name.data()), name.size());
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
