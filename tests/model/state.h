// The switches, each of which turns one rule of docs/concepts/replication.md off, and one state of one topic group.
#pragma once
#include <cstdint>
#include <cstring>

using u8 = uint8_t;
using u32 = uint32_t;
using u64 = uint64_t;

// Sizes are fixed at compile time: a state is a block of bytes that can be hashed. -DBROKERS=5 and so on.
#ifndef BROKERS
#define BROKERS 3
#endif
#ifndef TOPICS
#define TOPICS 1
#endif
#ifndef SEQUENCES
#define SEQUENCES 4  // sequence numbers of a topic
#endif
#ifndef EPOCHS
#define EPOCHS 4
#endif
#ifndef PUBLISHERS
#define PUBLISHERS 2
#endif
#ifndef IDS
#define IDS 2  // message ids of a publisher in a topic
#endif
constexpr int LIVES = 4;  // incarnations of a broker

enum SourceRule { LAST_RECORD, LAST_ACTIVATED, ALL_SINCE_ACTIVATED };
enum TableRule { IN_NO_TABLE_BUT_THE_CACHE, IN_THE_LOG, IN_THE_BROKER, NO_TABLE };  // `window`, see README

// The defaults are the rules. rules.tsv explains each switch beside the rule that it breaks.
struct Switches {
  int copies = 2;       // q
  int copies2 = 0;      // q from epoch 2 on, if it changes
  int cache = 9;        // entries that stay cached
  int first_list = 0;   // brokers on the first list, 0: all
  int window_ids = 1;   // ids of a publisher in flight at a time
  int list_min = 3;     // members of a list, if as many brokers run
  int list_always = 0;  // members of a list in any case
  bool bootstrap = false;     // begin without a record
  bool owner_enough = true;   // TAKEOVER-QUORUM: the answer of the source's owner is enough
  bool resign = true;         // PROGRESS: an owner without progress resigns
  bool relist = true;         // liveness is required only while each list lost at most q - 1
  bool learners = false;      // brokers that an epoch does not list take its Sync, too
  int heal_source = 0;        // liveness required: 1 by the source list only, 2 also when only its owner runs
  bool normal_form = true;    // parts that no later step reads are not hashed
  // takeover
  int source = LAST_ACTIVATED;
  int quorum_short = 0;
  int sync_short = 0;
  bool own_answer = true;
  bool whole = true;
  bool longest_of_all = false;
  bool any_synced = false;
  bool header_counts = false;
  bool keep_labels = true;
  bool sequence_restarts = false;
  bool skip_not_activated = false;
  bool born_activated = false;
  bool takeover_cas = true;
  bool activate_cas = true;
  bool number_before_sync = false;
  bool commit_before_activation = false;
  bool deliver_at_sync = false;
  bool quick_relist = false;
  bool cut_tail = true;
  bool sync_suffix_only = false;
  bool sync_gate = true;
  bool accept_without_sync = false;
  int table_cut = 0;  // 0: the sender's table, 1: cut by the removed ids, 2: not cut
  bool member_promises = true;
  bool coordinator_promises = true;
  // copies
  bool count_learners = false;
  bool by_incarnation = true;
  bool answers_for_old_life = false;
  bool unlisted_deliver = false;
  bool immediate_with_any_q = false;
  bool coordinator_delivers = false;
  bool evict_uncommitted = false;
  // publishers
  int table = IN_THE_LOG;
  int dense = 1;  // 1: the next id, or its publisher's mark; 2: the mark of unknown publishers only; 0: any above
  bool duplicate_waits = true;
  bool duplicate_depends = true;
  bool fresh_mark = true;
  bool mark_early = false;
  bool forget_early = false;
  bool ack_any = false;
  // idle topics
  bool floor = true;
  bool removal_waits = true;
  bool removal_travels = true;
  bool removal_applied = true;
  bool keep_rows = true;
  // suspicion
  bool suspect_answers = true;  // SUSPECT: a suspected broker counts in n as any other
  // ZooKeeper without its records
  bool restore_count = true;    // RESTORE-COUNT: at most q - 1 brokers are not members of the highest synced epoch,
  bool restore_promises = true;  // or its owner and q - 1 other members have promised no higher one
  bool restore_guard = true;    // IDENTITY-GUARD: a term of before the loss is not activated
  bool restore_source = true;   // RESTORE-SOURCE: one of the answers is synced to the source, which may not be activated
  bool restore_beyond = true;   // RESTORE-SOURCE: a member of `s` that is synced to a later epoch as a learner raises it
  bool restore_again = true;    // RESTORE-AGAIN: enough answers, none of them synced: another source is looked for
  bool blind_bootstrap = false; // a first record, though brokers that were not asked hold the group
  bool lives_repeat = false;    // INCARNATION: an incarnation is given again
  bool rollback = false;        // ZooKeeper continues from an older record
};
extern Switches rules;

