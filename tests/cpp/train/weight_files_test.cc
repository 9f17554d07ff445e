#include "penstock/train/weight_files.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "penstock/base/error.h"
#include "tests/cpp/io/memory_files.h"
#include "tests/cpp/train/optimizers.h"
#include "tests/cpp/train/refusals.h"

namespace penstock::train {
namespace {

using testing::a_layout;
using testing::fill;
using testing::message_of;
using testing::same_bits;

void steps(Updater& updater, uint32_t first, uint32_t last) {
  const Slab gradients = updater.parameters().gradients();
  for (uint32_t step = first; step < last; ++step) {
    fill(gradients, step);
    updater.apply(gradients);
  }
}

TEST(WeightFiles, parameters_come_back_with_their_version_and_their_order) {
  MemoryFiles files;
  Parameters parameters(a_layout());
  fill(parameters.slab(), 1);
  parameters.set_version(9);
  save(parameters, "file", DType::kFloat32, files);
  Parameters into(a_layout());
  load(into, "file", files);
  EXPECT_TRUE(same_bits(into.slab(), parameters.slab()));
  EXPECT_EQ(into.version(), 9u);
  const Parameters made = load_parameters("file", Slab::Kind::kShared, files);
  EXPECT_EQ(made.layout(), parameters.layout());
  EXPECT_TRUE(same_bits(made.slab(), parameters.slab()));
  EXPECT_EQ(made.version(), 9u);
}

TEST(WeightFiles, a_run_goes_on_from_its_file_bit_for_bit) {
  const Optimizer all[] = {Optimizer::sgd(0.1, {}), Optimizer::momentum(0.1, 0.9, {}),
                           Optimizer::rmsprop(0.1, {.centered = true}, {}),
                           Optimizer::adamw(Schedule::cosine(0.1, 20), {}, {})};
  for (const Optimizer& optimizer : all) {
    MemoryFiles files;
    Parameters parameters(a_layout());
    fill(parameters.slab(), 1);
    Updater whole(parameters, optimizer);
    steps(whole, 0, 10);
    save(whole, "file", files);
    steps(whole, 10, 20);
    Updater resumed(Parameters(a_layout()), optimizer);
    load(resumed, "file", files);
    EXPECT_EQ(resumed.step(), 10u);
    EXPECT_EQ(resumed.parameters().version(), 10u);
    steps(resumed, 10, 20);
    EXPECT_TRUE(same_bits(resumed.parameters().slab(), parameters.slab())) << optimizer.name();
    for (size_t i = 0; i < whole.state().size(); ++i) {
      EXPECT_TRUE(same_bits(resumed.state()[i], whole.state()[i])) << optimizer.name();
    }
    // For prediction, only the weights.
    EXPECT_EQ(load_parameters("file", Slab::Kind::kPrivate, files).layout(), a_layout());
  }
}

TEST(WeightFiles, files_of_other_layouts_are_refused_and_change_nothing) {
  MemoryFiles files;
  Updater saved(Parameters(a_layout()), Optimizer::rmsprop(0.1, {.centered = true}, {}));
  steps(saved, 0, 2);
  save(saved, "file", files);
  save(saved.parameters(), "weights", DType::kFloat32, files);

  auto loaded_into = [&](const Layout& layout, const Optimizer& optimizer, const char* file) {
    Parameters parameters(layout);
    fill(parameters.slab(), 5);
    Parameters before(layout);
    before.slab().copy_from(parameters.slab());
    Updater updater(parameters, optimizer);
    const std::string text =
        message_of(Code::kInvalidArgument, [&] { load(updater, file, files); });
    EXPECT_TRUE(same_bits(parameters.slab(), before.slab()));
    EXPECT_EQ(updater.step(), 0u);
    return text;
  };
  const Optimizer centered = Optimizer::rmsprop(0.1, {.centered = true}, {});
  EXPECT_NE(loaded_into(a_layout(), Optimizer::sgd(1), "file")
                .find("of rmsprop; this updater's optimizer is sgd"),
            std::string::npos);
  EXPECT_NE(loaded_into(a_layout(), Optimizer::rmsprop(1, {}, {}), "file").find("more state"),
            std::string::npos);
  EXPECT_NE(loaded_into(a_layout(), centered, "weights").find("weights only"), std::string::npos);
  EXPECT_NE(loaded_into(Layout{{"w", {3, 7}}, {"scalar", {}}, {"b", {3}}}, centered, "file")
                .find("block 'w' is (3, 7) here and (7, 3) in the file"),
            std::string::npos);
  EXPECT_NE(loaded_into(Layout{{"w", {7, 3}}, {"b", {3}}}, centered, "file").find("'scalar'"),
            std::string::npos);
  EXPECT_NE(
      loaded_into(Layout{{"w", {7, 3}}, {"scalar", {}}, {"b", {3}}, {"c", {1}}}, centered, "file")
          .find("no 'c'"),
      std::string::npos);
  message_of(Code::kNotFound, [&] { load_parameters("nowhere", Slab::Kind::kPrivate, files); });
}

TEST(WeightFiles, a_file_of_others_may_have_another_order_and_half_precision) {
  MemoryFiles files;
  Parameters other(Layout{{"b", {3}}, {"w", {7, 3}}, {"scalar", {}}});
  fill(other.slab(), 3);
  save(other, "file", DType::kBfloat16, files);
  Parameters into(a_layout());
  load(into, "file", files);
  for (const char* name : {"w", "b", "scalar"}) {
    const auto expected = other.at(name).as_span<float>(), got = into.at(name).as_span<float>();
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], expected[i], std::abs(expected[i]) / 256);
    }
  }
}

TEST(WeightFiles, metadata_that_is_no_number_is_damage) {
  MemoryFiles files;
  Parameters parameters(Layout{{"w", {1}}});
  save(parameters, "file", DType::kFloat32, files);
  std::string& file = files["file"];
  file.replace(file.find(R"("version":"0")"), 13, R"("version":"x")");
  EXPECT_NE(message_of(Code::kDataLoss, [&] { load(parameters, "file", files); }).find("'version'"),
            std::string::npos);
}

}  // namespace
}  // namespace penstock::train
