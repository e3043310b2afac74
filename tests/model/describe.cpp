#include "describe.h"

using std::string;
using std::to_string;

namespace {

string name(int b, int life) { return string(1, 'A' + b) + string(life, '\''); }
string name(const State& s, int b) { return name(b, s.broker[b].life); }

string set(u32 list) {
  string text;
  for (int i = 0; i < BROKERS * LIVES; i++)
    if (list >> i & 1) text += (text.empty() ? "" : ",") + name(i / LIVES, i % LIVES);
  return "{" + text + "}";
}

string message(u8 m) {
  string topic = TOPICS > 1 ? "/t" + to_string(topic_of(m)) : "";
  return string(1, 'm' + publisher_of(m)) + to_string(id_of(m)) + topic;
}

string log(const Log& log) {
  string text;
  for (int n = 0; n < log.last; n++) {
    Entry entry = log.entries[n];
    text += (n ? " " : "") + (entry.message ? to_string(entry.epoch) + ":" + message(entry.message) : "-");
  }
  return "[" + text + "]";
}

string logs(const Log* first) {
  string text;
  for (int t = 0; t < TOPICS; t++) text += log(first[t]);
  return text;
}

}  // namespace

string describe(const State& s, Action x, const State& z) {
  string of_a = " of " + to_string(x.a);
  switch (x.kind) {
    case TAKE: case SUSPECT:
      return (x.kind == SUSPECT ? "suspecting the owner, " : "") + name(s, x.a) + (x.c ? " (read it before its activation)" : "") + " writes record " + to_string(z.current) +
             ", members " + set(z.epoch[z.current].members) + ", source " + set(z.epoch[z.current].source);
    case RELIST:
      return name(s, x.a) + " re-lists" + (x.b ? " and removes the idle topic" : "") + ": record " +
             to_string(z.current) + ", members " + set(z.epoch[z.current].members);
    case PROMISE:
      return name(s, x.b) + " promises " + to_string(x.a) + ", synced " + to_string(s.broker[x.b].synced) + " " +
             logs(s.broker[x.b].log);
    case FETCH: return "the entries of " + name(s, x.b) + " reach the candidate" + of_a;
    case ADOPT: return "the candidate" + of_a + " adopts " + logs(z.epoch[x.a].log);
    case SYNC: return name(s, x.b) + " takes the Sync" + of_a;
    case ACTIVATE: return "epoch " + to_string(x.a) + " is activated, its coordinator numbers";
    case RECORD_ACTIVATED: return "the activation" + of_a + " is recorded";
    case NUMBER: {
      const Epoch& e = s.epoch[x.a];
      bool following = id_of(x.b) > 1 && id_of(x.b) == e.log[topic_of(x.b)].table[publisher_of(x.b)] + 1;
      return "the coordinator" + of_a + " (" + name(broker_of(e.owner), e.owner % LIVES) + ") numbers " + message(x.b) +
             (following ? " (the next)" : " (by its mark)") + " -> " + log(z.epoch[x.a].log[topic_of(x.b)]);
    }
    case DUPLICATE: return "the coordinator" + of_a + " acknowledges the duplicate " + message(x.b);
    case ACCEPT: {
      int t = x.c & 127;
      return name(s, x.b) + " accepts from epoch " + to_string(x.a) + (x.c & 128 ? ", over a gap" : "") + " " +
             log(z.broker[x.b].log[t]) + ", delivered to " + to_string(z.broker[x.b].committed[t]);
    }
    case COMMIT: return "the coordinator" + of_a + " commits up to " + to_string(z.epoch[x.a].committed[x.b]);
    case LEARN_COMMIT: return name(s, x.b) + " learns of the commit up to " + to_string(z.broker[x.b].committed[x.c]);
    case ACKNOWLEDGE: return "the publisher gets the acknowledgement of " + message(x.a);
    case GIVE_UP: return "the publisher gives " + message(x.a) + " up";
    case FORGET: return "the coordinator" + of_a + " forgets publisher " + string(1, 'm' + x.c);
    case LOSE: return "ZooKeeper loses its records" + (x.a ? " since " + to_string(x.a) : string());
    case JOIN: return name(s, x.a) + " learns that ZooKeeper lost its records";
    case RESTORE:
      return name(s, x.a) + " writes record " + to_string(z.current) + " from the copies of epoch " +
             to_string(z.epoch[z.current].source_epoch) + ", members " + set(z.epoch[z.current].members) +
             ", source " + set(z.epoch[z.current].source);
    case CRASH: return name(s, x.a) + " crashes";
    case RESTART: return name(z, x.a) + " starts, as a learner";
    case EXPIRE: return "the coordinator's ephemeral of " + string(1, 'A' + x.a) + " goes";
  }
  return "?";
}
