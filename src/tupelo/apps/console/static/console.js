"use strict";
// The console: it shows what the HTTP API answers, always as text, never as markup.

const ROWS_MAX = 500; // changes on the page
const REFRESH_MS = 2000;
const find = (selector, root = document) => root.querySelector(selector);
let token = "";
let leaveView = () => {};

// Talking to the API

class ApiError extends Error {}

async function request(method, path, body, signal) {
  let answer;
  try {
    answer = await fetch(path, {
      method, signal,
      headers: { Authorization: `Bearer ${token}` },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The console does not answer.");
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({ message: answer.statusText }));
  if (said.error !== "WrongToken") throw new ApiError(said.message);
  showLogin();
  throw new ApiError("A valid token is needed.");
}

const get = async (path) => (await request("GET", path)).json();
const post = async (path, body) => (await request("POST", path, body)).json();
const spacePath = (name, operation = "") =>
  `/api/spaces/${name.split("/").map(encodeURIComponent).join("/")}${operation && "/" + operation}`;

async function* events(path, body, signal) {
  const answer = await request("POST", path, body, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n");
      const data = lines.find((line) => line.startsWith("data: "));
      const name = lines.find((line) => line.startsWith("event: "));
      if (data) yield [name ? name.slice(7) : "message", JSON.parse(data.slice(6))];
    }
  }
}

// Entries as Python would write them

function pythonText(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "string") return JSON.stringify(value);
  if (typeof value === "number") return String(value);
  if (Array.isArray(value)) return `[${value.map(pythonText).join(", ")}]`;
  if ("$kind" in value) {
    const fields = Object.entries(value.fields).map(([name, v]) => `${name}=${pythonText(v)}`);
    return `${value.$kind}(${fields.join(", ")})`;
  }
  const keys = Object.keys(value);
  if (keys.length === 1 && keys[0].startsWith("$")) {
    const inner = value[keys[0]];
    if (keys[0] === "$tuple") return tupleText(inner);
    if (keys[0] === "$int") return inner;
    if (keys[0] === "$dict")
      return `{${inner.map(([k, v]) => `${pythonText(k)}: ${pythonText(v)}`).join(", ")}}`;
    if (keys[0] === "$bytes") return `bytes(${JSON.stringify(inner)}, base64)`;
    const names = { $datetime: "datetime", $uuid: "UUID", $decimal: "Decimal", $float: "float" };
    return `${names[keys[0]] || keys[0]}(${JSON.stringify(inner)})`;
  }
  return `{${keys.map((k) => `${JSON.stringify(k)}: ${pythonText(value[k])}`).join(", ")}}`;
}
const tupleText = (items) => `(${items.map(pythonText).join(", ")}${items.length === 1 ? "," : ""})`;
const entryText = (entry) => visible(Array.isArray(entry) ? tupleText(entry) : pythonText(entry));
// Control characters and those that change the direction of text are written out.
const visible = (text) =>
  text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

const returned = (count) =>
  count ? `, came back ${count === 1 ? "once" : `${count} times`}` : "";

