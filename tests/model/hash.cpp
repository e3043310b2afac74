#include "hash.h"

#include <algorithm>

namespace {

u64 of_bytes(const State& s) {
  const u8* p = (const u8*)&s;
  u64 h = 0x9E3779B97F4A7C15ull;
  size_t i = 0;
  for (; i + 8 <= sizeof s; i += 8) {
    u64 v;
    memcpy(&v, p + i, 8);
    h ^= v * 0xff51afd7ed558ccdull;
    h = (h << 27 | h >> 37) * 0x9FB21C651E98DF25ull;
  }
  for (; i < sizeof s; i++) h = (h ^ p[i]) * 0x100000001b3ull;
  h ^= h >> 29;
  h *= 0xbf58476d1ce4e5b9ull;
  h ^= h >> 32;
  return h ? h : 1;
}

// Clear the answers of a finished candidate, and the logs and records of epochs in which no broker can act any more.
void drop_unread(State& s) {
  bool exact = rules.unlisted_deliver || rules.count_learners || !rules.member_promises || !rules.sync_gate ||
               !rules.coordinator_promises || !rules.by_incarnation || rules.source != LAST_ACTIVATED || rules.copies2 ||
               rules.commit_before_activation || !rules.activate_cas || rules.answers_for_old_life ||
               rules.accept_without_sync || rules.learners || budget.losses;
  if (!rules.normal_form || exact) return;
  for (int epoch = 1; epoch <= s.current; epoch++) {
    Epoch& e = s.epoch[epoch];
    if (!e.phase) continue;
    auto acts = [&](int b) { return s.broker[b].promised <= epoch || s.broker[b].synced == epoch; };
    int owner = broker_of(e.owner);
    bool lives = owner_lives(s, e), over;
    if (e.phase == 1) {
      over = !lives || s.broker[owner].promised > epoch;
    } else {
      e.answered = e.fetched = 0;
      memset(e.best_synced, 0, TOPICS);
      over = !lives || !acts(owner);
      for (int b = 0; b < BROKERS && over; b++)
        if (s.broker[b].alive && (e.members & bit(incarnation(s, b))) && acts(b)) over = false;
    }
    if (!over) continue;
    Epoch z;
    memset(&z, 0, sizeof z);
    z.copies = e.copies;
    z.owner = rules.owner_enough ? e.owner : 0;
    if (epoch == s.current) {
      z.activated = e.activated;
      z.source_epoch = e.source_epoch;
      z.source_list = e.source_list;
      z.members = e.members;
      z.source = e.source;
      z.owner = e.owner;
      z.phase = 1;
    }
    e = z;
  }
}

u8 renamed(u8 who, const int* names) { return who == 255 ? 255 : (u8)(names[who / LIVES] * LIVES + who % LIVES); }

u32 renamed_set(u32 set, const int* names) {
  u32 r = 0;
  for (int b = 0; b < BROKERS; b++) r |= ((set >> (b * LIVES)) & ((1u << LIVES) - 1)) << (names[b] * LIVES);
  return r;
}

void rename(const State& s, State& z, const int* names) {
  z = s;
  for (int b = 0; b < BROKERS; b++) z.broker[names[b]] = s.broker[b];
  z.ephemeral = renamed(s.ephemeral, names);
  z.joined = 0;
  for (int b = 0; b < BROKERS; b++) z.joined |= (s.joined >> b & 1) << names[b];
  for (int epoch = 1; epoch <= s.current; epoch++) {
    Epoch& e = z.epoch[epoch];
    const Epoch& old = s.epoch[epoch];
    e.owner = renamed(old.owner, names);
    for (u32 Epoch::*set : {&Epoch::members, &Epoch::source, &Epoch::answered, &Epoch::synced, &Epoch::fetched})
      e.*set = renamed_set(old.*set, names);
    for (int b = 0; b < BROKERS; b++) memcpy(e.votes[names[b]], old.votes[b], TOPICS);
  }
}

}  // namespace

u64 hash(State s, bool symmetric) {
  drop_unread(s);
  if (!symmetric) return of_bytes(s);
  int names[BROKERS];
  for (int b = 0; b < BROKERS; b++) names[b] = b;
  u64 least = ~0ull;
  State z;
  do {
    rename(s, z, names);
    least = std::min(least, of_bytes(z));
  } while (std::next_permutation(names, names + BROKERS));
  return least;
}
