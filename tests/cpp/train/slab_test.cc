#include "penstock/train/slab.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "tests/cpp/errors.h"
#include "tests/cpp/memory/child.h"

namespace penstock::train {
namespace {

using penstock::testing::code_of;
using penstock::testing::holds_in_child;

Layout small_blocks() { return Layout{{"w", {3, 5}}, {"b", {5}}}; }

TEST(Slab, is_zero_aligned_and_as_long_as_its_layout) {
  for (auto kind : {Slab::Kind::kPrivate, Slab::Kind::kShared}) {
    Slab slab = Slab::make(small_blocks(), kind);
    EXPECT_EQ(slab.kind(), kind);
    EXPECT_EQ(slab.fd() >= 0, kind == Slab::Kind::kShared);
    ASSERT_EQ(slab.values().size(), 32u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(slab.values().data()) % 64, 0u);
    EXPECT_TRUE(std::ranges::all_of(slab.values(), [](float x) { return x == 0; }));
    EXPECT_EQ(slab.version().load(), 0u);
  }
}

TEST(Slab, a_block_is_a_view_that_keeps_the_memory) {
  Tensor b;
  {
    Slab slab = Slab::make(small_blocks());
    Slab other = slab;
    b = slab.at("b");
    EXPECT_EQ(b.shape(), Shape{5});
    EXPECT_EQ(b.dtype(), DType::kFloat32);
    EXPECT_EQ(reinterpret_cast<float*>(b.data()), slab.values().data() + 16);
    other.values_of(other.layout().at("b"))[4] = 9;
    EXPECT_EQ(code_of([&] { (void)slab.at("c"); }), Code::kNotFound);
  }
  EXPECT_EQ(b.as_span<float>()[4], 9);
}

TEST(Slab, copies_whole_slabs_of_an_equal_layout_only) {
  Slab from = Slab::make(small_blocks());
  std::ranges::fill(from.at("w").as_span<float>(), 2.0f);
  Slab to = Slab::make(small_blocks(), Slab::Kind::kShared);
  to.copy_from(from);
  to.copy_from(to);
  EXPECT_TRUE(bit_equal(to.at("w"), from.at("w")));
  to.zero();
  EXPECT_EQ(to.at("w").as_span<float>()[7], 0);
  EXPECT_EQ(code_of([&] {
              to.copy_from(Slab::make(Layout{{"w", {3, 5}}}));
            }),
            Code::kInvalidArgument);
}

TEST(Slab, another_process_maps_the_same_memory) {
  Parameters parameters(small_blocks(), Slab::Kind::kShared);
  EXPECT_TRUE(holds_in_child([&] {
    Parameters mine(Slab::open(parameters.slab().fd(), small_blocks()));
    mine.at("b").as_span<float>()[1] = 5;
    return mine.advance() == 1;
  }));
  EXPECT_EQ(parameters.at("b").as_span<float>()[1], 5);
  EXPECT_EQ(parameters.version(), 1u);
  // A child of fork needs no descriptor.
  EXPECT_TRUE(holds_in_child([&] {
    parameters.at("b").as_span<float>()[1] = 6;
    parameters.set_version(77);
    return true;
  }));
  EXPECT_EQ(parameters.at("b").as_span<float>()[1], 6);
  EXPECT_EQ(parameters.version(), 77u);
}

TEST(Slab, a_private_slab_is_its_own_in_a_child) {
  Slab slab = Slab::make(small_blocks());
  EXPECT_TRUE(holds_in_child([&] {
    slab.zero();
    slab.values()[0] = 3;
    return true;
  }));
  EXPECT_EQ(slab.values()[0], 0);
}

TEST(Slab, cannot_be_made_shorter_by_anybody) {
  Slab slab = Slab::make(small_blocks(), Slab::Kind::kShared);
  EXPECT_NE(ftruncate(slab.fd(), 0), 0);
}

TEST(Slab, open_refuses_other_files_and_slabs_of_other_layouts) {
  Slab slab = Slab::make(small_blocks(), Slab::Kind::kShared);
  auto refused = [&](int fd, const Layout& layout) {
    return code_of([&] { (void)Slab::open(fd, layout); });
  };
  EXPECT_NO_THROW(Slab::open(slab.fd(), small_blocks()));
  EXPECT_EQ(refused(slab.fd(), Layout{{"w", {3, 5}}, {"b", {6}}}), Code::kInvalidArgument);
  EXPECT_EQ(refused(slab.fd(), Layout{{"w", {1000, 1000}}}), Code::kInvalidArgument)
      << "a longer one";
  os::Fd empty = os::memory_file("empty");
  EXPECT_EQ(refused(empty.get(), small_blocks()), Code::kInvalidArgument);
  os::resize_file(empty.get(), 1 << 16);
  EXPECT_EQ(refused(empty.get(), small_blocks()), Code::kInvalidArgument) << "zeroes";
  os::Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(refused(null.get(), small_blocks()), Code::kInvalidArgument);
  EXPECT_EQ(refused(-1, small_blocks()), Code::kSystem);

  // The right header, without the floats.
  os::Fd cut = os::memory_file("cut");
  os::resize_file(cut.get(), os::page_size());
  void* from = mmap(nullptr, os::page_size(), PROT_READ, MAP_SHARED, slab.fd(), 0);
  ASSERT_NE(from, MAP_FAILED);
  ASSERT_EQ(pwrite(cut.get(), from, os::page_size(), 0), static_cast<ssize_t>(os::page_size()));
  munmap(from, os::page_size());
  EXPECT_EQ(refused(cut.get(), small_blocks()), Code::kInvalidArgument);
}

TEST(Slab, too_much_is_an_error) {
  const Layout huge{{"w", {1l << 44}}};  // 64 TiB
  for (auto kind : {Slab::Kind::kPrivate, Slab::Kind::kShared}) {
    EXPECT_EQ(code_of([&] { (void)Slab::make(huge, kind); }), Code::kOutOfMemory);
  }
#ifndef PENSTOCK_SANITIZED
  EXPECT_TRUE(holds_in_child([] {
    rlimit small{1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &small);
    return code_of([] {
             (void)Slab::make(Layout{{"w", {1 << 20}}}, Slab::Kind::kShared);
           }) == Code::kOutOfMemory;
  })) << "a limit on file size";
#endif
}

TEST(Parameters, copies_are_the_same_parameters_and_gradients_are_not) {
  Parameters parameters(small_blocks());
  Parameters same = parameters;
  same.at("w").as_span<float>()[0] = 4;
  EXPECT_EQ(parameters.at("w").as_span<float>()[0], 4);
  EXPECT_EQ(parameters.advance(), 1u);
  EXPECT_EQ(same.version(), 1u);
  Slab gradients = parameters.gradients(Slab::Kind::kShared);
  EXPECT_EQ(gradients.layout(), parameters.layout());
  EXPECT_EQ(gradients.kind(), Slab::Kind::kShared);
  EXPECT_EQ(gradients.values()[0], 0);
}

TEST(Slab, a_window_is_a_part_of_it_with_a_layout_of_its_own) {
  Slab whole = Slab::make(Layout{{"members", {2, 32}}});
  std::iota(whole.values().begin(), whole.values().end(), 0.0f);
  Slab window = whole.window(small_blocks(), 32);
  EXPECT_EQ(window.values().data(), whole.values().data() + 32);
  EXPECT_EQ(window.at("w").as_span<float>()[0], 32);
  EXPECT_EQ(window.at("b").as_span<float>()[0], 48);
  window.values()[1] = -1;
  EXPECT_EQ(whole.values()[33], -1);
  window.version() = 7;
  EXPECT_EQ(whole.version(), 0u);
  EXPECT_EQ(whole.window(small_blocks(), 0).version(), 0u);
}

TEST(Slab, a_window_keeps_the_whole_memory) {
  std::optional<Tensor> kept;
  {
    Slab whole = Slab::make(Layout{{"members", {64}}});
    whole.values()[32] = 5;
    kept = whole.window(small_blocks(), 32).at("w");
  }
  EXPECT_EQ(kept->as_span<float>()[0], 5);
}

TEST(Slab, a_window_that_is_not_inside_is_refused) {
  Slab whole = Slab::make(Layout{{"members", {40}}});
  for (size_t offset : {size_t{8}, size_t{32}, size_t{48}, SIZE_MAX - 15}) {
    EXPECT_EQ(code_of([&] { whole.window(small_blocks(), offset); }), Code::kInvalidArgument);
  }
  Slab shared = Slab::make(Layout{{"members", {40}}}, Slab::Kind::kShared);
  EXPECT_EQ(code_of([&] { shared.window(small_blocks(), 0); }), Code::kInvalidArgument);
}

}  // namespace
}  // namespace penstock::train