// Building the page

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
function svg(tag, attributes = {}) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
function row(...cells) {
  const made = element("tr");
  for (const cell of cells) {
    const [text, className] = Array.isArray(cell) ? cell : [cell, undefined];
    const td = element("td", undefined, className);
    td.append(text instanceof Node ? text : String(text));
    made.append(td);
  }
  return made;
}
function list(parent, items) {
  parent.replaceChildren(...items.map((text) => element("li", visible(text))));
}
function show(name) {
  leaveView();
  leaveView = () => {};
  const view = find("#view");
  view.replaceChildren(find(`#${name}-view`).content.cloneNode(true));
  return view;
}
function say(text, bad = false) {
  const status = find("#status");
  status.textContent = text;
  status.classList.toggle("bad", bad);
}
async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    if (error.name !== "AbortError") say(error.message, true);
    return undefined;
  }
}
function repeat(work) {
  let timer = 0;
  let stopped = false;
  const again = async () => {
    await attempt(work);
    if (!stopped) timer = setTimeout(again, REFRESH_MS);
  };
  again();
  return () => { stopped = true; clearTimeout(timer); };
}
function askFirst(text, yes) {
  const dialog = find("#ask");
  find("#ask-text").textContent = text;
  find("#ask-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

// Views

function showLogin() {
  token = "";
  sessionStorage.removeItem("token");
  const view = show("login");
  find("#login", view).addEventListener("submit", (event) => {
    event.preventDefault();
    token = new FormData(event.target).get("token").trim();
    sessionStorage.setItem("token", token);
    route();
  });
  say("A valid token is needed.", true);
}

function showSpaces() {
  const view = show("spaces");
  const before = new Map();
  leaveView = repeat(async () => {
    const now = performance.now() / 1000;
    const { spaces } = await get("/api/spaces");
    find(".empty", view).hidden = spaces.length > 0;
    find("tbody", view).replaceChildren(...spaces.map((space) => {
      const link = element("a", visible(space.name));
      link.href = `#space/${encodeURIComponent(space.name)}`;
      if (space.refused) return row(link, "", "", "", "", "", "", [visible(space.refused), "bad"]);
      const last = before.get(space.name);
      const rate = last && now > last[0] ? (space.position - last[1]) / (now - last[0]) : null;
      before.set(space.name, [now, space.position]);
      return row(link, [space.entries.toLocaleString(), "n"],
        [space.position && rate !== null ? rate.toFixed(1) : "–", "n"],
        [space.waiting, "n"], [space.transactions, "n"], [space.in_doubt, "n"],
        space.durable ? "in a file" : "in memory",
        [space.health, space.health === "ok" ? "" : "bad"]);
    }));
    say("");
  });
}

function showSpace(name) {
  const view = show("space");
  find("h2", view).textContent = visible(name);
  for (const to of ["live", "history"])
    find(`.to-${to}`, view).href = `#${to}/${encodeURIComponent(name)}`;
  const entries = find(".entries", view);
  const more = find(".more", view);
  const form = find(".browse", view);
  let cursor = null;

  async function browse(next) {
    const template = form.elements.template.value.trim() || null;
    const page = await post(spacePath(name, "entries"), 
      { template, limit: 50, cursor: next, about: true });
    if (next === null) entries.replaceChildren();
    entries.append(...page.entries.map((entry, at) => {
      const item = element("li", entryText(entry));
      item.append(element("span", returned(page.about[at].deliveries), "returned"));
      return item;
    }));
    cursor = page.cursor;
    more.hidden = cursor === null;
    const shown = entries.children.length;
    find(".shown", view).textContent =
      `${shown} shown${cursor === null ? ", all that match" : ", there may be more"}`;
    say("");
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(() => browse(null));
  });
  more.addEventListener("click", () => attempt(() => browse(cursor)));
  find(".take", view).addEventListener("click", () => attempt(async () => {
    const template = form.elements.template.value.trim() || null;
    const { entry } = await post(spacePath(name, "read"), { template });
    if (entry === null) return say("No entry matches.");
    const text = `Take an entry that matches ${template || "ANY"} out of this space, for good? ` +
      `The first match is ${entryText(entry).slice(0, 300)}`;
    if (!await askFirst(text, "Take")) return say("Nothing was taken.");
    const taken = await post(spacePath(name, "take"), { template });
    await browse(null);
    return say(taken.entry === null ? "Another program was faster." :
      `Taken: ${entryText(taken.entry).slice(0, 200)}`);
  }));
  find(".write", view).addEventListener("submit", (event) => {
    event.preventDefault();
    const data = new FormData(event.target);
    const lease = data.get("lease") === "" ? null : Number(data.get("lease"));
    attempt(async () => {
      const said = await post(spacePath(name, "write"), { entry: data.get("entry"), lease });
      for (const id of said.leases || []) held(id, visible(data.get("entry")), lease);
      event.target.elements.entry.value = "";
      await browse(null);
      say("Written.");
    });
  });
  function held(id, entry, lease) {
    const [item, renew, cancel] = ["li", "button", "button"].map((tag) => element(tag));
    const until = element("span");
    const showEnd = () => {
      until.textContent = `until ${new Date(Date.now() + lease * 1000).toLocaleTimeString()} `;
    };
    renew.textContent = `Renew for ${lease} s`;
    cancel.textContent = "Cancel";
    const act = (button, operation, body, done) => button.addEventListener("click", () =>
      attempt(async () => {
        const { state } = await post(`/api/leases/${id}/${operation}`, body);
        done();
        say(`The lease was ${state}.`);
      }));
    act(renew, "renew", { lease }, showEnd);
    act(cancel, "cancel", {}, () => { item.remove(); attempt(() => browse(null)); });
    showEnd();
    item.append(element("code", entry.slice(0, 200)), " ", until, renew, " ", cancel);
    find(".held", view).append(item);
    find(".leases", view).hidden = false;
  }
  attempt(() => browse(null));
  leaveView = repeat(async () => {
    const about = await get(spacePath(name));
    find(".numbers", view).textContent =
      `${about.entries.toLocaleString()} entries · ${about.durable ? "in a file" : "in memory"} · ` +
      `${about.waiting} waiting · ${about.subscriptions} subscriptions · state: ${about.health}`;
    const who = (one) => one.name || one.agent || "unknown";
    list(find(".waiters", view), about.waiters.map((one) =>
      `${who(one)} waits to ${one.take ? "take" : "read"} ${one.template}, ` +
      `${one.seconds.toFixed(1)} s`));
    list(find(".transactions", view), about.open_transactions.map((one) =>
      `${one.id.slice(0, 8)} of ${who(one)}, ${one.state}: ${one.taken} taken, ` +
      `${one.written} written, ${one.read} read` +
      (one.holds.length ? `, holds ${one.holds.join(", ")}${one.taken > one.holds.length ? ", …" : ""}` : "") +
      (one.expires_in === null ? "" : `, ends in ${one.expires_in.toFixed(0)} s`)));
    find(".access", view).replaceChildren(...Object.entries(about.access).flatMap(([what, who]) =>
      [element("dt", what), element("dd", visible(who.join(", ")) || "nobody")]));
    list(find(".doubts", view), about.doubts.map((one) =>
      `${one.name || one.holder} has not confirmed ${one.entries}`));
  });
}

// A small chart of lines over time; null is a gap.
function chart(title, lines, start, seconds, unit) {
  const [WIDTH, HEIGHT] = [300, 90];
  const all = Object.values(lines).flat().filter((one) => one !== null);
  const top = Math.max(...all, 1e-9);
  const count = Math.max(1, ...Object.values(lines).map((line) => line.length));
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none",
    class: "chart", role: "img" });
  const number = (value) => value >= 100 ? value.toFixed(0) : Number(value.toPrecision(2));
  const said = Object.entries(lines).map(([name, values]) => {
    const known = values.filter((one) => one !== null);
    return known.length ? `${name}: last ${number(known.at(-1))}, most ${number(Math.max(...known))}`
      : `${name}: none`;
  });
  drawing.setAttribute("aria-label", `${title}. ${said.join("; ")}`);
  Object.values(lines).forEach((values, index) => {
    let path = "";
    let up = true;
    values.forEach((value, at) => {
      if (value === null) { up = true; return; }
      const x = at * WIDTH / count;
      const y = (HEIGHT - 3 - value / top * (HEIGHT - 8)).toFixed(1);
      path += `${up ? "M" : "L"}${x.toFixed(1)} ${y}H${((at + 1) * WIDTH / count).toFixed(1)}`;
      up = false;
    });
    drawing.append(svg("path", { d: path, class: `line-${index}` }));
  });
  const figure = element("figure");
  const legend = element("p", undefined, "legend");
  said.forEach((text, index) =>
    legend.append(element("span", `${index ? " ┄ " : "— "}${text} ${unit} `, `line-${index}`)));
  const from = new Date(start * 1000).toLocaleTimeString();
  const to = new Date((start + count * seconds) * 1000).toLocaleTimeString();
  figure.append(element("figcaption", `${title}, ${from} to ${to}`), drawing, legend);
  return figure;
}

