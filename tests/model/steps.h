// All that can happen next in a state. Anything that was sent may arrive at any later moment, in its epoch's order, or
// never: so delay, loss with resending, freezes and partitions are nothing but the order of steps.
#pragma once
#include <utility>
#include <vector>

#include "state.h"

enum Kind : u8 {
  TAKE, PROMISE, ADOPT, SYNC, ACTIVATE, NUMBER, ACCEPT, COMMIT, LEARN_COMMIT, ACKNOWLEDGE,
  CRASH, RESTART, EXPIRE, DUPLICATE, RELIST, RECORD_ACTIVATED, FETCH, GIVE_UP, FORGET
};

struct Action {
  u8 kind, a, b, c;  // what a, b and c mean, `describe` tells
};

using Step = std::pair<Action, State>;
using Steps = std::vector<Step>;

void successors(const State& s, Steps& out);
void begin(State& s);
int lowest(const State& s, int topic, int publisher);  // the publisher's mark: the lowest id that it still waits for
