// What the C++ programs share: options, checks, timing and the lines they print.
//
// A program hands `measure` a `System`: one collective call, and a small sum that `measure` itself needs.
// Sizes are in bytes and mean the longest vector that a rank holds: what is reduced or broadcast in place, what all-gather fills, what reduce-scatter and all-to-all read.
// Calls follow each other without a pause. A sample is the mean over the ranks of one call's duration; for broadcast, whose root may run ahead, each call follows a small all-reduce and the sample is the longest duration.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace harness {

enum class Op { AllReduce, Broadcast, AllGather, ReduceScatter, AllToAll };

struct Options {
  Op op = Op::AllReduce;
  bool bf16 = false;
  std::vector<std::size_t> sizes;
  double budget_s = 0.3;

  std::size_t width() const { return bf16 ? 2 : 4; }
};

[[noreturn]] inline void give_up(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::_Exit(2);
}

inline Op op_named(const std::string& name) {
  static const std::pair<const char*, Op> known[] = {{"allreduce", Op::AllReduce},
                                                     {"broadcast", Op::Broadcast},
                                                     {"allgather", Op::AllGather},
                                                     {"reduce_scatter", Op::ReduceScatter},
                                                     {"alltoall", Op::AllToAll}};
  for (auto& k : known)
    if (name == k.first) return k.second;
  give_up("no operation is called " + name);
}

inline Options read_options(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; i += 2) {
    std::string key = argv[i];
    if (i + 1 == argc) give_up(key + " lacks a value");
    std::string value = argv[i + 1];
    if (key == "--op") {
      o.op = op_named(value);
    } else if (key == "--dtype") {
      if (value != "f32" && value != "bf16") give_up("no element type is called " + value);
      o.bf16 = value == "bf16";
    } else if (key == "--budget") {
      o.budget_s = std::atof(value.c_str());
    } else if (key == "--sizes") {
      for (std::size_t at = 0; at < value.size();) {
        std::size_t comma = std::min(value.find(',', at), value.size());
        o.sizes.push_back(std::stoull(value.substr(at, comma - at)));
        at = comma + 1;
      }
    } else {
      give_up("no option is called " + key);
    }
  }
  if (o.sizes.empty()) give_up("--sizes is missing");
  return o;
}

/// What a program measures.
struct System {
  int rank = 0;
  int ranks = 1;
  virtual ~System() = default;
  /// One call over `bytes`; `out` is another buffer only where the operation has one.
  virtual void call(Op op, bool bf16, void* in, void* out, std::size_t bytes) = 0;
  /// Sums `len` numbers over the ranks, in place.
  virtual void sum(float* numbers, std::size_t len) = 0;
};

class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : at_(::operator new(bytes + kPage, std::align_val_t(kPage))) {
    std::memset(at_, 0, bytes + kPage);
  }
  ~Buffer() { ::operator delete(at_, std::align_val_t(kPage)); }
  Buffer(const Buffer&) = delete;
  void* get() const { return at_; }

 private:
  static constexpr std::size_t kPage = 4096;
  void* at_;
};

// Small whole numbers have the same upper half in both formats, and their sums over few ranks are exact in both.
inline void put(void* at, bool bf16, std::size_t i, float value) {
  if (!bf16) {
    static_cast<float*>(at)[i] = value;
    return;
  }
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  static_cast<std::uint16_t*>(at)[i] = static_cast<std::uint16_t>(bits >> 16);
}

inline float get(const void* at, bool bf16, std::size_t i) {
  if (!bf16) return static_cast<const float*>(at)[i];
  std::uint32_t bits = std::uint32_t(static_cast<const std::uint16_t*>(at)[i]) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

/// One call whose result is looked at.
inline void check(System& s, const Options& o, void* in, void* out, std::size_t bytes) {
  const std::size_t len = bytes / o.width(), part = len / s.ranks;
  auto holds = [](int rank, std::size_t i) { return float(1 + rank + int(i % 5)); };
  const bool gather = o.op == Op::AllGather;
  for (std::size_t i = 0; i < (gather ? part : len); i++) put(in, o.bf16, i, holds(s.rank, i));
  s.call(o.op, o.bf16, in, out, bytes);
  auto total = [&](std::size_t i) {
    float t = 0;
    for (int r = 0; r < s.ranks; r++) t += holds(r, i);
    return t;
  };
  const std::size_t results = o.op == Op::ReduceScatter ? part : len;
  const void* result = o.op == Op::AllReduce || o.op == Op::Broadcast ? in : out;
  for (std::size_t i = 0; i < results; i += 1 + results / 1009) {
    const std::size_t within = part ? i % part : 0;
    const int from = part ? int(std::min<std::size_t>(i / part, s.ranks - 1)) : 0;
    float want = 0;
    switch (o.op) {
      case Op::AllReduce: want = total(i); break;
      case Op::Broadcast: want = holds(0, i); break;
      case Op::AllGather: want = holds(from, within); break;
      case Op::ReduceScatter: want = total(s.rank * part + i); break;
      case Op::AllToAll: want = holds(from, s.rank * part + within); break;
    }
    const float got = get(result, o.bf16, i);
    if (got != want)
      give_up("wrong result at " + std::to_string(bytes) + " bytes, element " + std::to_string(i) + ": " +
              std::to_string(got) + " where " + std::to_string(want) + " is right");
  }
}

inline void measure(System& s, const Options& o) {
  using Clock = std::chrono::steady_clock;
  const bool waits = o.op == Op::Broadcast;
  const bool apart = o.op != Op::AllReduce && o.op != Op::Broadcast;
  for (std::size_t bytes : o.sizes) {
    Buffer in(bytes), second(apart ? bytes : 0);
    void* out = apart ? second.get() : in.get();
    check(s, o, in.get(), out, bytes);
    std::memset(in.get(), 0, bytes);
    auto once = [&] {
      float nothing = 0;
      if (waits) s.sum(&nothing, 1);
      auto begin = Clock::now();
      s.call(o.op, o.bf16, in.get(), out, bytes);
      return std::chrono::duration<float, std::micro>(Clock::now() - begin).count();
    };
    // The quickest of the warm-up calls, averaged over the ranks, tells how many calls fill the budget, so that all ranks make equally many.
    float guess = 1e9f;
    for (int left = bytes <= (64u << 10) ? 40 : 3; left > 0; left--) guess = std::min(guess, once());
    s.sum(&guess, 1);
    const double fit = o.budget_s * 1e6 * s.ranks / std::max(guess, 0.1f);
    const std::size_t calls = std::size_t(std::clamp(fit, 5.0, 5000.0));
    std::vector<float> took(calls * s.ranks, 0.0f);
    for (std::size_t i = 0; i < calls; i++) took[i * s.ranks + s.rank] = once();
    s.sum(took.data(), took.size());
    std::vector<double> samples;
    for (std::size_t i = 0; i < calls; i++) {
      double sum = 0, longest = 0;
      for (int r = 0; r < s.ranks; r++) {
        const double t = took[i * s.ranks + r];
        sum += t;
        longest = std::max(longest, t);
      }
      samples.push_back(waits ? longest : sum / s.ranks);
    }
    std::sort(samples.begin(), samples.end());
    auto at = [&](double q) { return samples[std::min(calls - 1, std::size_t(q * calls))]; };
    if (s.rank == 0) {
      std::printf("%zu,%.3f,%.3f,%zu\n", bytes, at(0.5), at(0.95), calls);
      std::fflush(stdout);
    }
  }
}

}  // namespace harness
