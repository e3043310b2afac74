/** The page of the console: asks the brokers, shows what they say, and follows a topic with the JavaScript client. What comes from others becomes text, never markup. */

import { FallbackSocket } from "./client/http.js";
import { Client } from "./client/index.js";
import { Cluster, statusUrl, topicGroup } from "./cluster.js";

const INTERVAL = 2000; // milliseconds between two requests to a broker
const TIMEOUT = 10_000; // milliseconds that a broker has to answer
const REFUSED_WAIT = 30; // seconds after which a broker that refused the token is asked again
const MAX_BROKERS = 100; // addresses that are asked, as many as a cluster may have
const MAX_ROWS = 200; // rows of the table of groups
const MAX_MESSAGES = 50; // rows of the table of messages
const MAX_PAYLOAD = 400; // characters of a payload that are shown

const OWN = new URL("status", import.meta.url).href;
const SOCKET = new URL("../ws", import.meta.url).href.replace(/^http/, "ws");

const cluster = new Cluster();
const element = (id) => document.getElementById(id);
const seconds = () => Date.now() / 1000;
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const number = (value) => (value === null || value === undefined ? "–" : whole.format(value));

function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024 || unit === "GiB") return `${value.toFixed(value < 10 && unit !== "B" ? 1 : 0)} ${unit}`;
    value /= 1024;
  }
}

function duration(value) {
  if (value < 120) return `${Math.floor(value)} s`;
  return value < 7200 ? `${Math.floor(value / 60)} min` : `${Math.floor(value / 3600)} h`;
}

/** Return a new element with this text and these attributes. */
function make(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) if (value) made.setAttribute(name, value);
  return made;
}

/** Return a row of cells. The first is its header; an array [text] is a number. */
function row(cells, level = "") {
  const made = make("tr", "", { "data-level": level });
  made.append(
    ...cells.map((cell, index) => {
      const [text, kind] = Array.isArray(cell) ? [cell[0], "number"] : [cell, ""];
      return make(index ? "td" : "th", text, { class: kind, scope: index ? "" : "row" });
    }),
  );
  return made;
}

function pairs(list) {
  return list.map(([name, text]) => {
    const made = document.createElement("div");
    made.append(make("dt", name), make("dd", text));
    return made;
  });
}

/** Replace the children that changed. A selection and a screen reader's place in the others stay. */
function update(id, children) {
  const parent = element(id);
  children.forEach((child, index) => {
    const shown = parent.children[index];
    if (!shown) parent.append(child);
    else if (!shown.isEqualNode(child)) shown.replaceWith(child);
  });
  while (parent.children.length > children.length) parent.lastElementChild.remove();
}

/** Set the text of an element if it changed, so that a screen reader says it once. */
function say(id, text) {
  if (element(id).textContent !== text) element(id).textContent = text;
}

// ---- the brokers ---------------------------------------------------------------------------------------------------

let statusToken = "";
const asking = new Set();
const names = new Map(); // address -> name of the broker that answered there
const refused = new Map(); // address -> when it may be asked again, as it refused the token

/** Return [status code, content] of an answer: what a broker says, or the text of a refusal. Return [0, reason] when the
 * broker is not there, does not let this page ask, or another server answers in its place. */
async function request(url) {
  const headers = statusToken ? { Authorization: `Bearer ${statusToken}` } : {};
  const options = { headers, cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(TIMEOUT) };
  try {
    const answer = await fetch(url, options);
    return [answer.status, answer.ok ? await answer.json() : await answer.text()];
  } catch (error) {
    return [0, error.name];
  }
}

async function ask(url) {
  if (asking.has(url) || seconds() < (refused.get(url) ?? 0)) return;
  asking.add(url);
  const begin = performance.now();
  const [code, content] = await request(url);
  asking.delete(url);
  if (code === 200) {
    refused.delete(url);
    names.set(url, content.broker);
    cluster.take(content, seconds(), performance.now() - begin);
  } else if (code === 401) {
    if (!refused.has(url)) element("tokens").open = true; // once: a person may close it
    refused.set(url, seconds() + REFUSED_WAIT);
    cluster.refuse(`${statusToken ? "The token was refused: " : ""}${content.trim()}`);
  } else if (content !== "TimeoutError") {
    cluster.miss(names.get(url), seconds());
  }
}

const others = new Set(); // the addresses of brokers that were named, the last ones last, but for that of this page

function poll() {
  if (document.hidden) return;
  for (const url of cluster.servers.map(statusUrl)) {
    others.delete(url);
    others.add(url);
  }
  others.delete(OWN);
  for (const url of others) {
    if (others.size <= MAX_BROKERS) break;
    for (const known of [others, names, refused]) known.delete(url);
  }
  for (const url of [OWN, ...others]) ask(url).then(show);
  show();
}

// ---- what is shown -------------------------------------------------------------------------------------------------

let shownLine = 0;
let shownAt = seconds();

