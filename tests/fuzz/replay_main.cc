// usage: <name>_fuzz COUNT FOLDER [SEED]
// Runs a fuzz target on each file of the folder, then on COUNT changed files. The same seed gives
// the same inputs. For compilers without libFuzzer. An input that ends the process is left in
// crash-<name>_fuzz; to run it again, give a folder with only that file.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*)());

namespace {

using Bytes = std::vector<uint8_t>;
using Random = std::mt19937_64;
constexpr size_t kLongest = 4096;

// Never destroyed: the sanitizer reports leaks after that.
Bytes& now_given = *new Bytes;
std::string& crash_file = *new std::string;

void leave_input() {
  if (std::FILE* file = std::fopen(crash_file.c_str(), "wb")) {
    std::fwrite(now_given.data(), 1, now_given.size(), file);
    std::fclose(file);
    std::fprintf(stderr, "the input is in %s\n", crash_file.c_str());
  }
}

void on_signal(int number) {
  leave_input();
  std::signal(number, SIG_DFL);
  std::raise(number);
}

void change(Bytes& bytes, const std::vector<Bytes>& corpus, Random& random) {
  auto below = [&](size_t n) { return n == 0 ? 0 : static_cast<size_t>(random() % n); };
  const size_t at = below(bytes.size() + 1);
  switch (random() % 7) {
    case 0:
      if (at < bytes.size()) bytes[at] ^= static_cast<uint8_t>(1 << random() % 8);
      break;
    case 1:
      if (at < bytes.size()) bytes[at] = static_cast<uint8_t>(random());
      break;
    case 2:
      bytes.resize(at);
      break;
    case 3:
      bytes.erase(
          bytes.begin() + static_cast<std::ptrdiff_t>(at),
          bytes.begin() + static_cast<std::ptrdiff_t>(std::min(bytes.size(), at + 1 + below(20))));
      break;
    case 4: {  // a run of one byte
      const Bytes run(1 + below(20), static_cast<uint8_t>(random() % 2 ? random() : 0));
      bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), run.begin(), run.end());
      break;
    }
    case 5: {  // a piece of another file
      const Bytes& other = corpus[below(corpus.size())];
      const size_t begin = below(other.size()), count = below(other.size() - begin + 1);
      bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                   other.begin() + static_cast<std::ptrdiff_t>(begin),
                   other.begin() + static_cast<std::ptrdiff_t>(begin + count));
      break;
    }
    case 6: {  // a large number
      const uint64_t number = random() >> random() % 64;
      for (size_t i = 0; i < 8 && at + i < bytes.size(); ++i) {
        bytes[at + i] = static_cast<uint8_t>(number >> (8 * i));
      }
      break;
    }
  }
  if (bytes.size() > kLongest) bytes.resize(kLongest);
}

void give(const Bytes& bytes) {
  now_given = bytes;
  LLVMFuzzerTestOneInput(now_given.data(), now_given.size());
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "usage: %s COUNT FOLDER [SEED]\n", arguments[0]);
    return 2;
  }
  crash_file = "crash-" + std::filesystem::path(arguments[0]).filename().string();
  std::signal(SIGABRT, on_signal);
  std::signal(SIGSEGV, on_signal);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(leave_input);

  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(arguments[2])) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    give(corpus.back());
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "no files in %s\n", arguments[2]);
    return 2;
  }

  Random random(count > 3 ? std::strtoull(arguments[3], nullptr, 0) : 1);
  const uint64_t inputs = std::strtoull(arguments[1], nullptr, 0);
  for (uint64_t i = 0; i < inputs; ++i) {
    Bytes bytes = corpus[random() % corpus.size()];
    for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) change(bytes, corpus, random);
    give(bytes);
  }
  std::printf("%zu files, %llu changed ones\n", corpus.size(),
              static_cast<unsigned long long>(inputs));
}
