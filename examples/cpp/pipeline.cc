// A native pipeline: TFRecord files are written, then shuffled globally, parsed, normalised and
// batched by threads; an interrupted run continues exactly at its position.
#include <penstock/penstock.h>

#include <cstdio>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

namespace {

// 1000 tf.Examples in four files: an 8x8 "image" as bytes, and its label.
void write_files(const std::string& folder) {
  auto files = penstock::posix_files();
  for (int file = 0; file < 4; ++file) {
    penstock::TFRecordWriter writer(*files, folder + "/part-" + std::to_string(file) + ".tfrecord");
    for (int64_t i = file; i < 1000; i += 4) {
      std::vector<std::byte> pixels(64, static_cast<std::byte>(i % 200));
      penstock::ExampleWriter example;
      example.bytes("image", pixels);
      example.int64("label", {{i}});
      writer.write(example.finish());
    }
    writer.close();
  }
}

}  // namespace

int main() {
  std::filesystem::path folder =
      std::filesystem::temp_directory_path() / "penstock-example-pipeline";
  std::filesystem::create_directories(folder);
  write_files(folder);

  using Type = penstock::ExampleFeature::Type;
  using Form = penstock::ExampleFeature::Form;
  auto train = penstock::Dataset::tfrecord((folder / "part-*.tfrecord").string())
                   .shuffle({.seed = 7})
                   .map(penstock::parse_example({
                       {.name = "image", .type = Type::kBytes, .form = Form::kFixed, .count = 64},
                       {.name = "label", .type = Type::kInt64, .form = Form::kFixed},
                   }))
                   // A lambda of one field, whose result is written directly into the batch.
                   .map_field<uint8_t, float>("image", penstock::Shape{8, 8},
                                              [](auto pixels, auto out) {
                                                for (size_t i = 0; i < pixels.size(); ++i) {
                                                  out[i] = static_cast<float>(pixels[i]) / 255;
                                                }
                                              })
                   .batch(64, {.drop_last = true})
                   .repeat(2);

  std::vector<int64_t> seen;
  std::string saved;
  {
    penstock::Loader feed = train.build({.workers = 2});
    for (auto& batch : feed.steps(10)) {
      auto labels = batch.at("label").as_span<const int64_t>();
      seen.insert(seen.end(), labels.begin(), labels.end());
    }
    saved = feed.state().to_json();
  }
  std::printf("interrupted after 10 batches: %s\n", saved.c_str());
  penstock::Loader feed = train.build({.workers = 1});
  feed.restore(penstock::LoaderState::from_json(saved));
  double sum = 0;
  while (auto batch = feed.next()) {
    auto labels = batch->at("label").as_span<const int64_t>();
    auto pixels = batch->at("image").as_span<const float>();
    seen.insert(seen.end(), labels.begin(), labels.end());
    sum += std::accumulate(pixels.begin(), pixels.end(), 0.0);
  }
  std::filesystem::remove_all(folder);
  std::printf("%zu images of two passes, mean of the last %.3f\n", seen.size(), sum / 64 / 1280);
  return seen.size() == 2 * 15 * 64 ? 0 : 1;
}
