// oneCCL's collectives on CPUs, f32 and bf16.
// Started by an MPI's launcher or as plain processes; the address of rank 0's store travels by a file in the folder RDZV.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <thread>

#include "harness.hpp"
#include "oneapi/ccl.hpp"

static int number(const char* name, const char* by_launcher) {
  const char* value = std::getenv(name);
  if (!value) value = std::getenv(by_launcher);
  if (!value) harness::give_up(std::string("neither ") + name + " nor " + by_launcher + " is set");
  return std::atoi(value);
}

static ccl::shared_ptr_class<ccl::kvs> meet(int rank) {
  const char* folder = std::getenv("RDZV");
  if (!folder) harness::give_up("RDZV is not set");
  const std::string name = std::string(folder) + "/store", unfinished = name + ".new";
  if (rank == 0) {
    auto store = ccl::create_main_kvs();
    auto address = store->get_address();
    std::ofstream(unfinished, std::ios::binary).write(reinterpret_cast<const char*>(address.data()), address.size());
    if (std::rename(unfinished.c_str(), name.c_str())) harness::give_up("cannot write " + name);
    return store;
  }
  ccl::kvs::address_type address;
  for (int tries = 0; tries < 6000; tries++) {
    std::ifstream file(name, std::ios::binary);
    if (file.read(reinterpret_cast<char*>(address.data()), address.size())) return ccl::create_kvs(address);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  harness::give_up("rank 0 has not written " + name);
}

struct Ccl final : harness::System {
  std::unique_ptr<ccl::communicator> world;
  std::vector<std::size_t> parts;

  Ccl() {
    rank = number("RANK", "PMI_RANK");
    ranks = number("WORLD_SIZE", "PMI_SIZE");
    ccl::init();
    world = std::make_unique<ccl::communicator>(ccl::create_communicator(ranks, rank, meet(rank)));
    parts.resize(ranks);
  }

  void call(harness::Op op, bool bf16, void* in, void* out, std::size_t bytes) override {
    const auto type = bf16 ? ccl::datatype::bfloat16 : ccl::datatype::float32;
    const std::size_t len = bytes / (bf16 ? 2 : 4), part = len / ranks;
    const auto add = ccl::reduction::sum;
    switch (op) {
      case harness::Op::AllReduce: ccl::allreduce(in, in, len, type, add, *world).wait(); break;
      case harness::Op::Broadcast: ccl::broadcast(in, len, type, 0, *world).wait(); break;
      case harness::Op::AllGather:
        parts.assign(ranks, part);
        ccl::allgatherv(in, part, out, parts, type, *world).wait();
        break;
      case harness::Op::ReduceScatter: ccl::reduce_scatter(in, out, part, type, add, *world).wait(); break;
      case harness::Op::AllToAll: ccl::alltoall(in, out, part, type, *world).wait(); break;
    }
  }

  void sum(float* numbers, std::size_t len) override {
    ccl::allreduce(numbers, numbers, len, ccl::datatype::float32, ccl::reduction::sum, *world).wait();
  }
};

int main(int argc, char** argv) {
  auto options = harness::read_options(argc, argv);
  Ccl ccl;
  harness::measure(ccl, options);
  float all_here = 0;
  ccl.sum(&all_here, 1);
  std::fflush(stdout);
  // Under no launcher the library's own end may wait for a store that is gone.
  if (!std::getenv("PMI_RANK")) {
    usleep(150 * 1000);
    std::_Exit(0);
  }
}
