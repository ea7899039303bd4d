"""What the Python programs share: options, timing, and the lines they print.

Sizes, samples and budgets mean what harness.hpp says they do.
"""

import argparse
from time import perf_counter_ns


def options(ops):
    parser = argparse.ArgumentParser()
    parser.add_argument("--op", choices=ops, default=ops[0])
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--budget", type=float, default=0.3)
    parser.add_argument("--sizes", type=lambda text: [int(s) for s in text.split(",")], required=True)
    return parser.parse_args()


def measure(size, budget_s, call, exchange, rank, before=None):
    """Times call() at one size. exchange(numbers) returns the numbers of every rank, in rank order."""

    def once():
        if before:
            before()
        begin = perf_counter_ns()
        call()
        return (perf_counter_ns() - begin) / 1000

    guess = min(once() for _ in range(40 if size <= 65536 else 3))
    guesses = [numbers[0] for numbers in exchange([guess])]
    fit = budget_s * 1e6 * len(guesses) / max(sum(guesses), 0.1)
    calls = int(min(max(fit, 5), 5000))
    ranks = exchange([once() for _ in range(calls)])
    fold = max if before else (lambda took: sum(took) / len(took))
    samples = sorted(fold(took) for took in zip(*ranks))
    if rank == 0:
        p95 = samples[min(calls - 1, int(0.95 * calls))]
        print(f"{size},{samples[calls // 2]:.3f},{p95:.3f},{calls}", flush=True)