function showHistory(name) {
  const view = show("history");
  find("h2", view).textContent = `History of ${visible(name)}`;
  const form = find(".filter", view);
  const seconds = (value) => `${value < 10 ? value.toFixed(3) : value.toFixed(0)} s`;
  function life(one) {
    const item = element("li");
    const details = element("details");
    const summary = element("summary", entryText(one.entry).slice(0, 300));
    const last = one.events.at(-1);
    summary.append(element("span", ` ${last.kind}` +
      (one.seconds === null ? "" : ` after ${seconds(one.seconds)}`)));
    const list = element("ol");
    for (const event of one.events) list.append(element("li", visible(
      `${new Date(event.time * 1000).toLocaleString()}: ${event.kind}` +
      (event.agent ? ` by ${event.name || event.agent}` : "") +
      (event.waited ? `, who waited ${seconds(event.waited)}` : "") +
      returned(event.deliveries) +
      (event.txn ? `, in the transaction ${event.txn.slice(0, 8)}` : ""))));
    details.append(summary, list);
    item.append(details);
    return item;
  }
  async function load() {
    const template = form.elements.template.value.trim() || null;
    const said = await post(spacePath(name, "history"), { template });
    const { start, seconds: part, rates, latencies } = said.chart;
    find(".charts", view).replaceChildren(
      chart("Changes per second", rates, start, part, "/s"),
      chart("Latencies (median)", latencies, start, part, "s"));
    find(".lives", view).replaceChildren(...said.lives.map(life));
    find(".shown", view).textContent = `${said.lives.length} entries, the last changed first, of ` +
      `the newest ${said.changes.toLocaleString()} changes`;
    say("");
  }
  form.addEventListener("submit", (event) => { event.preventDefault(); attempt(load); });
  attempt(load);
}