struct Budget {
  int crashes = 2, expiries = 2, restarts = 2, given_up = 9, removals = 0, losses = 0, suspicions = 0;
};
extern Budget budget;

struct Entry {
  u8 epoch, message;  // message 0: none
};
constexpr u8 FLOOR = 255;  // in `shown`: the floor of a removed topic, a number without a publication

struct Log {
  Entry entries[SEQUENCES];
  u8 last, base, floor;  // floor: the number above which a removed topic begins again
  u8 table[PUBLISHERS];  // last id of each publisher
};

enum Phase { NONE, PREPARING, SYNCING, NUMBERING };

// One epoch: its record in ZooKeeper, and its owner's part. Sets of incarnations are bit masks.
struct Epoch {
  u8 owner, phase, copies, activated, source_epoch, no_promises;
  u8 source_list;  // the epoch of which `source` is the list, and of which its copies and owner are
  u8 removal;  // topics that go, a bit mask
  u32 members, source, answered, synced, fetched;
  Log log[TOPICS];
  u8 adopted[TOPICS], committed[TOPICS], best_synced[TOPICS], adopted_table[TOPICS][PUBLISHERS];
  u8 votes[BROKERS][TOPICS];
};

struct Broker {
  u8 alive, life, promised, synced, removal;  // removal: of the epoch that it is synced to, unless it took effect
  u8 committed[TOPICS];
  Log log[TOPICS];
  u8 own_table[TOPICS][PUBLISHERS];  // only with IN_THE_BROKER
};

enum IdState { WAITS, ACKNOWLEDGED, GIVEN_UP, ANSWER_MASK = 3, MARKED = 4 };  // MARKED: a copy names this id as lowest

constexpr u8 NOBODY = 255;

struct State {
  Broker broker[BROKERS];
  Epoch epoch[EPOCHS + 1];
  u8 current, ephemeral, crashes, expiries, restarts, removals, suspicions;
  u8 losses, lost, lost_at, joined;  // ZooKeeper's: `lost`: it has no record; `joined`: brokers that know
  u8 ids[TOPICS][PUBLISHERS][IDS];
  Entry shown[TOPICS][SEQUENCES];  // delivered or acknowledged
};

inline int incarnation(const State& s, int b) { return b * LIVES + s.broker[b].life; }
inline u32 bit(int who) { return 1u << who; }
inline int count(u32 set) { return __builtin_popcount(set); }
inline int broker_of(int who) { return who / LIVES; }
inline u32 lives_of(int b) { return ((1u << LIVES) - 1) << (b * LIVES); }

// Messages are numbered over topics, publishers and ids (from 1).
inline u8 message_of(int topic, int publisher, int id) { return 1 + (topic * PUBLISHERS + publisher) * IDS + id - 1; }
inline int publisher_of(u8 message) { return ((message - 1) / IDS) % PUBLISHERS; }
inline int id_of(u8 message) { return (message - 1) % IDS + 1; }
inline int topic_of(u8 message) { return (message - 1) / IDS / PUBLISHERS; }

inline u32 living(const State& s) {
  u32 set = 0;
  for (int b = 0; b < BROKERS; b++)
    if (s.broker[b].alive) set |= bit(incarnation(s, b));
  return set;
}

inline bool lives(const State& s, int who) {
  const Broker& b = s.broker[broker_of(who)];
  return b.alive && b.life == who % LIVES;
}

inline bool owner_lives(const State& s, const Epoch& e) { return lives(s, e.owner); }

// Return whether this incarnation of broker `b` is in `set` (BY-INCARNATION).
inline bool counts_in(const State& s, u32 set, int b) {
  return set & (rules.by_incarnation ? bit(incarnation(s, b)) : lives_of(b));
}
