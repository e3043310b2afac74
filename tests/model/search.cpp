// `explore`: every state within the budgets, breadth first, so that the first violation has the shortest trace.
// `walk`: random runs in larger configurations; each checks that the state recovers when faults end (invariant 7).
// Exit status: 0 no violation, 1 a violation or a stuck state, 2 wrong arguments.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <string>

#include "describe.h"
#include "hash.h"
#include "invariants.h"
#include "steps.h"

using std::string;

namespace {

struct Options {
  string mode = "explore";
  bool symmetric = false;
  u64 max_states = 30000000;
  double seconds = 120;
  int bits = 25;
  u64 seed = 1;
  int length = 120;
} options;

double spent() { return (double)std::clock() / CLOCKS_PER_SEC; }  // CPU time of this process, so that limits do not depend on the machine's load

// ---- explore -------------------------------------------------------------------------------------------------------

struct Node {
  u32 parent;
  Action action;
};

void print_path(const State& first, const std::deque<Node>& nodes, u32 node, Violation found) {
  std::deque<Action> path;
  for (; node; node = nodes[node].parent) path.push_front(nodes[node].action);
  State s = first;
  int line = 1;
  Steps steps;
  for (Action action : path) {
    steps.clear();
    successors(s, steps);
    for (auto& [taken, z] : steps)
      if (!memcmp(&taken, &action, sizeof action)) {
        printf("%2d %s\n", line++, describe(s, taken, z).c_str());
        s = z;
        break;
      }
  }
  steps.clear();
  successors(s, steps);
  if (found.step < steps.size())
    printf("%2d %s   <== here\n", line, describe(s, steps[found.step].first, steps[found.step].second).c_str());
}

int explore(const State& first) {
  Seen seen(options.bits);
  std::deque<Node> nodes{{0, {0, 0, 0, 0}}};
  std::deque<std::pair<State, u32>> level{{first, 0}}, below;
  seen.add(hash(first, options.symmetric));
  Steps steps;
  int depth = 0;
  for (; !level.empty(); level.swap(below), depth++) {
    below.clear();
    for (; !level.empty(); level.pop_front()) {
      auto [s, node] = level.front();
      steps.clear();
      violation = {};
      successors(s, steps);
      if (violation.text) {
        Violation found = violation;
        printf("VIOLATION %s; after %d steps, %llu states, %.0f s\n", found.text, depth + 1,
               (unsigned long long)seen.size(), spent());
        print_path(first, nodes, node, found);
        return 1;
      }
      for (auto& [action, z] : steps)
        if (seen.add(hash(z, options.symmetric))) {
          nodes.push_back({node, action});
          below.emplace_back(z, (u32)nodes.size() - 1);
        }
      if (seen.size() > options.max_states || seen.full() || spent() > options.seconds) {
        printf("BOUND depth %d, %llu states, %.0f s: no violation so far\n", depth, (unsigned long long)seen.size(), spent());
        return 0;
      }
    }
  }
  printf("EXHAUSTED depth %d, %llu states, %.0f s: no violation\n", depth, (unsigned long long)seen.size(), spent());
  return 0;
}

// ---- liveness ------------------------------------------------------------------------------------------------------

enum Heals { GOES_ON, STUCK, NOT_PROMISED };
u64 healed = 0, not_promised = 0, resigned = 0;
constexpr int LET_GO = 20;  // the rank of an owner's resignation, the last resort

// Return the rank of a step for a fair scheduler without further faults; -1: never.
int rank_of(const State& s, const Action& x, const State& z) {
  switch (x.kind) {
    case ACKNOWLEDGE: case DUPLICATE: return 9;
    case EXPIRE: {
      return !lives(s, s.ephemeral) ? 0 : rules.resign ? LET_GO : -1;
    }
    case JOIN: return 0;
    case RESTORE: return z.epoch[z.current].members == living(s) ? 1 : -1;
    case TAKE: return z.epoch[z.current].members == living(s) ? 1 : -1;
    case PROMISE: return x.a == s.current ? 2 : -1;
    case ADOPT: return x.a == s.current ? 3 : -1;
    case SYNC: return x.a == s.current ? 4 : -1;
    case ACTIVATE: return x.a == s.current ? 5 : -1;
    case RECORD_ACTIVATED: return 5;
    case COMMIT: return 6;
    case ACCEPT: return x.a == s.current ? 7 : -1;
    case NUMBER: {  // messages of ids that were given up may be lost
      u8 state = s.ids[topic_of(x.b)][publisher_of(x.b)][id_of(x.b) - 1];
      return x.a == s.current && (state & ANSWER_MASK) != GIVEN_UP ? 8 : -1;
    }
    default: return -1;
  }
}

int open_ids(const State& s) {
  int n = 0;
  for (auto& topic : s.ids)
    for (auto& publisher : topic)
      for (u8 state : publisher) n += !(state & ANSWER_MASK);
  return n;
}

// Return whether the rules promise that this state recovers when faults end (invariant 7).
bool is_promised(const State& s) {
  int down = 0;
  for (const Broker& b : s.broker) down += !b.alive;
  int copies = s.epoch[s.current].copies;
  if (rules.heal_source == 2 ? BROKERS - down < copies : down > copies - 1) return false;
  int source = s.epoch[s.current].activated ? s.current : s.epoch[s.current].source_list;
  for (int i = source; i <= (rules.heal_source ? source : (int)s.current); i++) {
    const Epoch& e = s.epoch[i];
    if (count(e.members & ~living(s)) <= e.copies - 1) continue;
    if (rules.heal_source == 2 && i == source && source && (living(s) & bit(e.owner))) continue;
    not_promised++;
    if (rules.relist) return false;
  }
  if ((s.lost || !is_answerable(s)) && !restorable(s)) return false;  // the history is unknown, or brokers are away
  if (s.current > EPOCHS - 3) return false;  // no room for the epochs that recovery may need
  if (SEQUENCES < IDS * PUBLISHERS + budget.removals)
    for (int b = 0; b < BROKERS; b++)
      for (int t = 0; t < TOPICS; t++)
        if (s.broker[b].log[t].last >= SEQUENCES - 1 || s.epoch[s.current].log[t].last >= SEQUENCES - 1) return false;
  return open_ids(s) > 0;
}

// Return whether a fair scheduler without further faults answers every id (or one more, where there is no room for all).
Heals heals(State s) {
  if (!is_promised(s)) return NOT_PROMISED;
  healed++;
  int goal = SEQUENCES >= IDS * PUBLISHERS + budget.removals ? 0 : open_ids(s) - 1;
  Budget kept = budget;
  budget.given_up = 0;
  budget.expiries = 1000;
  s.expiries = 0;
  bool let_go = false;
  Heals result = STUCK;
  Steps steps;
  for (int turn = 0; turn < 400; turn++) {
    if (open_ids(s) <= goal) {
      resigned += let_go;
      result = GOES_ON;
      break;
    }
    steps.clear();
    successors(s, steps);
    int best = -1, rank = 99;
    for (size_t i = 0; i < steps.size(); i++) {
      int r = rank_of(s, steps[i].first, steps[i].second);
      if (r >= 0 && r < rank) {
        rank = r;
        best = i;
      }
    }
    if (best < 0 || (rank == LET_GO && (let_go || s.current >= EPOCHS))) break;
    let_go = let_go || rank == LET_GO;
    s = steps[best].second;
  }
  budget = kept;
  violation = {};
  return result;
}

// ---- walk ----------------------------------------------------------------------------------------------------------

string trace_of(const std::vector<State>& states, const std::vector<Action>& actions) {
  string text;
  for (size_t k = 1; k < states.size(); k++)
    text += std::to_string(k) + " " + describe(states[k - 1], actions[k - 1], states[k]) + "\n";
  return text;
}

// Draw a step. Faults are rarer than other steps, and a `frozen` broker does nothing.
size_t pick(const Steps& steps, std::mt19937_64& random, int frozen) {
  size_t chosen = 0;
  for (int tries = 0; tries < 8; tries++) {
    chosen = random() % steps.size();
    Action x = steps[chosen].first;
    if ((x.kind == CRASH || x.kind == EXPIRE || x.kind == GIVE_UP || x.kind == FORGET || x.kind == LOSE) && random() % 6) continue;
    if (x.kind == TAKE && random() % 4 == 0) continue;
    if (x.kind == SUSPECT && random() % 12) continue;
    bool by_member = x.kind == PROMISE || x.kind == SYNC || x.kind == ACCEPT || x.kind == LEARN_COMMIT;
    if (by_member && x.b == frozen) continue;
    break;
  }
  return chosen;
}

int walk(const State& first) {
  std::mt19937_64 random(options.seed);
  const Budget most = budget;
  u64 walks = 0, taken = 0, epochs = 0, delivered = 0;
  size_t best = ~size_t(0), stuck_after = ~size_t(0);
  int shorter = 0;
  string worst, stuck;
  std::vector<State> states;
  std::vector<Action> actions;
  Steps steps;
  while (spent() < options.seconds && !(worst.size() && (best < 30 || shorter > 40))) {
    State s = first;
    states.assign(1, s);
    actions.clear();
    walks++;
    budget.crashes = random() % (most.crashes + 1);
    budget.expiries = random() % (most.expiries + 1);
    budget.restarts = random() % (most.restarts + 1);
    budget.suspicions = random() % (most.suspicions + 1);
    int frozen = -1;
    for (int i = 0; i < options.length; i++) {
      steps.clear();
      violation = {};
      successors(s, steps);
      if (violation.text) {
        shorter++;
        if (states.size() < best) {
          best = states.size();
          worst = "VIOLATION " + string(violation.text) + "; after " + std::to_string(best) + " steps of walk " +
                  std::to_string(walks) + "\n" + trace_of(states, actions);
          if (violation.step < steps.size())
            worst += "   " + describe(s, steps[violation.step].first, steps[violation.step].second) + "   <== here\n";
        }
        break;
      }
      if (steps.empty()) break;
      taken++;
      if (random() % 15 == 0) frozen = random() % (BROKERS + 1);
      size_t chosen = pick(steps, random, frozen);
      s = steps[chosen].second;
      states.push_back(s);
      actions.push_back(steps[chosen].first);
    }
    for (auto& topic : s.shown)
      for (Entry entry : topic) delivered += entry.message != 0;
    epochs = std::max(epochs, (u64)s.current);
    size_t looked_at = random() % states.size();
    if (heals(states[looked_at]) == STUCK && looked_at < stuck_after) {
      stuck_after = looked_at;
      states.resize(looked_at + 1);
      stuck = "STUCK after " + std::to_string(looked_at) + " steps\n" + trace_of(states, actions);
    }
  }
  if (worst.size() || stuck.size()) {  // safety first: a broken rule may lead to both
    printf("%s", (worst.size() ? worst : stuck).c_str());
    return 1;
  }
  printf("WALKS %llu, %llu steps, up to %llu epochs, %.2f publications shown in each, %.0f s: no violation; healed %llu "
         "(an owner let go in %llu; not promised %llu)\n",
         (unsigned long long)walks, (unsigned long long)taken, (unsigned long long)epochs, (double)delivered / walks,
         spent(), (unsigned long long)healed, (unsigned long long)resigned, (unsigned long long)not_promised);
  return 0;
}

// ---- arguments -----------------------------------------------------------------------------------------------------

std::map<string, std::function<void(const string&)>> arguments() {
  std::map<string, std::function<void(const string&)>> set;
  auto number = [&set](const char* name, auto& target) {
    set[name] = [&target](const string& text) { target = atoll(text.c_str()); };
  };
#define SWITCH(name) number(#name, rules.name);
  SWITCH(copies) SWITCH(copies2) SWITCH(cache) SWITCH(first_list) SWITCH(window_ids) SWITCH(list_min)
  SWITCH(list_always) SWITCH(bootstrap) SWITCH(owner_enough) SWITCH(resign) SWITCH(relist) SWITCH(heal_source)
  SWITCH(normal_form) SWITCH(source) SWITCH(quorum_short) SWITCH(sync_short) SWITCH(own_answer) SWITCH(whole)
  SWITCH(longest_of_all) SWITCH(any_synced) SWITCH(header_counts) SWITCH(keep_labels) SWITCH(sequence_restarts)
  SWITCH(skip_not_activated) SWITCH(born_activated) SWITCH(takeover_cas) SWITCH(activate_cas)
  SWITCH(number_before_sync) SWITCH(commit_before_activation) SWITCH(deliver_at_sync) SWITCH(quick_relist)
  SWITCH(cut_tail) SWITCH(sync_suffix_only) SWITCH(sync_gate) SWITCH(accept_without_sync) SWITCH(table_cut)
  SWITCH(member_promises) SWITCH(coordinator_promises) SWITCH(count_learners) SWITCH(by_incarnation)
  SWITCH(answers_for_old_life) SWITCH(unlisted_deliver) SWITCH(immediate_with_any_q) SWITCH(coordinator_delivers)
  SWITCH(evict_uncommitted) SWITCH(table) SWITCH(dense) SWITCH(duplicate_waits) SWITCH(duplicate_depends)
  SWITCH(fresh_mark) SWITCH(mark_early) SWITCH(forget_early) SWITCH(ack_any)
  SWITCH(floor) SWITCH(removal_waits) SWITCH(removal_travels) SWITCH(removal_applied) SWITCH(keep_rows)
  SWITCH(fresh_mark) SWITCH(mark_early) SWITCH(forget_early) SWITCH(ack_any) SWITCH(restore_count)
  SWITCH(restore_promises) SWITCH(restore_beyond) SWITCH(suspect_answers) SWITCH(learners)
  SWITCH(restore_guard) SWITCH(restore_source) SWITCH(restore_again) SWITCH(blind_bootstrap) SWITCH(lives_repeat) SWITCH(rollback)
#undef SWITCH
  number("crashes", budget.crashes);
  number("expiries", budget.expiries);
  number("restarts", budget.restarts);
  number("given_up", budget.given_up);
  number("removals", budget.removals);
  number("losses", budget.losses);
  number("suspicions", budget.suspicions);
  number("symmetric", options.symmetric);
  number("max_states", options.max_states);
  number("seconds", options.seconds);
  number("bits", options.bits);
  number("seed", options.seed);
  number("length", options.length);
  set["mode"] = [](const string& text) { options.mode = text; };
  return set;
}

}  // namespace

int main(int argc, char** argv) {
  auto set = arguments();
  for (int i = 1; i < argc; i++) {
    string text = argv[i];
    size_t equals = text.find('=');
    string name = text.substr(0, equals);
    auto found = set.find(name);
    if (found == set.end()) {
      fprintf(stderr, "no such argument: %s; there are:", name.c_str());
      for (auto& [known, _] : set) fprintf(stderr, " %s", known.c_str());
      fprintf(stderr, "\n");
      return 2;
    }
    found->second(equals == string::npos ? "1" : text.substr(equals + 1));
  }
  State first;
  begin(first);
  return options.mode == "walk" ? walk(first) : explore(first);
}