async function showLive(chosen) {
  const view = show("live");
  const form = find(".filter", view);
  const changes = find(".changes", view);
  const pause = find(".pause", view);
  let stream = new AbortController();
  let paused = false;
  let held = [];
  leaveView = () => stream.abort();
  const found = await attempt(() => get("/api/spaces"));
  if (found === undefined) return;
  const readable = found.spaces.filter((space) => !space.refused);
  form.elements.space.replaceChildren(...readable.map((space) => {
    const option = element("option", visible(space.name));
    option.value = space.name;
    option.selected = space.name === chosen;
    return option;
  }));

  function add(batch) {
    const rows = batch.slice(-ROWS_MAX).reverse().map((change) => row(
      [change.position, "n"], new Date(change.time * 1000).toLocaleTimeString(), change.kind,
      visible(change.agent_name || change.agent || "–").slice(0, 40),
      change.entry === undefined ? "–" :
        entryText(change.entry).slice(0, 500) + returned(change.deliveries),
      [change.waited ? `${change.waited.toFixed(3)} s` : "–", "n"]));
    changes.prepend(...rows);
    while (changes.children.length > ROWS_MAX) changes.lastChild.remove();
  }
  async function watch() {
    stream.abort();
    stream = new AbortController();
    const mine = stream;
    leaveView = () => mine.abort();
    changes.replaceChildren();
    held = [];
    const name = form.elements.space.value;
    if (!name) return say("No space to watch.");
    const kinds = form.elements.kinds.value.split(",").map((kind) => kind.trim()).filter(Boolean);
    const template = form.elements.template.value.trim() || null;
    let skipped = 0;
    let seen = 0;
    const body = { template, kinds: kinds.length ? kinds : null };
    for await (const [kind, said] of events(spacePath(name, "watch"), body, mine.signal)) {
      if (kind === "error") throw new ApiError(said.message);
      if (kind === "ready") { say("Watching."); continue; }
      skipped += said.skipped;
      seen += said.changes.length;
      if (paused) held = held.concat(said.changes).slice(-ROWS_MAX);
      else add(said.changes);
      find(".rate", view).textContent = `${seen} changes received` +
        (skipped ? `, ${skipped} more were not shown, because they came too fast` : "");
    }
    return undefined;
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(watch);
  });
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Resume" : "Pause";
    pause.setAttribute("aria-pressed", String(paused));
    if (!paused) { add(held); held = []; }
  });
  attempt(watch);
}

function showHosts() {
  const view = show("hosts");
  const showParting = parting(find(".parting", view));
  const before = new Map();
  const size = (bytes) => bytes < 10000 ? `${bytes} B` : bytes < 1e7 ?
    `${(bytes / 1000).toFixed(0)} kB` : `${(bytes / 1e6).toFixed(0)} MB`;
  // The whole traffic of a link, and its rate since the last look.
  function traffic(id, bytes) {
    const now = performance.now() / 1000;
    const last = before.get(id);
    before.set(id, [now, bytes]);
    const rate = last && now > last[0] ? (bytes - last[1]) / (now - last[0]) : null;
    return [size(bytes) + (rate === null ? "" : `, ${size(Math.max(0, Math.round(rate)))}/s`), "n"];
  }
  leaveView = repeat(async () => {
    const host = await get("/api/host");
    find(".self", view).replaceChildren(...["name", "address", "id", "identity"].flatMap((key) =>
      [element("dt", key), element("dd", visible(host[key] || "–"))]),
    element("dt", "group"), element("dd", visible(host.group.join(", ")) || "–"));
    showParting(host.disengaged);
    find(".peers", view).replaceChildren(...host.peers.map((peer) => row(
      visible(peer.name), visible(peer.address || "–"),
      [peer.latency === null ? "no answer" : `${(peer.latency * 1000).toFixed(1)} ms`, "n"],
      traffic(`${peer.id} sent`, peer.sent), traffic(`${peer.id} received`, peer.received),
      [peer.spaces.length, "n"], [peer.agents, "n"], visible(peer.identity || "–"))));
    const seen = new Map(); // A program may have several connections of one name.
    find(".clients", view).replaceChildren(...host.clients.map((one) => {
      const nth = (seen.get(one.agent) || 0) + 1;
      seen.set(one.agent, nth);
      const at = `${one.agent} ${nth}`;
      return row(visible(one.name || one.agent), traffic(`${at} sent`, one.sent),
        traffic(`${at} received`, one.received), visible(one.identity || "–"));
    }));
    list(find(".news", view), host.news.slice().reverse().map((one) =>
      `${new Date(one.time * 1000).toLocaleTimeString()}: ` + (one.kind === "group" ?
        `the group is now ${one.name || "empty"}` : `${one.name} ${one.kind}`)));
    say("");
  });
}

