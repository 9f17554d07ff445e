// An LSTM predicts a sensor's next value, and learns from each value that MQTT brings. No Python.
//
// example_torch_mqtt_lstm [seconds]
#include <penstock/base/clock.h>
#include <penstock/base/os.h>
#include <penstock/online/message_queue.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adam.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "sensor.h"
namespace online = penstock::online;

constexpr int64_t kWindow = 16;
constexpr char kTopic[] = "lorenz/x";

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {  // [batch, kWindow] -> [batch]
    const at::Tensor states = std::get<0>(lstm->forward(x.unsqueeze(-1)));
    return out->forward(states.select(1, -1)).squeeze(-1);
  }
  torch::nn::LSTM lstm =
      register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(1, 32).batch_first(true)));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(32, 1));
};

int main(int argc, char** argv) try {
  const double seconds = argc > 1 ? std::strtod(argv[1], nullptr) : 6;
  penstock::os::keep_freed_memory();  // otherwise glibc returns memory that each step needs
  at::set_num_threads(1);
  torch::manual_seed(0);
  Net model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  const Broker broker;
  online::MessageQueue queue({.acknowledge = online::Acknowledge::kAfterTrain});
  queue.start(std::make_shared<online::MqttClient>(
      online::MqttOptions{.host = "127.0.0.1", .port = broker.port, .topics = {kTopic}}));
  const std::jthread sensor([&](std::stop_token stop) { run_sensor(stop, broker, kTopic); });

  std::vector<float> values;  // the last kWindow before the batch, then the batch
  std::vector<at::Tensor> errors;
  double shown = 0;
  for (const penstock::Deadline end(seconds); !end.passed();) {
    for (const auto& message : queue.take(256, 1, 0, 100'000'000)) {
      values.push_back(std::strtof(std::string(message.payload()).c_str(), nullptr));
    }
    if (const int64_t rows = static_cast<int64_t>(values.size()) - kWindow; rows > 0) {
      const at::Tensor all = torch::tensor(values), y = all.slice(0, kWindow);
      optimizer.zero_grad();
      const at::Tensor predictions = model.forward(all.unfold(0, kWindow, 1).slice(0, 0, rows));
      torch::nn::functional::mse_loss(predictions, y).backward();
      optimizer.step();
      errors.push_back((predictions.detach() - y).abs());
      if (seconds - end.left_s() > shown) {
        std::printf("prediction %6.3f, truth %6.3f\n", predictions[-1].item<double>(),
                    static_cast<double>(values.back()));
        shown += 0.25;
      }
      values.erase(values.begin(), values.end() - kWindow);
    }
    queue.trained(queue.next_offset());  // these messages are acknowledged
  }
  if (errors.empty()) throw std::runtime_error("no messages came");
  const at::Tensor all = torch::cat(errors);
  const double first = all.chunk(10).front().mean().item<double>();
  const double last = all.chunk(10).back().mean().item<double>();
  std::printf("%lld values; mean error %.3f at the beginning, %.3f at the end\n",
              static_cast<long long>(all.numel()), first, last);
  return last < first / 2 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
