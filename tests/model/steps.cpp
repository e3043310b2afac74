// The rules as steps. The names in capitals are those of docs/concepts/replication.md.
#include "steps.h"

#include <algorithm>

#include "invariants.h"

using std::max;
using std::min;

Switches rules;
Budget budget;
Violation violation;

namespace {

Steps* collected = nullptr;

void next(Kind kind, int a, int b, int c, const State& s) { collected->emplace_back(Action{kind, (u8)a, (u8)b, (u8)c}, s); }

u8 copies_of(int epoch) { return rules.copies2 && epoch >= 2 ? rules.copies2 : rules.copies; }

// ---- logs ----------------------------------------------------------------------------------------------------------

// EVICT-COMMITTED
void evict(Log& log, int committed) {
  int limit = rules.evict_uncommitted ? log.last : committed;
  while (log.last - log.base > rules.cache && log.base < limit) {
    log.entries[log.base] = {0, 0};
    log.base++;
  }
}

// Broker `b` learns that its log is committed up to `to`, and delivers it.
void deliver(State& s, int b, int t, int to) {
  Broker& x = s.broker[b];
  to = min(to, (int)x.log[t].last);
  for (int n = x.committed[t] + 1; n <= to; n++) {
    if (n > x.log[t].base) show(s, t, n, x.log[t].entries[n - 1]);
    x.committed[t] = n;
  }
  evict(x.log[t], x.committed[t]);
}

// The cache begins after the last gap.
void find_base(Log& log) {
  int base = log.last;
  while (base > 0 && log.entries[base - 1].message) base--;
  for (int n = 0; n < base; n++) log.entries[n] = {0, 0};
  log.base = base;
}

// In logs that were merged entry by entry, the cache begins after the gaps at the front.
void skip_holes(Log& log) {
  int base = 0;
  while (base < log.last && !log.entries[base].message) base++;
  log.base = base;
}

// ---- publishers ----------------------------------------------------------------------------------------------------

bool issued(const State& s, int t, int p, int id) { return id < lowest(s, t, p) + rules.window_ids; }
bool waits(const State& s, int t, int p, int id) { return issued(s, t, p, id) && !(s.ids[t][p][id - 1] & ANSWER_MASK); }

// Messages of every issued id stay in flight without end, each with the mark of a moment at which it was sent.
void mark(State& s, int t, int p, int before) {
  int low = lowest(s, t, p);
  if (low <= IDS && (rules.fresh_mark || low >= before + rules.window_ids)) s.ids[t][p][low - 1] |= MARKED;
  if (rules.mark_early)
    for (int id = 1; id <= IDS && id < low + rules.window_ids; id++) s.ids[t][p][id - 1] |= MARKED;
}

void settle(State& s, int t, int p, int id, int how) {
  int before = lowest(s, t, p);
  u8& x = s.ids[t][p][id - 1];
  x = (x & MARKED) | how;
  mark(s, t, p, before);
}

int given_up(const State& s) {
  int n = 0;
  for (int t = 0; t < TOPICS; t++)
    for (int p = 0; p < PUBLISHERS; p++)
      for (int id = 0; id < IDS; id++) n += (s.ids[t][p][id] & ANSWER_MASK) == GIVEN_UP;
  return n;
}

// ---- idle topics ---------------------------------------------------------------------------------------------------

// FLOOR: a topic that goes leaves one number without a publication behind, above all of its own.
void remove_topic(Log& log) {
  memset(log.entries, 0, sizeof log.entries);
  log.last = log.base = log.floor = rules.floor ? log.last + 1 : 0;
  if (!rules.keep_rows) memset(log.table, 0, PUBLISHERS);
}

// REMOVED-WITH-EPOCH: the removal of the epoch that broker `b` is synced to takes effect there.
void apply_removal(State& s, int b) {
  Broker& x = s.broker[b];
  for (int t = 0; t < TOPICS; t++) {
    if (!(x.removal >> t & 1)) continue;
    remove_topic(x.log[t]);
    x.committed[t] = x.log[t].last;
    if (rules.floor) show(s, t, x.log[t].last, {x.synced, FLOOR});  // named as the current position of the topic
  }
  x.removal = 0;
}

// The owner of `epoch` removes the topics that the epoch was to begin without.
void remove_idle(State& s, int epoch) {
  Epoch& e = s.epoch[epoch];
  if (!e.removal) return;
  int owner = broker_of(e.owner);
  apply_removal(s, owner);
  for (int t = 0; t < TOPICS; t++) {
    if (!(e.removal >> t & 1)) continue;
    e.log[t] = s.broker[owner].log[t];
    e.adopted[t] = e.committed[t] = e.votes[owner][t] = e.log[t].last;
    memcpy(e.adopted_table[t], e.log[t].table, PUBLISHERS);
  }
  e.removal = 0;
}

// ---- takeover ------------------------------------------------------------------------------------------------------

// TAKEOVER-MERGE: merge the answer of broker `b` into the log that the candidate of epoch `e` adopts.
void merge(State& s, Epoch& e, int b) {
  if (rules.removal_applied && s.broker[b].synced == e.source_epoch) apply_removal(s, b);
  const Broker& x = s.broker[b];
  for (int t = 0; t < TOPICS; t++) {
    Log& sum = e.log[t];
    const Log& log = x.log[t];
    if (!rules.whole) {  // entry by entry, the highest epoch wins
      for (int n = 0; n < SEQUENCES; n++)
        if (log.entries[n].message && (!sum.entries[n].message || log.entries[n].epoch > sum.entries[n].epoch))
          sum.entries[n] = log.entries[n];
      sum.last = max(sum.last, log.last);
      skip_holes(sum);
      for (int p = 0; p < PUBLISHERS; p++) sum.table[p] = max(sum.table[p], log.table[p]);
    } else if (rules.longest_of_all) {
      if (log.last > sum.last) sum = log;
    } else if (rules.source == LAST_ACTIVATED) {
      if (x.synced < e.source_epoch && !rules.any_synced) continue;
      e.best_synced[t] = 1;
      Log longer = log.last > sum.last ? log : sum;
      const Log& other = log.last > sum.last ? sum : log;
      for (int n = 0; n < SEQUENCES; n++) {
        Entry &mine = longer.entries[n], theirs = other.entries[n];
        if (mine.message && theirs.message && (mine.message != theirs.message || mine.epoch != theirs.epoch))
          violated("I3 two source answers differ at one sequence number");
        if (!mine.message && theirs.message && n < longer.last) mine = theirs;
      }
      find_base(longer);
      sum = longer;
    } else if (x.synced > e.best_synced[t] || (x.synced == e.best_synced[t] && log.last > sum.last)) {
      sum = log;
      e.best_synced[t] = x.synced;
    }
  }
}

// SOURCE-IS-ACTIVATED: return the list that the next candidate must ask.
u32 source_of(const State& s) {
  const Epoch& c = s.epoch[s.current];
  return rules.source != LAST_ACTIVATED || c.activated ? c.members : c.source;
}

// TAKEOVER-QUORUM
bool enough(const State& s, int epoch) {
  const Epoch& e = s.epoch[epoch];
  auto of = [&](u32 list, int copies) { return count(e.answered & list) >= count(list) - copies + 1 - rules.quorum_short; };
  if (e.no_promises) return true;
  if (rules.source == LAST_ACTIVATED) {
    const Epoch& source = s.epoch[e.source_list];
    return of(e.source, source.copies) || (rules.owner_enough && e.source_epoch && (e.answered & bit(source.owner)));
  }
  if (rules.source == LAST_RECORD) return of(e.source, rules.copies2 ? e.copies : s.epoch[epoch - 1].copies);
  for (int i = e.source_epoch; i < epoch; i++)
    if (!of(s.epoch[i].members, s.epoch[i].copies)) return false;
  return true;
}

// RESTORE-SOURCE: of an activated source, one of enough answers is always synced to it.
bool has_synced_answer(const Epoch& e) {
  bool waived = !rules.restore_source || rules.source != LAST_ACTIVATED || rules.any_synced || rules.header_counts;
  return waived || e.no_promises || !e.source_epoch || e.best_synced[0];
}

// TAKEOVER-SOURCE
bool is_asked(const State& s, int epoch, int b) {
  const Epoch& e = s.epoch[epoch];
  auto in = [&](u32 list) { return (list & (rules.answers_for_old_life ? lives_of(b) : bit(incarnation(s, b)))) != 0; };
  if (rules.source != ALL_SINCE_ACTIVATED) return in(e.source);
  for (int i = e.source_epoch; i < epoch; i++)
    if (in(s.epoch[i].members)) return true;
  return false;
}

// A candidate writes the next record, with itself and any running brokers. SUSPECT: also while the ephemeral of another
// broker exists, which the transaction replaces. That broker may live, and acts on until it promises the higher epoch.
void take_over(const State& s) {
  if (s.current >= EPOCHS || s.lost) return;
  bool suspects = s.ephemeral != NOBODY, wrongly = suspects && lives(s, s.ephemeral);
  if (suspects && (!budget.suspicions || s.suspicions + wrongly > budget.suspicions)) return;
  int who[BROKERS], n = 0;
  for (int b = 0; b < BROKERS; b++)
    if (s.broker[b].alive) who[n++] = incarnation(s, b);
  for (int b = 0; b < BROKERS; b++) {
    if (!s.broker[b].alive || s.broker[b].promised > s.current) continue;
    if (suspects && incarnation(s, b) == s.ephemeral) continue;
    int copies = copies_of(s.current + 1);
    for (int chosen = 1; chosen < (1 << n); chosen++) {
      u32 list = 0;
      for (int i = 0; i < n; i++)
        if (chosen >> i & 1) list |= bit(who[i]);
      if (!(list & bit(incarnation(s, b))) || count(list) < copies) continue;
      if (count(list) < min(n, rules.list_min) || count(list) < rules.list_always) continue;
      bool may_be_stale = !rules.takeover_cas && s.epoch[s.current].activated;
      for (int stale = 0; stale <= may_be_stale; stale++) {  // stale: read before it was activated
        State z = s;
        int epoch = ++z.current;
        Epoch& e = z.epoch[epoch];
        const Epoch& before = s.epoch[s.current];
        e.owner = incarnation(s, b);
        e.phase = PREPARING;
        e.copies = copies;
        e.members = list;
        e.source = stale ? before.source : source_of(s);
        e.source_epoch = before.activated && !stale ? s.current : before.source_epoch;
        e.source_list = before.activated && !stale ? s.current : before.source_list;
        if (suspects && !rules.suspect_answers) e.source &= ~bit(s.ephemeral);
        z.suspicions += wrongly;
        z.ephemeral = e.owner;
        z.broker[b].promised = epoch;
        if (rules.skip_not_activated && !before.activated) e.no_promises = 1;
        if (rules.born_activated && epoch == 1) e.activated = 1;
        if (rules.own_answer && is_asked(z, epoch, b)) {
          e.answered |= bit(e.owner);
          merge(z, e, b);
        }
        next(suspects ? SUSPECT : TAKE, b, chosen, stale, z);
      }
    }
  }
}

// RELIST: the owner of the activated epoch writes the next record without promises. `removal`: and removes idle topics.
void relist(const State& s, bool removal) {
  if (removal ? s.removals >= budget.removals : !rules.quick_relist || s.expiries >= budget.expiries) return;
  if (s.lost || s.current >= EPOCHS || s.ephemeral == NOBODY) return;
  const Epoch& c = s.epoch[s.current];
  int b = broker_of(c.owner);
  u32 list = living(s);
  if (!c.activated || s.ephemeral != c.owner || !owner_lives(s, c) || s.broker[b].promised != s.current) return;
  if (count(list) < c.copies) return;
  u8 idle = 0;
  for (int t = 0; t < TOPICS; t++)
    if (removal && c.log[t].last > c.log[t].floor && c.committed[t] == c.log[t].last && c.log[t].last < SEQUENCES)
      idle |= 1 << t;
  if (removal && !idle) return;
  State z = s;
  removal ? z.removals++ : z.expiries++;
  int epoch = ++z.current;
  Epoch& e = z.epoch[epoch];
  e.owner = c.owner;
  e.phase = PREPARING;
  e.copies = copies_of(epoch);
  e.members = list;
  e.source = c.members;
  e.source_epoch = e.source_list = s.current;
  e.no_promises = 1;
  for (int t = 0; t < TOPICS; t++) e.log[t] = c.log[t];
  e.removal = idle;
  z.broker[b].promised = epoch;
  next(RELIST, b, idle, 0, z);
}

// Return the highest epoch that a broker among `asked` is synced to, as a member of its list unless `any`.
int highest_synced(const State& s, u32 asked, bool any = false) {
  int highest = 0;
  for (int b = 0; b < BROKERS; b++) {
    u32 me = asked & bit(incarnation(s, b));
    if (me && (any || (me & s.epoch[s.broker[b].synced].members))) highest = max(highest, (int)s.broker[b].synced);
  }
  return highest;
}

// RESTORE-COUNT: at most q - 1 brokers are not members of the highest synced epoch; or that is activated, and its owner
// and q - 1 other members have promised no higher one, without whom none was activated.
bool may_restore(const State& s, u32 asked, bool activated) {
  int highest = highest_synced(s, asked);
  const Epoch& e = s.epoch[highest];
  u32 bound = 0;
  for (int b = 0; b < BROKERS; b++)
    if (s.broker[b].promised <= highest || !rules.restore_promises) bound |= bit(incarnation(s, b));
  bound &= asked & e.members;
  if (activated && highest && (bound & bit(e.owner)) && count(bound) >= e.copies) return true;
  return !rules.restore_count || BROKERS - count(asked & e.members) <= e.copies - 1;
}

// RESTORE: some of the brokers that have joined write the group's record again, from the highest epoch that one of them
// is synced to. The number is above every number given before. RESTORE-AGAIN: so does the owner of a record that was not
// activated, when enough members of its source have answered, and none of them is synced to it.
void restore(const State& s) {
  const Epoch& present = s.epoch[s.current];
  bool again = rules.restore_again && !s.lost && present.phase == PREPARING && s.ephemeral == present.owner &&
               owner_lives(s, present) && s.broker[broker_of(present.owner)].promised == s.current &&
               enough(s, s.current) && !has_synced_answer(present);
  if ((!s.lost && !again) || s.current >= EPOCHS) return;
  u32 all = 0;
  for (int b = 0; b < BROKERS; b++)
    if (s.broker[b].alive && (s.joined >> b & 1)) all |= bit(incarnation(s, b));
  for (int b = 0; b < BROKERS; b++) {
    u32 me = bit(incarnation(s, b));
    if (!(all & me) || (again && me != bit(present.owner))) continue;
    for (u32 list = all; list; list = (list - 1) & all) {
      int highest = highest_synced(s, list);
      const Epoch& c = s.epoch[highest];
      // an epoch that followed may have been activated, and its member here be synced to a still later one as a learner
      int beyond = rules.restore_beyond ? highest_synced(s, list & c.members, true) : highest;
      bool held = highest || !rules.blind_bootstrap;
      if (!(list & me) || count(list) < copies_of(s.current + 1)) continue;
      if (held && !highest) continue;
      if (count(list) < min(count(all), rules.list_min)) continue;
      if (held && !may_restore(s, list, c.activated)) continue;
      if (again && highest_synced(s, list & present.source, true) >= present.source_epoch) continue;  // will answer
      State z = s;
      int epoch = ++z.current;
      Epoch& e = z.epoch[epoch];
      e.owner = incarnation(s, b);
      e.phase = PREPARING;
      e.copies = copies_of(epoch);
      e.members = list;
      e.source_epoch = beyond;
      e.source_list = highest;
      e.source = c.members;
      e.no_promises = !held;
      z.ephemeral = e.owner;
      z.lost = 0;
      z.broker[b].promised = epoch;
      if (held && c.owner == e.owner && c.phase == NUMBERING && s.broker[b].promised == highest && beyond == highest) {  // RELIST
        e.no_promises = 1;
        for (int t = 0; t < TOPICS; t++) e.log[t] = c.log[t];
      } else if (is_asked(z, epoch, b)) {
        e.answered |= me;
        merge(z, e, b);
      }
      next(RESTORE, b, list, 0, z);
    }
  }
}

// PROMISE, and the candidate's handling of the answers.
void prepare(const State& s, int epoch) {
  const Epoch& e = s.epoch[epoch];
  int owner = broker_of(e.owner);
  for (int b = 0; b < BROKERS; b++) {
    const Broker& x = s.broker[b];
    if (!x.alive || !is_asked(s, epoch, b) || x.promised > epoch || (x.promised == epoch && b != owner)) continue;
    if (e.answered & bit(rules.answers_for_old_life ? b * LIVES : incarnation(s, b))) continue;
    State z = s;
    z.broker[b].promised = epoch;
    u32 as = bit(incarnation(s, b));
    if (rules.answers_for_old_life)
      for (int i = 0; i < LIVES; i++)
        if (e.source >> (b * LIVES + i) & 1) as = bit(b * LIVES + i);
    z.epoch[epoch].answered |= as;
    if (!rules.header_counts) merge(z, z.epoch[epoch], b);
    next(PROMISE, epoch, b, 0, z);
  }
  bool fetched = true;
  if (rules.header_counts)
    for (int b = 0; b < BROKERS; b++) {
      u32 me = bit(incarnation(s, b));
      if (b == owner || !(e.answered & me) || (e.fetched & me) || !s.broker[b].alive) continue;
      fetched = false;
      State z = s;
      z.epoch[epoch].fetched |= me;
      merge(z, z.epoch[epoch], b);
      next(FETCH, epoch, b, 0, z);
    }
  if (!enough(s, epoch) || !has_synced_answer(e) || !fetched) return;
  State z = s;
  Epoch& x = z.epoch[epoch];
  Broker& me = z.broker[owner];
  x.phase = SYNCING;
  for (int t = 0; t < TOPICS; t++) {
    if (rules.sequence_restarts) memset(&x.log[t], 0, sizeof(Log));
    if (!rules.keep_labels)
      for (Entry& entry : x.log[t].entries)
        if (entry.message) entry.epoch = epoch;
    x.adopted[t] = x.log[t].last;
  }
  if (me.promised <= epoch) {
    me.promised = epoch;
    for (int t = 0; t < TOPICS; t++) {
      me.log[t] = x.log[t];
      x.votes[owner][t] = x.adopted[t];
      if (rules.table == IN_THE_BROKER)
        for (int p = 0; p < PUBLISHERS; p++) x.log[t].table[p] = max(x.log[t].table[p], me.own_table[t][p]);
    }
    me.synced = epoch;
    me.removal = x.removal;
    if (x.members & bit(e.owner)) x.synced |= bit(e.owner);
  }
  for (int t = 0; t < TOPICS; t++) memcpy(x.adopted_table[t], x.log[t].table, PUBLISHERS);
  if (!rules.removal_waits) remove_idle(z, epoch);
  next(ADOPT, epoch, 0, 0, z);
}

// Return the log of a member after Sync. SYNC-WHOLE: the log that the candidate adopted.
Log synced_log(const State& s, const Epoch& e, State& z, int b, int t) {
  const Log& old = s.broker[b].log[t];
  if (!rules.sync_gate) {
    Log log = z.broker[b].log[t];
    for (int n = 0; n < e.adopted[t]; n++)
      if (e.log[t].entries[n].message) log.entries[n] = e.log[t].entries[n];
    log.last = max(log.last, e.adopted[t]);
    for (int p = 0; p < PUBLISHERS; p++) log.table[p] = max(log.table[p], e.log[t].table[p]);
    skip_holes(log);
    return log;
  }
  Log log = e.log[t];  // entries numbered since then come with Accept
  while (log.last > e.adopted[t]) log.entries[--log.last] = {0, 0};
  log.base = min(log.base, log.last);
  for (int p = 0; p < PUBLISHERS; p++) log.table[p] = rules.table_cut ? e.log[t].table[p] : e.adopted_table[t][p];
  if (rules.table_cut == 1)
    for (int n = e.adopted[t]; n < e.log[t].last; n++) {
      u8 m = e.log[t].entries[n].message;
      if (m && id_of(m) - 1 < log.table[publisher_of(m)]) log.table[publisher_of(m)] = id_of(m) - 1;
    }
  if (!rules.cut_tail && old.last > log.last) {
    for (int n = log.last; n < old.last; n++) log.entries[n] = old.entries[n];
    log.last = old.last;
    for (int p = 0; p < PUBLISHERS; p++) log.table[p] = max(log.table[p], old.table[p]);
  }
  if (rules.sync_suffix_only) {
    int known = e.committed[t] > 0 ? e.committed[t] : s.broker[broker_of(e.owner)].committed[t];
    for (int n = 0; n < min(known, (int)log.last); n++) log.entries[n] = n < old.last ? old.entries[n] : Entry{0, 0};
    skip_holes(log);
    z.broker[b].committed[t] = max(z.broker[b].committed[t], log.base);
  }
  return log;
}

void sync(const State& s, int epoch) {
  const Epoch& e = s.epoch[epoch];
  for (int b = 0; b < BROKERS; b++) {
    const Broker& x = s.broker[b];
    if (!x.alive || b == broker_of(e.owner)) continue;
    bool listed = counts_in(s, e.members, b);
    if (!listed && !rules.count_learners && !rules.learners) continue;
    if ((rules.member_promises && x.promised > epoch) || x.synced >= epoch || (e.synced & bit(incarnation(s, b)))) continue;
    State z = s;
    Broker& me = z.broker[b];
    me.promised = max(me.promised, (u8)epoch);
    for (int t = 0; t < TOPICS; t++) {
      me.log[t] = synced_log(s, e, z, b, t);
      if (listed || rules.count_learners) z.epoch[epoch].votes[b][t] = e.adopted[t];
    }
    me.synced = epoch;
    me.removal = rules.removal_travels ? e.removal : 0;
    z.epoch[epoch].synced |= bit(incarnation(s, b));
    if (rules.deliver_at_sync && e.copies == 2 && listed)
      for (int t = 0; t < TOPICS; t++) deliver(z, b, t, e.adopted[t]);
    next(SYNC, epoch, b, 0, z);
  }
}

// ACTIVATE-QUORUM, ACTIVATE-CAS; ACTIVATION-COMMITS.
void activate(const State& s, int epoch) {
  const Epoch& e = s.epoch[epoch];
  int owner = broker_of(e.owner);
  if (e.phase != SYNCING || !owner_lives(s, e) || s.broker[owner].promised > epoch) return;
  int have = count(rules.count_learners || !rules.by_incarnation ? e.synced : e.synced & e.members);
  if (have < e.copies - rules.sync_short && !rules.number_before_sync) return;
  if (epoch <= s.lost_at) {  // IDENTITY-GUARD: versions of records count from 0 again, and may be the same
    if (rules.restore_guard) return;
  } else if (rules.source == LAST_ACTIVATED && rules.activate_cas && s.current != epoch) {
    return;
  }
  State z = s;
  Epoch& x = z.epoch[epoch];
  x.phase = NUMBERING;
  if (rules.source == LAST_ACTIVATED && !rules.commit_before_activation)
    x.activated = s.current == epoch || !rules.activate_cas;
  if (s.current == epoch) check_adopted(z, x);
  if (have >= e.copies || rules.sync_short || rules.number_before_sync || rules.count_learners)
    for (int t = 0; t < TOPICS; t++) {
      x.committed[t] = max(x.committed[t], x.adopted[t]);
      if (!rules.number_before_sync) deliver(z, owner, t, x.adopted[t]);
    }
  remove_idle(z, epoch);
  next(ACTIVATE, epoch, 0, 0, z);
}

// ---- the normal case -----------------------------------------------------------------------------------------------

// Message `id` reaches the coordinator, which answers a duplicate and numbers a new one (NEXT-OR-MARK).
void take(const State& s, int epoch, int t, int p, int id) {
  const Epoch& e = s.epoch[epoch];
  const Log& log = e.log[t];
  int owner = broker_of(e.owner);
  u8 message = message_of(t, p, id);
  int at = 0, last_of_publisher = 0;
  for (int n = 0; n < log.last; n++) {
    if (log.entries[n].message == message) at = n + 1;
    if (log.table[p] && log.entries[n].message == message_of(t, p, log.table[p])) last_of_publisher = n + 1;
  }
  bool by_table = rules.table == IN_THE_LOG || rules.table == IN_THE_BROKER;
  bool known = by_table ? id <= log.table[p] : rules.table == NO_TABLE ? false : at != 0;
  if (known) {
    // DUPLICATE-WAITS: for its own position, or its publisher's last one. An evicted entry was committed.
    int depends = at ? at : rules.duplicate_depends ? last_of_publisher : 0;
    bool committed = depends ? depends <= s.broker[owner].committed[t] : true;
    if ((rules.table == IN_THE_BROKER && !at) || !rules.duplicate_waits) committed = true;
    bool counts = waits(s, t, p, id) || (rules.ack_any && (s.ids[t][p][id - 1] & ANSWER_MASK) == GIVEN_UP);
    if (!committed || !counts) return;
    State z = s;
    settle(z, t, p, id, ACKNOWLEDGED);
    if (at) {
      show(z, t, at, log.entries[at - 1]);
    } else {
      bool shown = false;
      for (Entry entry : s.shown[t]) shown = shown || entry.message == message;
      if (!shown) violated("I1 acknowledged from the table, never committed");
    }
    next(DUPLICATE, epoch, message, 0, z);
    return;
  }
  if (log.last >= SEQUENCES) return;
  if (rules.dense && rules.table == IN_THE_LOG) {
    bool following = log.table[p] && id == log.table[p] + 1;
    bool marked = s.ids[t][p][id - 1] & MARKED;
    if (!following && !(marked && (rules.dense == 1 || !log.table[p]))) return;
  }
  if (!rules.evict_uncommitted && log.last - e.committed[t] >= rules.cache) return;
  State z = s;
  Log& longer = z.epoch[epoch].log[t];
  longer.entries[longer.last++] = {(u8)epoch, message};
  longer.table[p] = max(longer.table[p], (u8)id);
  evict(longer, e.committed[t]);
  Broker& me = z.broker[owner];
  me.log[t] = longer;
  if (rules.table == IN_THE_BROKER) me.own_table[t][p] = max(me.own_table[t][p], (u8)id);
  z.epoch[epoch].votes[owner][t] = longer.last;
  evict(me.log[t], me.committed[t]);
  if (rules.coordinator_delivers) deliver(z, owner, t, longer.last);
  next(NUMBER, epoch, message, 0, z);
}

// FORGET-ALIKE broken: a publisher leaves the table while messages of it are in flight.
void forget(const State& s, int epoch) {
  const Epoch& e = s.epoch[epoch];
  for (int t = 0; t < TOPICS; t++)
    for (int p = 0; p < PUBLISHERS; p++) {
      if (!e.log[t].table[p] || e.committed[t] != e.log[t].last) continue;
      State z = s;
      z.epoch[epoch].log[t].table[p] = z.epoch[epoch].adopted_table[t][p] = 0;
      bool alike = true;
      for (int b = 0; b < BROKERS; b++)
        if (s.broker[b].alive && s.broker[b].synced == epoch) {
          alike = alike && s.broker[b].log[t].last == e.log[t].last;
          z.broker[b].log[t].table[p] = 0;
        }
      if (alike) next(FORGET, epoch, t, p, z);
    }
}

// ACCEPT: `promised = synced = e`, the next of its topic. IMMEDIATE-COMMIT with two copies.
void accept(const State& s, int epoch) {
  const Epoch& e = s.epoch[epoch];
  for (int b = 0; b < BROKERS; b++) {
    const Broker& x = s.broker[b];
    if (!x.alive || b == broker_of(e.owner)) continue;
    bool listed = counts_in(s, e.members, b);
    if (!listed && !rules.unlisted_deliver && !rules.count_learners) continue;
    if ((rules.member_promises && x.promised > epoch) || x.synced > epoch) continue;
    if (listed && !rules.accept_without_sync && x.synced != epoch && (rules.sync_gate || x.synced < epoch)) continue;
    for (int t = 0; t < TOPICS; t++) {
      int has = listed && (e.synced & bit(incarnation(s, b))) ? e.votes[b][t] : x.log[t].last;
      if (has >= e.log[t].last) continue;
      int n = has + 1;
      State z = s;
      Broker& me = z.broker[b];
      if (n <= e.log[t].base) {  // evicted at the coordinator: the whole log is taken, subscribers get `truncated`
        me.log[t] = e.log[t];
        me.removal = 0;
        z.epoch[epoch].votes[b][t] = me.log[t].last;
        me.committed[t] = max(me.committed[t], e.log[t].base);
        if (e.copies == 2 && listed) deliver(z, b, t, me.log[t].last);
        next(ACCEPT, epoch, b, t | 128, z);
        continue;
      }
      Entry entry = e.log[t].entries[n - 1];
      me.log[t].entries[n - 1] = entry;
      me.log[t].last = max((int)me.log[t].last, n);
      if (entry.message) {
        u8& row = me.log[t].table[publisher_of(entry.message)];
        row = max(row, (u8)id_of(entry.message));
      }
      z.epoch[epoch].votes[b][t] = n;
      if ((e.copies == 2 || rules.immediate_with_any_q) && (listed || rules.unlisted_deliver || rules.count_learners))
        deliver(z, b, t, n);
      else
        evict(me.log[t], me.committed[t]);
      if (!listed && !rules.count_learners) z.epoch[epoch].votes[b][t] = 0;
      next(ACCEPT, epoch, b, t, z);
    }
  }
}

// COMMIT, LISTED-VOTES at the coordinator; MARK-DECIDES at the others.
void commit(const State& s, int epoch) {
  const Epoch& e = s.epoch[epoch];
  int owner = broker_of(e.owner);
  if (owner_lives(s, e) && s.broker[owner].synced == epoch)
    for (int t = 0; t < TOPICS; t++) {
      int to = e.committed[t];
      for (int n = to + 1; n <= e.log[t].last; n++) {
        int votes = 0;
        for (int b = 0; b < BROKERS; b++)
          votes += e.votes[b][t] >= n && (rules.count_learners || (e.members & lives_of(b)));
        if (votes >= e.copies) to = n;
      }
      if (to <= e.committed[t]) continue;
      State z = s;
      z.epoch[epoch].committed[t] = to;
      deliver(z, owner, t, to);
      evict(z.epoch[epoch].log[t], to);
      next(COMMIT, epoch, t, 0, z);
    }
  for (int b = 0; b < BROKERS; b++) {
    const Broker& x = s.broker[b];
    if (!x.alive || x.synced != epoch || b == owner || !(e.members & bit(incarnation(s, b)))) continue;
    for (int t = 0; t < TOPICS; t++) {
      int to = min({(int)e.committed[t], (int)x.log[t].last, (int)e.votes[b][t]});
      if (to <= x.committed[t]) continue;
      State z = s;
      deliver(z, b, t, to);
      next(LEARN_COMMIT, epoch, b, t, z);
    }
  }
}

// ---- faults and clients -----------------------------------------------------------------------------------------------------

void publishers(const State& s) {
  bool may_give_up = budget.given_up && given_up(s) < budget.given_up;
  for (int t = 0; t < TOPICS; t++)
    for (int p = 0; p < PUBLISHERS; p++)
      for (int id = 1; id <= IDS; id++) {
        if (!waits(s, t, p, id)) continue;
        u8 message = message_of(t, p, id);
        for (Entry entry : s.shown[t])  // any contact broker that knows of the commit
          if (entry.message == message) {
            State z = s;
            settle(z, t, p, id, ACKNOWLEDGED);
            next(ACKNOWLEDGE, message, 0, 0, z);
            break;
          }
        if (may_give_up) {
          State z = s;
          settle(z, t, p, id, GIVEN_UP);
          next(GIVE_UP, message, 0, 0, z);
        }
      }
}

void faults(const State& s) {
  for (int b = 0; b < BROKERS; b++) {
    const Broker& x = s.broker[b];
    if (x.alive && s.crashes < budget.crashes) {
      State z = s;
      z.crashes++;
      memset(&z.broker[b], 0, sizeof(Broker));
      z.broker[b].life = x.life;
      next(CRASH, b, 0, 0, z);
    }
    if (!x.alive && s.restarts < budget.restarts && x.life + 1 < LIVES) {
      State z = s;
      z.restarts++;
      if (!rules.lives_repeat || !s.lost) z.broker[b].life++;
      z.broker[b].alive = 1;
      z.joined |= 1 << b;
      next(RESTART, b, 0, 0, z);
    }
  }
  if (s.losses < budget.losses) {
    for (int record = 0; record <= (rules.rollback ? s.current - 1 : 0); record++) {
      State z = s;
      z.losses++;
      z.ephemeral = NOBODY;
      z.lost = !record;
      z.lost_at = s.current;
      z.joined = 0;
      if (record && z.current < EPOCHS) {  // numbers are not given again, so that the older record stands for the newest
        z.epoch[++z.current] = s.epoch[record];
        z.epoch[z.current].phase = NONE;
        z.epoch[z.current].activated = 0;
        if (s.epoch[record].activated) z.epoch[z.current].source = s.epoch[record].members;
        z.epoch[z.current].source_epoch = s.epoch[record].activated ? record : s.epoch[record].source_epoch;
        z.epoch[z.current].source_list = s.epoch[record].activated ? record : s.epoch[record].source_list;
      }
      next(LOSE, record, 0, 0, z);
    }
  }
  for (int b = 0; b < BROKERS; b++)
    if (s.losses && s.broker[b].alive && !(s.joined >> b & 1)) {
      State z = s;
      z.joined |= 1 << b;
      next(JOIN, b, 0, 0, z);
    }
  if (s.ephemeral == NOBODY) return;
  int b = broker_of(s.ephemeral);
  bool dead = !lives(s, s.ephemeral);
  if (dead || s.expiries < budget.expiries) {
    State z = s;
    z.expiries += !dead;
    z.ephemeral = NOBODY;
    next(EXPIRE, b, 0, 0, z);
  }
}

}  // namespace