function showReport() {
  const view = show("report");
  const hint = find(".hint", view);
  attempt(async () => {
    const { report } = await get("/api/report");
    say("");
    if (report === null) {
      hint.textContent = "No report yet. Start the host with --report DIR; then " +
        "`tupelo pipeline report LOG... --to DIR` writes one, and it is shown here.";
      return;
    }
    hint.textContent = `Written ${new Date(report.time * 1000).toLocaleString()}.`;
    const frame = find(".report", view);
    frame.src = report.page;
    frame.hidden = false;
  });
}

// A button that parts this host from the others and back; it says so, and asks first.
function parting(place) {
  place.replaceChildren(find("#parting").content.cloneNode(true));
  const button = find("button", place);
  let disengaged = false;
  function showState(now) {
    disengaged = now;
    button.textContent = now ? "Apart from other hosts: engage again" : "Part from other hosts";
    button.setAttribute("aria-pressed", String(now));
  }
  button.addEventListener("click", () => attempt(async () => {
    const text = "Part this host from all other hosts? Its programs stay connected to it, " +
      "and work with what is here, until it is engaged again.";
    if (!disengaged && !await askFirst(text, "Part")) return;
    showState((await post(`/api/host/${disengaged ? "engage" : "disengage"}`, {})).disengaged);
  }));
  return showState;
}

// Follow a board: show the hosts that are connected, and call `update` with all that is told of it.
// `update` may return a text to show beside the hosts.
function follow(view, path, update) {
  const showParting = parting(find(".parting", view));
  const stream = new AbortController();
  let more = "";
  const stop = repeat(async () => {
    const host = await get("/api/host");
    showParting(host.disengaged);
    find(".hosts-here", view).textContent = (host.disengaged ? "This host is apart from the others." :
      `Connected hosts: ${visible(host.peers.map((peer) => peer.name).join(", ")) || "none"}.`) + more;
  });
  leaveView = () => { stop(); stream.abort(); };
  attempt(async () => {
    for await (const [kind, said] of events(path, {}, stream.signal)) {
      if (kind === "error") throw new ApiError(said.message);
      more = update(said) || "";
      say("");
    }
  });
}

function showWhiteboard() {
  const view = show("whiteboard");
  const board = find(".board", view);
  const [strokes, pending, pen] = [".strokes", ".pending", ".pen"].map((one) => find(one, board));

  const line = (stroke, made) => {
    made.setAttribute("points", stroke.points.join(" "));
    made.setAttribute("stroke", stroke.colour);
    made.setAttribute("stroke-width", stroke.width);
    return made;
  };
  const [colour, width] = ["colour", "width"].map((name) => find(`[name=${name}]`, view));
  let drawn = null;
  const at = (x, y) => [Math.round(Math.min(1000, Math.max(0, x))),
    Math.round(Math.min(600, Math.max(0, y)))];
  function begin(x, y) {
    const [px, py] = at(x, y);
    drawn = { colour: colour.value, width: Number(width.value), points: [px, py, px, py] };
    line(drawn, pending);
  }
  function go(x, y) {
    if (!drawn) return;
    if (drawn.points.length >= 1000) { end(); begin(x, y); }
    drawn.points.push(...at(x, y));
    line(drawn, pending);
  }
  function end() {
    if (!drawn) return;
    const stroke = drawn;
    drawn = null;
    attempt(() => post("/api/whiteboard/draw", stroke));
  }
  const place = (event) => {
    const box = board.getBoundingClientRect();
    return [(event.clientX - box.x) / box.width * 1000, (event.clientY - box.y) / box.height * 600];
  };
  board.addEventListener("pointerdown", (event) => {
    board.setPointerCapture(event.pointerId);
    begin(...place(event));
  });
  board.addEventListener("pointermove", (event) => go(...place(event)));
  board.addEventListener("pointerup", end);
  board.addEventListener("pointercancel", end);
  const STEPS = { ArrowLeft: [-20, 0], ArrowRight: [20, 0], ArrowUp: [0, -20], ArrowDown: [0, 20] };
  board.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (!step && event.key !== " ") return;
    event.preventDefault();
    const [x, y] = at(pen.cx.baseVal.value + (step ? step[0] : 0),
      pen.cy.baseVal.value + (step ? step[1] : 0));
    pen.setAttribute("cx", x);
    pen.setAttribute("cy", y);
    if (step) go(x, y);
    else if (drawn) end();
    else begin(x, y);
    pen.classList.toggle("down", drawn !== null);
  });
  find(".wipe", view).addEventListener("click", () => attempt(async () => {
    if (await askFirst("Wipe the board, at all hosts?", "Wipe"))
      await post("/api/whiteboard/wipe", {});
  }));
  follow(view, "/api/whiteboard/watch", (said) => {
    while (strokes.children.length > said.keep) strokes.lastChild.remove();
    strokes.append(...said.strokes.map((stroke) => line(stroke, svg("polyline"))));
    if (!drawn) pending.setAttribute("points", "");
    return said.cloned ? " The owner of the view is away: a clone of it is used here." : "";
  });
}

