/** What the console knows of a cluster: the last answer of each broker, rates, takeovers, health. No clock, no page. */

const FRESH = 15; // seconds for which an answer counts
const MISSED = 2.5; // seconds after which a failed request counts: the broker may have answered on another way
const SILENT = 10; // seconds without a delivery after which the health says so
const MAX_LINE = 200; // entries of the time line

/** Return the address of /console/status beside a broker's WebSocket URL. */
export function statusUrl(server) {
  const url = new URL(server);
  url.protocol = url.protocol === "wss:" ? "https:" : "http:";
  url.pathname = url.pathname.replace(/\/(ws)?$/, "") + "/console/status";
  return url.href;
}

const CRC = Uint32Array.from({ length: 256 }, (_, value) => {
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

/** Return the number of a topic's group: the CRC-32 of its name, modulo the number of groups. */
export function topicGroup(topic, groups) {
  let crc = 0xffffffff;
  for (const byte of new TextEncoder().encode(topic)) crc = CRC[(crc ^ byte) & 255] ^ (crc >>> 8);
  return ((crc ^ 0xffffffff) >>> 0) % groups;
}

const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
const sum = (statuses, name) => statuses.reduce((total, status) => total + status[name], 0);

/** All times are seconds of one clock. */
export class Cluster {
  name = "";
  servers = []; // the URLs of the last answer
  groups = []; // by number: {coordinator, epoch, members, topics, uncommitted, waiting}
  line = []; // {time, text}, the newest first
  added = 0; // entries of the time line so far
  #brokers = new Map(); // name -> {status, at, millis, rates, answering, missed}
  #refusal = ""; // why the brokers tell this page nothing
  #deliveredAt = null; // when a broker last delivered while this page looked
  #publishedAt = null;

  /** Take an answer of a broker, which came after `millis`. */
  take(status, now, millis) {
    this.name = status.cluster;
    this.servers = status.servers.map(({ url }) => url);
    this.#refusal = "";
    const before = this.#brokers.get(status.broker);
    const entry = { status, at: now, millis, rates: before?.rates ?? null, answering: true, missed: false };
    if (before && status.incarnation !== before.status.incarnation) {
      this.note(now, `${status.broker} was started again`);
      entry.rates = null;
    } else if (before) {
      if (!before.answering) this.note(now, `${status.broker} answers again`);
      const seconds = status.uptime_seconds - before.status.uptime_seconds;
      if (seconds < 0.5) {
        Object.assign(before, { at: now, answering: true, missed: false }); // the same answer again
        return;
      }
      const rate = (name) => Math.max(0, status[name] - before.status[name]) / seconds;
      entry.rates = { published: rate("published"), delivered: rate("delivered"), sent: rate("sent_bytes") };
      if (entry.rates.delivered) this.#deliveredAt = now;
      if (entry.rates.published) this.#publishedAt = now;
    }
    this.#deliveredAt ??= now;
    this.#publishedAt ??= now;
    this.#brokers.set(status.broker, entry);
    this.#takeGroups(status, now);
  }

  /** A request to a broker failed. */
  miss(name, now) {
    const broker = this.#brokers.get(name);
    if (broker && now - broker.at >= MISSED) broker.missed = true;
  }

  /** Take the refusal of a broker to tell this page anything. */
  refuse(text) {
    this.#refusal = text;
  }

  #takeGroups(status, now) {
    const moves = new Map(); // "from → to" -> group numbers
    status.groups.forEach(([coordinator, epoch, members, topics, uncommitted, waiting], number) => {
      const known = this.groups[number];
      const own = coordinator === status.broker;
      // A coordinator speaks for its groups. Of what others heard only news count.
      if (known && !(own ? epoch >= known.epoch : epoch > known.epoch && coordinator !== known.coordinator)) {
        if (known.coordinator === "" || !this.#isFresh(known.coordinator, now)) known.waiting = waiting;
        return;
      }
      if (known?.coordinator && coordinator && known.coordinator !== coordinator) {
        const move = `${known.coordinator} → ${coordinator}`;
        moves.set(move, [...(moves.get(move) ?? []), number]);
      }
      this.groups[number] = { coordinator, epoch, members, topics, uncommitted, waiting };
    });
    for (const [move, numbers] of moves) {
      const which = numbers.length > 8 ? `${numbers.slice(0, 8).join(", ")}, …` : numbers.join(", ");
      this.note(now, `takeover of ${count(numbers.length, "topic group")} (${which}): ${move}`);
    }
  }

  /** Leave out the seconds until `now` in which the page did not ask: it was hidden, or the machine slept. */
  skip(seconds, now) {
    const later = (time) => Math.min(time + seconds, now);
    for (const broker of this.#brokers.values()) broker.at = later(broker.at);
    if (this.#deliveredAt === null) return;
    this.#deliveredAt = later(this.#deliveredAt);
    this.#publishedAt = later(this.#publishedAt);
  }

  /** Note brokers that stopped answering, and forget those that left the cluster. */
  tick(now) {
    const named = new Set(this.#fresh(now).flatMap(({ status }) => status.brokers));
    for (const [name, broker] of this.#brokers) {
      if (isFresh(broker, now)) continue;
      if (named.size && !named.has(name)) {
        this.#brokers.delete(name);
        this.note(now, `${name} left the cluster`);
      } else if (broker.answering) {
        broker.answering = false;
        broker.rates = null;
        this.note(now, `${name} does not answer`);
      }
    }
  }

  /** Add an entry to the time line. */
  note(now, text) {
    this.added += 1;
    this.line.unshift({ time: now, text });
    this.line.splice(MAX_LINE);
  }

  #isFresh(name, now) {
    return this.#brokers.has(name) && isFresh(this.#brokers.get(name), now);
  }

  #fresh(now) {
    return [...this.#brokers.values()].filter((broker) => isFresh(broker, now));
  }

  /** Return {name, state, level, status, rates, millis, coordinates} of each broker, by name. Without an answer `status` is null. */
  brokers(now) {
    const fresh = this.#fresh(now);
    const names = new Set(fresh.flatMap(({ status }) => status.brokers));
    for (const name of this.#brokers.keys()) names.add(name);
    return [...names].sort().map((name) => {
      const entry = this.#isFresh(name, now) ? this.#brokers.get(name) : null;
      const coordinates = this.groups.filter(({ coordinator }) => coordinator === name).length;
      const [state, level] = entry ? ownState(entry.status) : heardState(name, fresh);
      return { name, state, level, status: entry?.status ?? null, rates: entry?.rates, millis: entry?.millis, coordinates };
    });
  }

  /** Return the sums over all brokers that answer. Rates are null until each answered twice. */
  totals(now) {
    const fresh = this.#fresh(now);
    const statuses = fresh.map(({ status }) => status);
    const known = fresh.filter(({ rates }) => rates);
    const rate = (name) => (known.length ? known.reduce((total, { rates }) => total + rates[name], 0) : null);
    return {
      clients: sum(statuses, "clients"),
      subscriptions: sum(statuses, "subscriptions"),
      topics: Math.max(0, ...statuses.map(({ topics }) => topics)),
      queued: sum(statuses, "queue_bytes"),
      slow: sum(statuses, "paused"),
      uncommitted: sum(statuses, "replication_lag"),
      published: rate("published"),
      delivered: rate("delivered"),
      sent: rate("sent"),
      zookeeper: `${statuses.filter(({ zookeeper }) => zookeeper.connected).length} of ${statuses.length} brokers`,
      slowest: Math.max(0, ...fresh.map(({ millis }) => millis)),
    };
  }

  /** Return [level, text]: "bad", "warning", "note" or "good", and what a person should know first. */
  health(now) {
    const fresh = this.#fresh(now);
    if (!fresh.length) return ["bad", this.#refusal || "No broker answers this page."];
    const brokers = this.brokers(now);
    const parts = [];
    let level = "good";
    const say = (how, text) => {
      parts.push(text);
      if (level !== "bad") level = how;
    };
    const bad = brokers.filter((broker) => broker.level === "bad");
    if (bad.length) {
      const which = bad.map(({ name, state }) => `${name} (${state})`).join(", ");
      say("bad", `${count(bad.length, "broker")} of ${brokers.length} not serving: ${which}.`);
    }
    const waiting = this.groups.filter((group) => group.waiting).length;
    if (waiting) say("bad", `${count(waiting, "topic group")} without a coordinator that serves.`);
    const cut = fresh.filter(({ status }) => !status.zookeeper.connected).map(({ status }) => status.broker);
    if (cut.length) say("warning", `Not connected to ZooKeeper: ${cut.join(", ")}.`);
    const unseen = brokers.filter((broker) => broker.level === "warning");
    if (unseen.length) say("warning", unseen.map(({ name, state }) => `${name}: ${state}.`).join(" "));
    const clients = sum(fresh.map(({ status }) => status), "clients");
    const silent = Math.floor(now - this.#deliveredAt);
    if (clients && silent >= SILENT) {
      const unpublished = now - this.#publishedAt >= SILENT;
      const subscribed = fresh.some(({ status }) => status.subscriptions);
      const reason = unpublished ? "nothing is published" : subscribed ? "publications are accepted" : "none subscribed to a topic";
      const text = `Nothing was delivered for more than ${atLeast(silent)} though ${count(clients, "client")} ${clients === 1 ? "is" : "are"} connected: ${reason}.`;
      say(unpublished || !subscribed ? (level === "good" ? "note" : level) : "warning", text);
    }
    if (!parts.length) parts.push(`All ${count(brokers.length, "broker")} serve.`);
    return [level, parts.join(" ")];
  }
}

/** Return the largest of a few times that are not above `seconds`: a text that screen readers speak must rarely change. */
function atLeast(seconds) {
  const [, text] = [[3600, "1 h"], [600, "10 min"], [60, "1 min"], [30, "30 s"], [0, `${SILENT} s`]].find(([least]) => seconds >= least);
  return text;
}

/** Return whether the last answer of a broker still counts. */
const isFresh = ({ at, missed }, now) => !missed && now - at < FRESH;

/** Return [state, level] of a broker that answers. */
function ownState(status) {
  if (status.fenced) return ["fenced: cut off from the others", "bad"];
  if (status.draining) return ["draining", "warning"];
  return status.ready ? ["ready", ""] : [`not ready: ${status.reason}`, "bad"];
}

/** Return [state, level] of a broker that does not answer this page, from what others say. */
function heardState(name, fresh) {
  if (fresh.some(({ status }) => status.live.includes(name))) return ["live, but this page does not reach it", "warning"];
  return ["gone", "bad"];
}
