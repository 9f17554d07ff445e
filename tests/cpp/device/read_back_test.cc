#include "penstock/device/read_back.h"

#include <gtest/gtest.h>

#include <vector>

#include "penstock/base/error.h"
#include "tests/cpp/device/fake.h"

namespace penstock::device {
namespace {

TEST(ReadBack, bytes_of_the_device_are_copied_once) {
  const testing::Fake fake;
  std::vector<std::byte> there(1000), here(1000);
  for (size_t i = 0; i < there.size(); ++i) there[i] = static_cast<std::byte>(i % 251);
  const long before = fake.get("cuMemcpyDtoH");
  const long contexts = fake.get("contexts");
  read_back(1, reinterpret_cast<DeviceMemory>(there.data()), here, PENSTOCK_FAKE_DRIVER);
  EXPECT_EQ(here, there);
  EXPECT_EQ(fake.get("cuMemcpyDtoH") - before, 1);
  EXPECT_EQ(fake.get("contexts"), contexts);
}

TEST(ReadBack, failures_name_the_device_and_leave_no_context) {
  const testing::Fake fake;
  std::vector<std::byte> here(10);
  const auto read = [&](int device) { read_back(device, 0, here, PENSTOCK_FAKE_DRIVER); };
  const auto code = [&](int device) {
    try {
      read(device);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("cuda:" + std::to_string(device)), std::string::npos)
          << error.what();
      return error.code();
    }
    return Code::kClosed;
  };
  EXPECT_EQ(code(7), Code::kNotFound);
  fake.set("fail cuMemcpyDtoH", kLaunchFailed);
  EXPECT_EQ(code(0), Code::kSystem);
  fake.set("fail cuMemcpyDtoH", 0);
  EXPECT_EQ(fake.get("contexts"), 0);
}

}  // namespace
}  // namespace penstock::device