// The jigsaw

const PICTURE = [1200, 900];
const KNOB = 0.24; // how far a knob may reach into the cell beside it
const [NECK, HEAD] = [[[0.3, 0.03], [0.45, 0.05], [0.41, -0.06]], [[0.34, -0.23], [0.66, -0.23]]];
const CURVE = [...NECK, ...HEAD, ...NECK.map(([t, h]) => [1 - t, h]).reverse(), [1, 0]];

// A number that everybody gets for the same text.
function scramble(text) {
  let hash = 2166136261;
  for (const c of text) hash = Math.imul(hash ^ c.codePointAt(0), 16777619);
  hash = Math.imul(hash ^ (hash >>> 15), 2246822507);
  return (hash ^ (hash >>> 13)) >>> 0;
}

// The four sides of a cell, clockwise: for each, the cell beside it (null at the border) and the
// path, with a knob or a hole.
function sidesOf(cell, { puzzle, columns, rows }) {
  const [width, height] = [PICTURE[0] / columns, PICTURE[1] / rows];
  const [x, y] = [cell % columns, Math.floor(cell / columns)];
  const corners = [[x, y], [x + 1, y], [x + 1, y + 1], [x, y + 1]]
    .map(([a, b]) => [a * width, b * height]);
  const beside = [y > 0 ? cell - columns : null, x + 1 < columns ? cell + 1 : null,
    y + 1 < rows ? cell + columns : null, x > 0 ? cell - 1 : null];
  return beside.map((other, side) => {
    const [[ax, ay], [bx, by]] = [corners[side], corners[(side + 1) % 4]];
    if (other === null) return [other, [ax, ay], `L${bx} ${by}`];
    const knob = scramble(`${puzzle} ${Math.min(cell, other)} ${Math.max(cell, other)}`) % 2;
    const high = Math.min(width, height) * ((knob === 1) === (cell < other) ? 1 : -1);
    const length = Math.hypot(bx - ax, by - ay);
    const points = CURVE.map(([t, h]) => [ax + t * (bx - ax) - h * high * (ay - by) / length,
      ay + t * (by - ay) - h * high * (bx - ax) / length].map((one) => one.toFixed(1)).join(" "));
    return [other, [ax, ay], `C${points.join(" ")}`];
  });
}

// The picture of a piece: its part of the whole, the cuts inside, and its outline.
function pictureOf(piece, puzzle) {
  const { columns, rows } = puzzle;
  const [width, height] = [PICTURE[0] / columns, PICTURE[1] / rows];
  const cells = new Set(piece.cells);
  let [shape, inner, outline] = ["", "", ""];
  for (const cell of piece.cells) {
    const sides = sidesOf(cell, puzzle);
    shape += `M${sides[0][1].join(" ")}${sides.map(([, , path]) => path).join("")}Z`;
    for (const [other, start, path] of sides) {
      if (!cells.has(other)) outline += `M${start.join(" ")}${path}`;
      else if (cell < other) inner += `M${start.join(" ")}${path}`;
    }
  }
  const xs = piece.cells.map((cell) => cell % columns);
  const ys = piece.cells.map((cell) => Math.floor(cell / columns));
  const pad = (isBorder) => isBorder ? 0.06 : KNOB; // A border has no knobs.
  const low = (all) => Math.min(...all) - pad(Math.min(...all) === 0);
  const high = (all, count) => Math.max(...all) + 1 + pad(Math.max(...all) + 1 === count);
  const [x, y] = [low(xs), low(ys)];
  const [w, h] = [high(xs, columns) - x, high(ys, rows) - y];
  const id = `clip ${puzzle.puzzle} ${piece.cells[0]}`.replace(/[^\w]/g, "-");
  const whole = svg("svg", { viewBox: [x * width, y * height, w * width, h * height].join(" "),
    "aria-hidden": "true" });
  whole.style.width = `calc(var(--unit) * ${w.toFixed(2)})`;
  const clip = svg("clipPath", { id });
  clip.append(svg("path", { d: shape }));
  whole.append(clip, svg("use", { href: "#jigsaw-picture", "clip-path": `url(#${id})` }),
    svg("path", { d: inner, class: "cuts" }), svg("path", { d: outline, class: "casing" }),
    svg("path", { d: outline, class: "outline" }));
  return whole;
}