bool is_answerable(const State& s) {
  const Epoch& c = s.epoch[s.current];
  if (c.activated || !c.source_epoch) return true;
  for (int b = 0; b < BROKERS; b++)
    if (s.broker[b].alive && (c.source & bit(incarnation(s, b))) && s.broker[b].synced >= c.source_epoch) return true;
  return false;
}

bool restorable(const State& s) { return highest_synced(s, living(s)) && may_restore(s, living(s), false); }

size_t steps_so_far() { return collected ? collected->size() : 0; }

int lowest(const State& s, int topic, int publisher) {
  for (int id = 1; id <= IDS; id++)
    if (!(s.ids[topic][publisher][id - 1] & ANSWER_MASK)) return id;
  return IDS + 1;
}

void successors(const State& s, Steps& out) {
  collected = &out;
  take_over(s);
  relist(s, false);
  relist(s, true);
  restore(s);
  for (int epoch = 1; epoch <= s.current; epoch++) {
    const Epoch& e = s.epoch[epoch];
    if (!e.phase) continue;
    int owner = broker_of(e.owner);
    bool lives = owner_lives(s, e);
    bool obeys = lives && (s.broker[owner].promised <= epoch || !rules.coordinator_promises);
    bool ended = epoch <= s.lost_at && (s.joined >> owner & 1);  // joining ends a takeover of before the loss
    if (e.phase == PREPARING && obeys && !ended) prepare(s, epoch);
    if (e.phase >= SYNCING) sync(s, epoch);
    activate(s, epoch);
    if (e.phase != NUMBERING) continue;
    if (!e.activated && lives && s.current == epoch &&
        (rules.source == ALL_SINCE_ACTIVATED || rules.commit_before_activation)) {
      State z = s;
      z.epoch[epoch].activated = 1;
      next(RECORD_ACTIVATED, epoch, 0, 0, z);
    }
    if (obeys && (s.broker[owner].synced == epoch || !rules.coordinator_promises))  // NUMBER-PROMISED
      for (int t = 0; t < TOPICS; t++)
        for (int p = 0; p < PUBLISHERS; p++)
          for (int id = 1; id <= IDS && issued(s, t, p, id); id++) take(s, epoch, t, p, id);
    if (rules.forget_early && obeys && s.broker[owner].synced == epoch) forget(s, epoch);
    accept(s, epoch);
    commit(s, epoch);
  }
  publishers(s);
  faults(s);
}

void begin(State& s) {
  memset(&s, 0, sizeof s);
  for (int t = 0; t < TOPICS; t++)
    for (int p = 0; p < PUBLISHERS; p++) mark(s, t, p, -99);
  for (Broker& b : s.broker) b.alive = 1;
  if (rules.bootstrap) {
    s.epoch[0].copies = copies_of(1);
    s.ephemeral = NOBODY;
    return;
  }
  s.current = 1;
  Epoch& e = s.epoch[1];
  e.phase = NUMBERING;
  e.activated = e.source_epoch = e.source_list = 1;
  e.copies = copies_of(1);
  int listed = rules.first_list ? rules.first_list : BROKERS;
  for (int b = 0; b < listed; b++) {
    e.members |= bit(b * LIVES);
    s.broker[b].promised = s.broker[b].synced = 1;
  }
  e.synced = e.source = e.members;
}