function show() {
  const now = seconds();
  if (now - shownAt > (2 * INTERVAL) / 1000) cluster.skip(now - shownAt, now);
  shownAt = now;
  cluster.tick(now);
  const [level, text] = cluster.health(now);
  element("health").dataset.level = level;
  say("health", text);
  say("cluster", cluster.name);
  const totals = cluster.totals(now);
  const brokers = cluster.brokers(now);
  update(
    "now",
    pairs([
      ["brokers ready", `${brokers.filter(({ state }) => state === "ready").length} of ${brokers.length}`],
      ["clients", number(totals.clients)],
      ["subscriptions", number(totals.subscriptions)],
      ["topics", number(totals.topics)],
      ["published/s", number(totals.published)],
      ["delivered/s", number(totals.delivered)],
      ["sent/s", bytes(totals.sent)],
      ["queued", bytes(totals.queued)],
      ["slow clients", number(totals.slow)],
      ["uncommitted", number(totals.uncommitted)],
      ["slowest answer", `${number(totals.slowest)} ms`],
      ["ZooKeeper", totals.zookeeper],
    ]),
  );
  update(
    "brokers",
    brokers.map(({ name, state, level, status, rates, millis, coordinates }) => {
      if (!status) return row([name, state, ...Array(6).fill(["–"]), [number(coordinates)], "–", ["–"], ["–"], ["–"]], level);
      const { connected, age_seconds: age } = status.zookeeper;
      return row(
        [
          name, state, [number(status.clients)], [number(rates?.published)], [number(rates?.delivered)],
          [bytes(rates?.sent)], [bytes(status.queue_bytes)], [number(status.paused)], [number(coordinates)],
          connected ? "connected" : `cut off, last heard ${age < 0 ? "never" : `${Math.floor(age)} s ago`}`,
          [`${number(millis)} ms`], [bytes(status.memory_bytes)], [duration(status.uptime_seconds)],
        ],
        level,
      );
    }),
  );
  const slow = brokers.flatMap(({ name, status }) =>
    (status?.slow ?? []).map((client) =>
      row([
        name, [String(client.connection)], [bytes(client.queued_bytes)], [number(client.queued_publications)],
        [`${client.lag_seconds.toFixed(1)} s`], [number(client.subscriptions)],
      ]),
    ),
  );
  update("slow", slow);
  element("slow-region").hidden = !slow.length;
  say("slow-note", slow.length ? "Those with the longest queues, by broker." : "No client is slow.");
  showGroups();
  showLine();
  showPlace();
}

function showGroups() {
  const groups = cluster.groups.map((group, index) => ({ ...group, index }));
  groups.sort((one, other) => Number(Boolean(other.waiting)) - Number(Boolean(one.waiting)) || one.index - other.index);
  const more = groups.length > MAX_ROWS ? ` The first ${MAX_ROWS} are shown, those that wait before the others.` : "";
  say("groups-note", `${groups.length} groups.${more}`);
  update(
    "groups",
    groups.slice(0, MAX_ROWS).map(({ index, coordinator, epoch, members, topics, uncommitted, waiting }) =>
      row([[index], coordinator || "none", [epoch], [members], [number(topics)], [number(uncommitted)], waiting], waiting ? "bad" : ""),
    ),
  );
}

function showLine() {
  const fresh = Math.min(cluster.added - shownLine, cluster.line.length);
  shownLine = cluster.added;
  const entries = cluster.line.slice(0, fresh).map(({ time, text }) => {
    const made = document.createElement("li");
    made.append(clock(time), ` ${text}`);
    return made;
  });
  element("line").prepend(...entries);
  while (element("line").children.length > cluster.line.length) element("line").lastElementChild.remove();
}

function clock(time) {
  const at = new Date(time * 1000);
  return make("time", at.toLocaleTimeString("en-GB"), { datetime: at.toISOString() });
}

function note(text) {
  cluster.note(seconds(), text);
  showLine();
}

// ---- a topic -------------------------------------------------------------------------------------------------------

let clientToken = "";
let client = null;
let followed = null; // the topic, its stream, counts, and the messages that came since the last frame

/** Return the client, connected or about to be. The page has none until a topic is wanted. */
function connected() {
  if (client) return client;
  const token = clientToken || undefined;
  // A page over TLS may only connect to brokers over TLS.
  const servers = [...new Set([SOCKET, ...cluster.servers])].filter((url) => location.protocol === "http:" || url.startsWith("wss:"));
  const made = new Client(servers, { name: "console", token, WebSocket: FallbackSocket });
  client = made;
  const tell = (text, line = text) => {
    if (client !== made) return;
    say("link", `This page is ${text}.`);
    note(`this page is ${line}`);
  };
  made.addEventListener("connecting", () => client === made && say("link", "This page is connecting."));
  made.addEventListener("connected", ({ broker }) => tell(`connected to ${broker}`));
  made.addEventListener("moved", ({ broker, cause }) => tell(`connected to ${broker}`, `moved to ${broker} (${cause})`));
  made.addEventListener("disconnected", ({ code, reason, final }) => {
    tell(`disconnected: ${code} ${reason}${final ? "" : "; it connects again"}`);
    if (final && client === made) client = null;
  });
  made.addEventListener("ready", ({ seconds: gap }) => gap !== null && note(`this page goes on after ${gap.toFixed(1)} s`));
  made.addEventListener("problem", ({ text }) => client === made && say("link", text));
  made.addEventListener("receipt", ({ topic, position }) => {
    if (followed?.topic !== topic) return;
    followed.receipts += 1;
    followed.last = position ?? followed.last;
    plan();
  });
  made.connect().catch(() => {}); // `disconnected` said it
  return made;
}

