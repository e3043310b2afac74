// The invariants of the model: a publication that was shown (delivered or acknowledged) stays, once, in order.
#pragma once
#include "state.h"

// The first violation of a step, and the number of its successor state.
struct Violation {
  const char* text = nullptr;
  size_t step = 0;
};
extern Violation violation;
size_t steps_so_far();

inline void violated(const char* text) {
  if (!violation.text) violation = {text, steps_so_far()};
}

// Entry `x` is shown at `sequence` (from 1).
inline void show(State& s, int topic, int sequence, Entry x) {
  Entry& there = s.shown[topic][sequence - 1];
  if (!x.message) return violated("I2 delivered a hole");
  if (there.message) {
    if (there.message != x.message) violated("I3 two publications at one sequence number");
    else if (there.epoch != x.epoch) violated("I4 one publication under two positions (relabelled)");
    return;
  }
  for (int i = 0; i < SEQUENCES; i++) {
    Entry y = s.shown[topic][i];
    if (!y.message || y.message == FLOOR || x.message == FLOOR) continue;
    if (y.message == x.message) violated("I4 message id at two positions");
    if (publisher_of(y.message) == publisher_of(x.message) &&
        (i < sequence - 1) != (id_of(y.message) < id_of(x.message)))
      violated("I6 publisher order broken");
  }
  for (int i = 0; i < sequence - 1; i++)
    if (s.shown[topic][i].message && s.shown[topic][i].epoch > x.epoch) violated("I2 position epoch falls");
  there = x;
}

// A new coordinator holds everything that was shown, and no cache is shorter than it must be.
inline void check_adopted(const State& s, const Epoch& e) {
  for (int t = 0; t < TOPICS; t++) {
    int bound = (int)e.log[t].last - rules.cache;
    if (!rules.evict_uncommitted && e.log[t].base > (bound > e.log[t].floor ? bound : e.log[t].floor))
      violated("I1 cache shorter than its bound after takeover");
  }
  for (int t = 0; t < TOPICS; t++)
    for (int n = 1; n <= SEQUENCES; n++) {
      Entry shown = s.shown[t][n - 1];
      if (!shown.message) continue;
      if (e.log[t].last < n) return violated("I1 acknowledged/delivered publication lost by the new coordinator");
      if (e.log[t].base < n && e.log[t].entries[n - 1].message != shown.message)
        violated("I1/I3 delivered publication replaced by the new coordinator");
    }
}
