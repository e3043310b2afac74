// All steps that are possible in a state. A message may arrive at any later moment, in its epoch's order, or never, so
// that delay, loss with retries, freezes and partitions are orders of steps.
#pragma once
#include <utility>
#include <vector>

#include "state.h"

enum Kind : u8 {
  TAKE, PROMISE, ADOPT, SYNC, ACTIVATE, NUMBER, ACCEPT, COMMIT, LEARN_COMMIT, ACKNOWLEDGE,
  CRASH, RESTART, EXPIRE, DUPLICATE, RELIST, RECORD_ACTIVATED, FETCH, GIVE_UP, FORGET,
  LOSE, JOIN, RESTORE, SUSPECT
};

struct Action {
  u8 kind, a, b, c;  // `describe` explains a, b and c
};

using Step = std::pair<Action, State>;
using Steps = std::vector<Step>;

void successors(const State& s, Steps& out);
void begin(State& s);
bool restorable(const State& s);  // RESTORE-COUNT
bool is_answerable(const State& s);  // RESTORE-AGAIN: a member that is synced to the source of the record runs
int lowest(const State& s, int topic, int publisher);  // the publisher's mark: its lowest unacknowledged id
