"""BlueFog's averaging with neighbours on a fixed graph, one thread of torch per rank; f32. Runs under mpirun."""

import bluefog.torch as bf
import torch
from bluefog.common import topology_util

import harness


def main():
    args = harness.options(["neighbor_ring", "neighbor_exp2"])
    torch.set_num_threads(1)
    bf.init()
    rank, ranks = bf.rank(), bf.size()
    graph = topology_util.RingGraph if args.op == "neighbor_ring" else topology_util.ExponentialTwoGraph
    bf.set_topology(graph(ranks))

    def exchange(numbers):
        return bf.allgather(torch.tensor([numbers], dtype=torch.float64), name="times").tolist()

    for size in args.sizes:
        mine = torch.full((size // 4,), float(rank))
        name = f"mix{size}"
        mean = bf.neighbor_allreduce(mine, name=name)
        who = [rank] + list(bf.in_neighbor_ranks())
        right = sum(who) / len(who)
        if abs(mean[0].item() - right) > 1e-5 or abs(mean[-1].item() - right) > 1e-5:
            raise SystemExit(f"wrong result at {size} bytes: {mean[0].item()} where {right} is right")
        harness.measure(size, args.budget, lambda: bf.neighbor_allreduce(mine, name=name), exchange, rank)
    bf.barrier()


main()