function follow(topic) {
  stop();
  const stream = connected().subscribe(topic, { snapshot: true });
  const mine = { topic, stream, received: 0, shown: 0, at: performance.now(), rate: 0, gaps: 0, receipts: 0, last: "–", messages: [] };
  followed = mine;
  element("messages").replaceChildren();
  stream.addEventListener("message", ({ message }) => {
    mine.received += 1;
    mine.last = message.position;
    mine.messages.push({ message, arrived: seconds() });
    if (mine.messages.length > MAX_MESSAGES) mine.messages.shift();
    plan();
  });
  stream.addEventListener("gap", ({ kind, first, last }) => {
    mine.gaps += 1;
    note(`${topic}: missing publications (${kind}${first === null ? "" : ` ${first} to ${last}`})`);
    plan();
  });
  stream.addEventListener("refused", ({ text, code }) => {
    note(`${topic} was refused: ${code} ${text}`);
    say("link", `${topic} was refused: ${text}`);
    if (followed === mine) stop();
  });
  element("stop").disabled = false;
  plan();
  showPlace();
}

function stop() {
  followed?.stream.close();
  followed = null;
  element("stop").disabled = true;
  showPlace();
}

/** Say where the topic in the form is: its group and coordinator. */
function showPlace() {
  const topic = followed?.topic ?? element("topic").value;
  if (!topic || !cluster.groups.length) return say("place", "");
  const group = topicGroup(topic, cluster.groups.length);
  const { coordinator, epoch } = cluster.groups[group] ?? {};
  say("place", `${followed ? "Following " : ""}${topic}: topic group ${group}, coordinator ${coordinator || "none"}, epoch ${epoch}.`);
}

let planned = false;

/** Show the messages with the next frame. However many arrive, the page draws once a frame. */
function plan() {
  if (planned) return;
  planned = true;
  requestAnimationFrame(() => {
    planned = false;
    if (followed) showMessages(followed);
  });
}

function showMessages(mine) {
  const elapsed = (performance.now() - mine.at) / 1000;
  if (elapsed >= 1) {
    mine.rate = (mine.received - mine.shown) / elapsed;
    Object.assign(mine, { shown: mine.received, at: performance.now() });
  }
  update(
    "counts",
    pairs([
      ["received", number(mine.received)], ["received/s", number(mine.rate)], ["last position", mine.last],
      ["receipts", number(mine.receipts)], ["gaps", number(mine.gaps)],
    ]),
  );
  const rows = element("messages");
  rows.prepend(...mine.messages.splice(0).map(messageRow).reverse());
  while (rows.children.length > MAX_MESSAGES) rows.lastElementChild.remove();
  element("messages-region").hidden = !rows.children.length;
}

function messageRow({ message, arrived }) {
  const { text } = message;
  const delay = message.sent === null ? "–" : `${number((arrived - message.sent) * 1000)} ms`;
  const time = make("th", "", { scope: "row" });
  time.append(clock(arrived));
  const made = document.createElement("tr");
  made.append(
    time,
    make("td", text.length > MAX_PAYLOAD ? `${text.slice(0, MAX_PAYLOAD)} …` : text, { class: "payload" }),
    make("td", message.position),
    make("td", message.replayed ? "replayed" : delay, { class: "number" }),
    make("td", number(message.bytes.length), { class: "number" }),
  );
  return made;
}

let publishing = false;

async function publish() {
  const topic = element("topic").value;
  if (!topic) return element("topic").focus();
  if (publishing) return; // a disabled button would lose the focus
  publishing = true;
  say("published", "Publishing …");
  try {
    const begin = performance.now();
    const position = await connected().publish(topic, element("payload").value, { signal: AbortSignal.timeout(20_000) });
    say("published", `Stored at position ${position} after ${number(performance.now() - begin)} ms.`);
  } catch (error) {
    say("published", `Not published: ${error.message}`);
  } finally {
    publishing = false;
  }
}

// ---- what a person does --------------------------------------------------------------------------------------------

function on(id, action) {
  element(id).addEventListener("submit", (event) => {
    event.preventDefault();
    action();
  });
}

on("follow", () => follow(element("topic").value));
on("publish", publish);
on("use-tokens", () => {
  statusToken = element("status-token").value.trim();
  refused.clear();
  if (clientToken !== element("client-token").value.trim()) {
    clientToken = element("client-token").value.trim();
    stop();
    const old = client;
    client = null; // the next one connects with the token
    old?.close();
  }
  poll();
});
element("stop").addEventListener("click", () => {
  stop();
  element("topic").focus(); // the button is disabled now
});
element("topic").addEventListener("input", showPlace);
document.addEventListener("visibilitychange", poll);
setInterval(poll, INTERVAL);
poll();