function showJigsaw() {
  const view = show("jigsaw");
  const [tray, told, chooser, away] =
    [".tray", ".told", "[name=puzzle]", ".away"].map((one) => find(one, view));
  const buttons = new Map(); // by the cells of the piece
  let said = { me: "", players: [], puzzles: [] };
  let [chosen, hand, current] = ["", null, null]; // a puzzle; keys of pieces
  const tell = (text) => { told.textContent = text; };
  const keyOf = (piece) => piece.cells.join(" ");
  const cellsOf = (key) => key.split(" ").map(Number);
  const colourOf = (id) => {
    const player = said.players.find((one) => one.id === id);
    return `player-${player ? player.colour : "unknown"}`;
  };
  const nameOf = (id) => {
    const player = said.players.find((one) => one.id === id);
    return id === said.me ? "you" : player ? visible(player.name) : "another program";
  };
  const puzzleNow = () => said.puzzles.find((one) => one.puzzle === chosen);
  const isWhole = (one) => one.pieces[0].cells.length === one.columns * one.rows;

  function nameOfPuzzle(one) {
    const [, maker, number] = one.puzzle.match(/^(.*)\/(.*)$/s) || ["", "", ""];
    const name = maker === said.me ? find("#host-name").textContent || "this host" : nameOf(maker);
    return `${name} ${visible(number)}: ` + (isWhole(one) ? "complete" :
      `${one.pieces.length} of ${one.columns * one.rows} left`);
  }
  function buttonFor(piece, puzzle) {
    const key = keyOf(piece);
    let button = buttons.get(key);
    if (!button) {
      button = element("button");
      button.type = "button";
      button.append(pictureOf(piece, puzzle), element("span"));
      button.addEventListener("click", () => attempt(() => act(key)));
      button.addEventListener("focus", () => { current = key; roam(); });
      button.dataset.key = key;
      buttons.set(key, button);
    }
    const mine = piece.owner === said.me;
    const places = piece.cells.map((cell) =>
      `row ${Math.floor(cell / puzzle.columns) + 1} column ${cell % puzzle.columns + 1}`);
    button.className = `piece ${colourOf(piece.owner)}`;
    button.lastChild.textContent = nameOf(piece.owner);
    const what = piece.cells.length === 1 ? `Piece at ${places[0]}` :
      `Assembly of ${places.length} pieces with ${places[0]}`;
    button.setAttribute("aria-label", `${what}, of ${nameOf(piece.owner)}`);
    if (mine) button.setAttribute("aria-pressed", String(hand === key));
    else button.removeAttribute("aria-pressed");
    return button;
  }
  // One piece can be reached with Tab; the arrow keys go from there.
  function roam() {
    const all = [...tray.children];
    const reached = all.find((one) => one.dataset.key === current) || all[0];
    for (const one of all) one.tabIndex = one === reached ? 0 : -1;
  }
  function render() {
    if (!puzzleNow())
      chosen = (said.puzzles.find((one) => !isWhole(one)) || said.puzzles[0] || { puzzle: "" }).puzzle;
    const puzzle = puzzleNow();
    chooser.replaceChildren(...said.puzzles.map((one) => {
      const option = element("option", nameOfPuzzle(one));
      option.value = one.puzzle;
      option.selected = one.puzzle === chosen;
      return option;
    }));
    chooser.disabled = away.disabled = !puzzle;
    find(".empty", view).hidden = Boolean(puzzle);
    if (tray.dataset.puzzle !== chosen) {
      tray.dataset.puzzle = chosen;
      buttons.clear();
      [hand, current] = [null, null];
      tell("");
    }
    const pieces = puzzle ? puzzle.pieces.slice() : [];
    const place = new Map(pieces.map((one) => [one, scramble(`${chosen} ${one.cells[0]}`)]));
    pieces.sort((a, b) => place.get(a) - place.get(b));
    if (!pieces.some((one) => keyOf(one) === hand && one.owner === said.me)) hand = null;
    find(".players", view).replaceChildren(...said.players.map((player) => {
      const held = pieces.filter((one) => one.owner === player.id).length;
      const item = element("li", undefined, `player-${player.colour}`);
      item.append(element("b", nameOf(player.id)), ` ${held}`);
      return item;
    }));
    if (puzzle) tray.style.setProperty("--columns", puzzle.columns);
    const focused = tray.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const shown = pieces.map((piece) => buttonFor(piece, puzzle));
    if (shown.length !== tray.children.length || shown.some((one, at) => one !== tray.children[at])) {
      tray.replaceChildren(...shown);
      for (const key of [...buttons.keys()])
        if (!pieces.some((one) => keyOf(one) === key)) buttons.delete(key);
    }
    if (current !== null && !buttons.has(current)) { // It is part of an assembly now.
      const grown = pieces.find((one) => one.cells.includes(cellsOf(current)[0]));
      current = grown ? keyOf(grown) : null;
    }
    roam();
    if (focused !== null && current !== null) buttons.get(current).focus({ preventScroll: true });
    if (puzzle && isWhole(puzzle)) tell("The puzzle is complete.");
  }
  // What a click or Enter does: select a piece of another player, take one's own in hand, or join it
  // to the one in hand.
  async function act(key) {
    const puzzle = puzzleNow();
    const ownerOf = (one) => (puzzleNow().pieces.find((p) => keyOf(p) === one) || {}).owner;
    if (ownerOf(key) !== said.me) {
      const { selected } =
        await post("/api/jigsaw/select", { puzzle: puzzle.puzzle, cells: cellsOf(key) });
      tell(selected ? "The piece is yours." :
        "This piece is not to be had: its player is away, or has it no more.");
    } else if (hand === null || hand === key) {
      hand = hand === key ? null : key;
      tell(hand === null ? "" : "In your hand. Choose another piece of yours that fits.");
      render();
    } else {
      const one = hand;
      const { assembled } = await post("/api/jigsaw/assemble",
        { puzzle: puzzle.puzzle, one: cellsOf(one), other: cellsOf(key) });
      hand = null;
      tell(assembled ? "Joined." : ownerOf(one) === said.me && ownerOf(key) === said.me ?
        "These two do not fit." : "One of them is not yours any more.");
      render();
    }
  }
  const middle = (one) => {
    const box = one.getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2];
  };
  // The nearest piece above or below.
  function vertical(from, down) {
    const [x, y] = middle(from);
    const there = [...tray.children].map((one) => [one, ...middle(one)])
      .filter(([one, , b]) => one !== from && (down ? b > y + 8 : b < y - 8));
    const far = ([, a, b]) => Math.abs(a - x) + 3 * Math.abs(b - y);
    there.sort((a, b) => far(a) - far(b));
    return there.length ? there[0][0] : from;
  }
  tray.addEventListener("keydown", (event) => {
    const from = event.target.closest(".piece");
    const steps = {
      ArrowLeft: (one) => one.previousSibling, ArrowRight: (one) => one.nextSibling,
      ArrowUp: (one) => vertical(one, false), ArrowDown: (one) => vertical(one, true),
    };
    if (!from || !steps[event.key]) return;
    event.preventDefault();
    (steps[event.key](from) || from).focus();
  });
  chooser.addEventListener("change", () => { chosen = chooser.value; render(); });
  find(".new", view).addEventListener("click", () => attempt(async () => {
    const [columns, rows] = find("[name=size]", view).value.split(" ").map(Number);
    chosen = (await post("/api/jigsaw/new", { columns, rows })).puzzle;
    render();
  }));
  away.addEventListener("click", () => attempt(async () => {
    if (await askFirst("Put this puzzle away, at all hosts?", "Put away"))
      await post("/api/jigsaw/away", { puzzle: chosen });
  }));
  follow(view, "/api/jigsaw/watch", (now) => { said = now; render(); });
}

function route() {
  const hash = location.hash.slice(1);
  if (hash.startsWith("token=")) {
    token = hash.slice(6);
    sessionStorage.setItem("token", token);
    history.replaceState(null, "", "#spaces");
    return route();
  }
  if (!token) token = sessionStorage.getItem("token") || "";
  if (!token) return showLogin();
  const [view, name] = hash.split(/\/(.*)/s);
  for (const link of document.querySelectorAll("nav a")) {
    const current = link.hash === `#${["space", "history", ""].includes(view) ? "spaces" : view}`;
    current ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  attempt(async () => {
    find("#host-name").textContent = visible((await get("/api/host")).name);
  });
  if (view === "space" && name) showSpace(decodeURIComponent(name));
  else if (view === "history" && name) showHistory(decodeURIComponent(name));
  else if (view === "live") showLive(name && decodeURIComponent(name));
  else if (view === "report") showReport();
  else if (view === "hosts") showHosts();
  else if (view === "whiteboard") showWhiteboard();
  else if (view === "jigsaw") showJigsaw();
  else showSpaces();
  return undefined;
}

addEventListener("hashchange", () => { route(); find("#view").focus(); });
route();
