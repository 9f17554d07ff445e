// A training run that is interrupted and resumed with another number of workers. Its state is a
// line of JSON, and is exact, independent of prefetching.
#include <penstock/penstock.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

// 1000 numbers; every 100th cannot be read.
struct Numbers {
  uint64_t size() const { return 1000; }
  penstock::Example get(uint64_t index, penstock::SampleContext&) const {
    if (index % 100 == 99) throw std::runtime_error("damaged: " + std::to_string(index));
    penstock::Tensor number = penstock::Tensor::make(penstock::DType::kInt64, {});
    number.as_span<int64_t>()[0] = static_cast<int64_t>(index);
    return {{"number", number}};
  }
};

std::vector<int64_t> numbers_of(const penstock::Example& batch) {
  auto column = batch.at("number").as_span<const int64_t>();
  return {column.begin(), column.end()};
}

int main() {
  penstock::LoaderOptions options{.batch_size = 32, .shuffle = true, .seed = 1};
  options.on_error = penstock::OnError::kSkip;
  std::vector<std::vector<int64_t>> expected, seen;

  options.workers = 0;  // in line: for debugging, and here for comparing
  penstock::Loader whole(Numbers(), options);
  for (auto& batch : whole.epoch()) expected.push_back(numbers_of(batch));

  std::string saved;
  {
    options.workers = 1;
    penstock::Loader feed(Numbers(), options);
    for (auto& batch : feed.steps(10)) seen.push_back(numbers_of(batch));
    saved = feed.state().to_json();
    std::printf("interrupted after 10 batches: %s\n", saved.c_str());
  }
  options.workers = 3;
  penstock::Loader feed(Numbers(), options);
  feed.restore(penstock::LoaderState::from_json(saved));
  while (auto batch = feed.next()) seen.push_back(numbers_of(*batch));

  for (const penstock::LostItem& loss : feed.stats().losses) {
    std::printf("left out since then: index %llu (%s)\n",
                static_cast<unsigned long long>(loss.index), loss.reason.c_str());
  }
  std::printf("%zu batches in two runs, %s as in one\n", seen.size(),
              seen == expected ? "the same" : "NOT the same");
  return seen == expected ? 0 : 1;
}
