// States are compared by hashes of 64 bits. Parts that no later step reads, and the brokers' names, do not count.
#pragma once
#include <vector>

#include "state.h"

u64 hash(State s, bool symmetric);

// A hash table with open addressing; 0 marks an empty slot. Two states that share a hash count as one: with 10^7 states
// that happens
// with a probability of about 10^-5.
class Seen {
 public:
  explicit Seen(int bits) : table_(1ull << bits, 0), mask_((1ull << bits) - 1) {}
  bool add(u64 h) {
    u64 i = h & mask_;
    for (; table_[i]; i = (i + 1) & mask_)
      if (table_[i] == h) return false;
    table_[i] = h;
    size_++;
    return true;
  }
  u64 size() const { return size_; }
  bool full() const { return size_ > mask_ - mask_ / 8; }

 private:
  std::vector<u64> table_;
  u64 mask_, size_ = 0;
};
