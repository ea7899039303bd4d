// The collectives of an MPI: Open MPI 4 and 5, MPICH. MPI has no bf16.
#include <mpi.h>

#include "harness.hpp"

struct Mpi final : harness::System {
  Mpi(int* argc, char*** argv) {
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  }
  ~Mpi() override { MPI_Finalize(); }

  void call(harness::Op op, bool bf16, void* in, void* out, std::size_t bytes) override {
    if (bf16) harness::give_up("MPI has no bf16");
    const int len = int(bytes / sizeof(float)), part = len / ranks;
    const MPI_Comm world = MPI_COMM_WORLD;
    switch (op) {
      case harness::Op::AllReduce: MPI_Allreduce(MPI_IN_PLACE, in, len, MPI_FLOAT, MPI_SUM, world); break;
      case harness::Op::Broadcast: MPI_Bcast(in, len, MPI_FLOAT, 0, world); break;
      case harness::Op::AllGather: MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, world); break;
      case harness::Op::ReduceScatter: MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, world); break;
      case harness::Op::AllToAll: MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, world); break;
    }
  }

  void sum(float* numbers, std::size_t len) override {
    MPI_Allreduce(MPI_IN_PLACE, numbers, int(len), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
};

int main(int argc, char** argv) {
  Mpi mpi(&argc, &argv);
  harness::measure(mpi, harness::read_options(argc, argv));
}
