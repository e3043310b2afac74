/**
 * The server list: which server to try next, the blacklist, and the backoff before an attempt.
 *
 * A server that failed is blacklisted for a while. When none is left to try, the blacklist is emptied and a new *round*
 * begins. The backoff grows with the rounds and not with the attempts, so that a long list with one live broker is
 * searched at a steady rate. Time and random numbers (0 <= r < 1) are arguments.
 */

const MAX_REPORTED = 100; // malformed entries that are remembered as reported

/** Return the canonical form of a server's URL. Throw TypeError, with the reason, when it is not a WebSocket URL. */
export function normaliseUrl(text) {
  const shown = JSON.stringify(String(text).slice(0, 100));
  const trimmed = String(text).trim();
  if (!/^wss?:\/\//i.test(trimmed)) {
    throw new TypeError(`server ${shown}: a URL such as ws://host:8800/ws or wss://host/ws is needed`);
  }
  let url;
  try {
    url = new URL(trimmed);
  } catch {
    throw new TypeError(`server ${shown}: a host and, if given, a port from 1 to 65535 are needed`);
  }
  if (url.port === "0" || /[#\s@]/.test(trimmed)) {
    throw new TypeError(`server ${shown}: port 0, a user name, a fragment or a space is not allowed`);
  }
  return `${url.protocol}//${url.host}${url.pathname.replace(/\/+$/, "")}${url.search}`;
}

/** Return [servers, problems]: the distinct valid servers {url, weight}, and a line of text for each malformed one. */
export function parseServers(entries) {
  const servers = new Map();
  const problems = new Set();
  for (const entry of entries) {
    const { url: text, weight = 100 } = typeof entry === "string" ? { url: entry } : entry;
    try {
      const url = normaliseUrl(text);
      if (!(weight >= 0)) throw new TypeError(`server ${url}: weight ${weight} is not a number from 0`);
      if (!servers.has(url)) servers.set(url, { url, weight });
    } catch (error) {
      problems.add(error.message);
    }
  }
  return [[...servers.values()], [...problems]];
}

/** The servers of one client: the configured ones, and those of the last list that a broker sent (`learned`). */
export class ServerPool {
  #configured;
  #settings;
  #blacklist = new Map(); // URL -> end of the blacklisting
  #tried = new Set(); // in this round
  #reported = new Set();
  learned = []; // preferred: a broker knows more than the configuration
  rounds = 0; // since the last stable link

  constructor(configured, settings) {
    this.#configured = configured;
    this.#settings = settings;
  }

  /** Replace the learned list by one that the broker at `sender` sent. Return lines about refused entries. */
  learn(servers, sender) {
    const [valid, problems] = this.parse(servers, sender);
    if (valid.length) {
      this.learned = valid;
      const urls = new Set([...valid, ...this.#configured].map((server) => server.url));
      for (const url of this.#blacklist.keys()) if (!urls.has(url)) this.#blacklist.delete(url);
    }
    return problems;
  }

  /**
   * Return [servers, problems] of a list that the broker at `sender` sent. A list that came over TLS leads to no server
   * without: whoever could write to it would read everything.
   */
  parse(servers, sender) {
    let [valid, problems] = parseServers(servers);
    if (sender.startsWith("wss:")) {
      const isPlain = ({ url }) => !url.startsWith("wss:");
      problems.push(...valid.filter(isPlain).map(({ url }) => `server ${url} is without TLS, and its list came over TLS`));
      valid = valid.filter((server) => !isPlain(server));
    }
    problems = problems.filter((line) => !this.#reported.has(line));
    for (const line of problems) if (this.#reported.size < MAX_REPORTED) this.#reported.add(line);
    return [valid, problems];
  }

  /** Blacklist a server that failed or that leaves. */
  avoid(url, now) {
    this.#blacklist.set(url, now + this.#settings.blacklist);
  }

  resetRounds() {
    this.#tried.clear();
    this.rounds = 0;
  }

  /**
   * Return the seconds to wait before the next attempt: full jitter below a bound that doubles with each round and each
   * `penalty`. The bound covers two whole rounds, so one wait of n servers has a share of 1 / (2n - 1) of it.
   */
  backoff(random, penalty) {
    const { firstRetry, backoffCap } = this.#settings;
    const bound = Math.min(backoffCap, firstRetry * 2 ** Math.min(this.rounds + penalty, 30));
    const urls = new Set([...this.learned, ...this.#configured].map(({ url, weight }) => weight > 0 && url));
    urls.delete(false);
    return random * Math.max(firstRetry, bound / Math.max(1, 2 * urls.size - 1));
  }

  /**
   * Choose the server to try now at random by weight, never `exclude`. Return its URL, null when none has a weight above
   * 0. `targets`, which a broker proposed, come first; then untried servers of the learned list, then of the configured
   * one, because a broker may advertise addresses that can't be reached from here; then all, in a new round.
   */
  pick(now, random, exclude, targets = []) {
    if (targets.length) return this.#choose(targets, random());
    const learned = new Set(this.learned.map((server) => server.url));
    const others = this.#configured.filter((server) => !learned.has(server.url));
    const usable = ({ url, weight }) => weight > 0 && url !== exclude;
    const untried = ({ url }) => !this.#tried.has(url) && (this.#blacklist.get(url) ?? now) <= now;
    for (const candidates of [this.learned, others]) {
      const pool = candidates.filter((server) => usable(server) && untried(server));
      if (pool.length) return this.#choose(pool, random());
    }
    const pool = [...this.learned, ...others].filter(usable);
    if (!pool.length) return null;
    this.#blacklist.clear();
    this.#tried.clear();
    this.rounds += 1;
    return this.#choose(pool, random());
  }

  #choose(pool, random) {
    let remainder = random * pool.reduce((sum, server) => sum + server.weight, 0);
    const { url } = pool.find((server) => (remainder -= server.weight) < 0) ?? pool.at(-1);
    this.#tried.add(url);
    return url;
  }
}
