"""Gloo as PyTorch ships it: torch.distributed, one thread of torch per rank, TCP."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

import harness


def main():
    args = harness.options(["allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall"])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(os.environ["RDZV"], "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))

    def exchange(numbers):
        rows = torch.zeros(ranks, len(numbers), dtype=torch.float64)
        rows[rank] = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(rows)
        return rows.tolist()

    for size in args.sizes:
        length = size // torch.empty(0, dtype=dtype).element_size()
        whole = torch.full((length,), rank + 1.0, dtype=dtype)
        other = torch.zeros_like(whole)
        part = torch.full((length // ranks,), rank + 1.0, dtype=dtype)
        total, before = ranks * (ranks + 1) / 2, None
        if args.op == "allreduce":
            call, result, right = (lambda: dist.all_reduce(whole)), whole, [total, total]
        elif args.op == "broadcast":
            flag = torch.zeros(1)
            before = lambda: dist.all_reduce(flag)
            call, result, right = (lambda: dist.broadcast(whole, 0)), whole, [1, 1]
        elif args.op == "allgather":
            call, result, right = (lambda: dist.all_gather_into_tensor(other, part)), other, [1, ranks]
        elif args.op == "reduce_scatter":
            call, result, right = (lambda: dist.reduce_scatter_tensor(part, whole)), part, [total, total]
        else:
            call, result, right = (lambda: dist.all_to_all_single(other, whole)), other, [1, ranks]
        call()
        ends = [result[0].item(), result[-1].item()]
        if ends != right:
            raise SystemExit(f"wrong result at {size} bytes: {ends} where {right} is right")
        whole.zero_()
        harness.measure(size, args.budget, call, exchange, rank, before)
    dist.barrier()
    dist.destroy_process_group()


main()
