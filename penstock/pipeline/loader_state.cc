#include "penstock/pipeline/loader_state.h"

#include <charconv>
#include <map>

#include "penstock/base/error.h"

namespace penstock {
namespace {

Error refuse(const std::string& why) {
  return Error(Code::kInvalidArgument, "restore", "this is no state of a Loader: " + why);
}

// JSON as far as a state needs it: one object of counts, true, false, null and lists of counts.
class Reader {
 public:
  // A member's value: `counts` of a list, or one count; true is 1, false 0, null nothing.
  struct Value {
    std::vector<uint64_t> counts;
    bool list = false;
  };

  explicit Reader(std::string_view text) : left_(text) {}

  std::map<std::string, Value> object() {
    std::map<std::string, Value> members;
    expect('{');
    if (!accept('}')) {
      do {
        std::string name = string();
        expect(':');
        if (!members.emplace(name, value()).second) throw refuse("'" + name + "' twice");
      } while (accept(','));
      expect('}');
    }
    skip();
    if (!left_.empty()) throw refuse("text after it");
    return members;
  }

 private:
  void skip() {
    size_t n = left_.find_first_not_of(" \t\r\n");
    left_.remove_prefix(n == std::string_view::npos ? left_.size() : n);
  }
  bool accept(char c) {
    skip();
    if (left_.empty() || left_.front() != c) return false;
    left_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) throw refuse(std::string("no '") + c + "' where it should be");
  }
  bool word(std::string_view w) {
    if (!left_.starts_with(w)) return false;
    left_.remove_prefix(w.size());
    return true;
  }
  std::string string() {
    expect('"');
    size_t n = left_.find_first_of("\"\\");
    if (n == std::string_view::npos || left_[n] != '"') throw refuse("a strange name");
    std::string name(left_.substr(0, n));
    left_.remove_prefix(n + 1);
    return name;
  }
  uint64_t count() {
    skip();
    uint64_t n = 0;
    auto [end, error] = std::from_chars(left_.data(), left_.data() + left_.size(), n);
    if (error != std::errc()) throw refuse("a count that is none");
    left_.remove_prefix(static_cast<size_t>(end - left_.data()));
    return n;
  }
  Value value() {
    Value v;
    skip();
    if (word("null")) return v;
    if (word("true")) {
      v.counts = {1};
    } else if (word("false")) {
      v.counts = {0};
    } else if (accept('[')) {
      v.list = true;
      if (accept(']')) return v;
      do {
        v.counts.push_back(count());
      } while (accept(','));
      expect(']');
    } else {
      v.counts = {count()};
    }
    return v;
  }

  std::string_view left_;
};

}  // namespace

std::string LoaderState::to_json() const {
  std::string list;
  for (uint64_t batch : ahead) list += (list.empty() ? "" : ", ") + std::to_string(batch);
  return "{\"version\": " + std::to_string(kVersion) + ", \"epoch\": " + std::to_string(epoch) +
         ", \"batches\": " + std::to_string(batches) + ", \"ahead\": [" + list +
         "], \"seed\": " + std::to_string(seed) + ", \"shuffle\": " + (shuffle ? "true" : "false") +
         ", \"batch_size\": " + (batch_size == 0 ? "null" : std::to_string(batch_size)) +
         ", \"length\": " + std::to_string(length) + "}";
}

LoaderState LoaderState::from_json(std::string_view text) {
  auto members = Reader(text).object();
  auto get = [&](const char* name) {
    auto found = members.find(name);
    if (found == members.end()) throw refuse(std::string("it has no '") + name + "'");
    return found->second;
  };
  auto one = [&](const char* name) {
    Reader::Value v = get(name);
    if (v.list || v.counts.size() != 1) throw refuse(std::string("'") + name + "' is no count");
    return v.counts[0];
  };
  if (one("version") != kVersion) throw refuse("it is of another version");
  LoaderState state;
  state.epoch = one("epoch");
  state.batches = one("batches");
  if (!get("ahead").list) throw refuse("'ahead' is no list");
  state.ahead = get("ahead").counts;
  state.seed = one("seed");
  state.shuffle = one("shuffle") != 0;
  state.batch_size = get("batch_size").counts.empty() ? 0 : one("batch_size");
  state.length = one("length");
  return state;
}

}  // namespace penstock
