// A parameter server of two shards, and two workers that only need its addresses: they push
// gradients and pull weights without waiting for each other. Workers may be other processes, on
// other hosts.
#include <penstock/penstock.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>
namespace pt = penstock::train;
constexpr int kPushes = 200;

// The gradient of half the squared distance to 1.
void compute(const pt::Slab& weights, const pt::Slab& gradients) {
  for (size_t i = 0; i < weights.values().size(); ++i) {
    gradients.values()[i] = weights.values()[i] - 1;
  }
}

void work(const std::vector<std::string>& addresses, const std::string& name) {
  pt::ParameterClient client(addresses, {.name = name});
  const pt::Slab weights = pt::Slab::make(client.layout());
  const pt::Slab gradients = pt::Slab::make(client.layout());
  for (int push = 0; push < kPushes; ++push) {
    client.pull(weights);
    compute(weights, gradients);
    client.push(gradients);
  }
  client.close();
}

int main() {
  const pt::Parameters parameters(pt::Layout{{"w", {1000}}});
  pt::ParameterServer server(parameters, pt::Optimizer::sgd(0.05), {.shards = 2});
  std::thread one([&] { work(server.addresses(), "one"); });
  std::thread two([&] { work(server.addresses(), "two"); });
  one.join();
  two.join();
  server.read(parameters.slab());
  const float w = parameters.at("w").as_span<float>()[0];
  std::printf("w is %f after %d pushes\n", w, 2 * kPushes);
  return std::abs(w - 1) < 1e-3f ? 0 : 1;
}
