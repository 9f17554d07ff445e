#include <array>
#include <bit>

#include "penstock/train/server/shard_link.h"
#include "penstock/train/server/shard_supervisor.h"
#include "tests/cpp/net/proxy.h"
#include "tests/cpp/train/refusals.h"
#include "tests/cpp/train/serving.h"

// Connections between workers and shards that are encrypted, or should be.
namespace penstock::train {
namespace {

using net::testing::Proxy;
using testing::kTcp;
using testing::message_of;

constexpr char kSecret[] = "a secret of tests";
// Bytes that are unlikely to occur otherwise.
constexpr float kWeight = 1.7182818f, kStep = -0.3678794f;
constexpr std::string_view kBlock = "a block that nobody is to know of";
constexpr std::string_view kWorker = "a worker whose name is its own";

Parameters some_weights() {
  Parameters parameters(Layout{{std::string(kBlock), {60'000}}});  // several pieces of the cipher
  std::ranges::fill(parameters.slab().values(), kWeight);
  return parameters;
}

ServerOptions serving(bool encrypt, const char* listen = kTcp) {
  return {.shards = 2, .listen = {listen}, .secret = kSecret, .encrypt = encrypt};
}
ClientOptions working(bool encrypt) {
  return {.name = std::string(kWorker), .secret = kSecret, .encrypt = encrypt, .retry_s = 60};
}

template <size_t kCount>
bool has(const std::vector<std::byte>& all, std::span<const std::byte, kCount> wanted) {
  return !std::ranges::search(all, wanted).empty();
}
bool has(const std::vector<std::byte>& all, float value) {
  const std::array twice{value, value};
  return has(all, std::as_bytes(std::span(twice)));
}
bool has(const std::vector<std::byte>& all, std::string_view text) {
  return has(all, std::as_bytes(std::span(text)));
}

// The bytes on the network of a pull, a push and a request for statistics.
std::vector<std::byte> seen_on_the_line(bool encrypt) {
  const Parameters parameters = some_weights();
  ServerOptions options = serving(encrypt);
  options.shards = 1;
  ParameterServer server(parameters, Optimizer::sgd(1.0), options);
  Proxy proxy(server.addresses()[0], {}, Proxy::Keeps::kAll);
  {
    ParameterClient client({proxy.address()}, working(encrypt));
    const Slab slab = Slab::make(client.layout());
    client.pull(slab);
    EXPECT_EQ(slab.values().back(), kWeight);
    std::ranges::fill(slab.values(), kStep);
    EXPECT_TRUE(client.push(slab).applied);
    client.pull(slab);
    EXPECT_EQ(slab.values().front(), kWeight - kStep);
    EXPECT_NE(shard_stats(proxy.address(), kSecret, encrypt, 60).find(kWorker), std::string::npos);
  }
  return proxy.passed();
}

TEST(ParameterEncryption, weights_gradients_and_names_are_not_readable_on_the_network) {
  const auto open = seen_on_the_line(false);
  for (const float value : {kWeight, kStep, kWeight - kStep}) EXPECT_TRUE(has(open, value));
  for (const auto text : {kBlock, kWorker}) EXPECT_TRUE(has(open, text));
  const auto sealed = seen_on_the_line(true);
  EXPECT_GT(sealed.size(), open.size());
  for (const float value : {kWeight, kStep, kWeight - kStep}) EXPECT_FALSE(has(sealed, value));
  for (const auto text : {kBlock, kWorker}) EXPECT_FALSE(has(sealed, text));
  EXPECT_FALSE(has(sealed, std::string_view(kSecret)));
}

TEST(ParameterEncryption, encryption_at_one_end_only_is_an_error_with_a_remedy) {
  for (const bool server_encrypts : {true, false}) {
    SCOPED_TRACE(server_encrypts);
    const Parameters parameters = some_weights();
    ParameterServer server(parameters, Optimizer::sgd(1.0), serving(server_encrypts));
    // A client that encrypts sends no byte to a server that does not, so nothing is sent in the
    // clear.
    Proxy proxy(server.addresses()[0], {}, Proxy::Keeps::kFromClients);
    const std::string why = message_of(Code::kInvalidArgument, [&] {
      ParameterClient({proxy.address(), server.addresses()[1]}, working(!server_encrypts));
    });
    EXPECT_NE(why.find(server_encrypts ? "encrypts, and this end does not" : "does not encrypt"),
              std::string::npos)
        << why;
    EXPECT_NE(why.find("set encrypt at both"), std::string::npos) << why;
    EXPECT_TRUE(proxy.passed().empty());
    message_of(Code::kInvalidArgument,
               [&] { shard_stats(server.addresses()[0], kSecret, !server_encrypts, 60); });
    ParameterClient client(server.addresses(), working(server_encrypts));
    EXPECT_TRUE(client.push(Slab::make(client.layout())).applied);
  }
}

TEST(ParameterEncryption, on_one_host_needs_no_secret_of_the_users) {
  const Parameters parameters = some_weights();
  ServerOptions options = serving(true);
  options.secret = "";
  ParameterServer server(parameters, Optimizer::sgd(1.0), options);
  for (const std::optional<bool> encrypt : {std::optional<bool>(), std::optional<bool>(true)}) {
    ParameterClient client(server.addresses(), {.encrypt = encrypt});
    EXPECT_TRUE(client.push(Slab::make(client.layout())).applied);
  }
  // A server with a secret does not take the host's.
  ParameterServer other(parameters, Optimizer::sgd(1.0), serving(true));
  const std::string why =
      message_of(Code::kInvalidArgument, [&] { ParameterClient(other.addresses(), {}); });
  EXPECT_NE(why.find("requires a secret"), std::string::npos) << why;
}

TEST(ParameterEncryption, on_one_host_memory_is_shared_all_the_same) {
  const Parameters parameters = some_weights();
  ParameterServer server(parameters, Optimizer::sgd(1.0), serving(true, "unix:@"));
  for (const bool encrypt : {true, false}) {
    ParameterClient client(server.addresses(), working(encrypt));
    EXPECT_TRUE(client.local());
    EXPECT_TRUE(client.push(Slab::make(client.layout())).applied);
  }
}

}  // namespace
}  // namespace penstock::train
