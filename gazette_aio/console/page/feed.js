// Messages of a journal with their states: a shape and a word for each, besides its colour.

import { copy, element, find } from "./dom.js";
import { count, grouped, moment } from "./format.js";
import { line, parse, tree, without } from "./json.js";

const KEPT = 1000;
const LONG = 160;
const SHAPES = {
  committed: "●",
  pending: "○",
  "rolled-back": "✕",
  acknowledgement: "◆",
  duplicate: "≡",
  plain: "·",
  unreadable: "!",
};

let shown = new Map(); // Of each message, by its begin: the row, and the message.
let counts = {};
let uuidPath = [];

const COUNTED = ["acknowledgement", "duplicate"];

const word = (state) => state.replace("-", " ");
const words = (state, number) => word(state) + (COUNTED.includes(state) && number > 1 ? "s" : "");

function tally(state, by) {
  counts[state] = (counts[state] ?? 0) + by;
}

function showCounts() {
  const parts = Object.entries(counts).filter(([, number]) => number > 0);
  find("counts").replaceChildren(
    ...parts.map(([state, number]) =>
      element("span", { className: `state ${state}` }, `${SHAPES[state]} ${count(number)} ${words(state, number)}`),
    ),
  );
}

function mark(row, state) {
  row.dataset.state = state;
  const sign = row.querySelector(".state");
  sign.className = `state ${state}`;
  sign.textContent = `${SHAPES[state]} ${word(state)}`;
}

// A document in one line, which unfolds into a tree; any other text as it is.
function content({ text, isCut, state }) {
  const whole = text.trimEnd() + (isCut ? " …" : "");
  const parsed = state === "unreadable" ? null : parse(text);
  if (parsed === null) {
    if (whole.length <= LONG && !whole.includes("\n")) return [element("code", { textContent: whole })];
    return [folded(whole, () => element("pre", { textContent: whole }))];
  }
  const rest = without(parsed, uuidPath);
  if (rest.entries.length === 0 && parsed.entries.length > 0) return [];
  return [folded(line(rest) + (isCut ? " …" : ""), () => element("div", { className: "tree" }, tree(parsed)))];
}

function folded(summary, unfold) {
  const made = element("details", {}, element("summary", {}, element("code", { textContent: summary })));
  made.addEventListener("toggle", () => made.open && made.append(unfold()), { once: true });
  return made;
}

function drawn(message) {
  const button = element("button", { type: "button", className: "copy", textContent: "Copy" });
  button.addEventListener("click", async () => {
    await copy(message.text.trimEnd());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  const body = content(message);
  const row = element(
    "li",
    {},
    element(
      "div",
      { className: "line" },
      element("span"),
      element("time", { textContent: moment(message.time), dateTime: message.time }),
      element("span", { className: "number", title: "Offset", textContent: grouped(message.begin) }),
      element("span", { className: "producer", title: "Producer", textContent: message.producer }),
    ),
    ...(body.length ? [...body, button] : []),
  );
  row.firstChild.firstChild.className = "state";
  mark(row, message.state);
  return row;
}

export function clear(path) {
  shown = new Map();
  counts = {};
  uuidPath = path;
  find("feed").replaceChildren();
  showCounts();
}

// Offsets of what is shown, or null.
export function range() {
  const messages = [...shown.values()];
  if (messages.length === 0) return null;
  return { begin: BigInt(messages[0].message.begin), end: BigInt(messages.at(-1).message.end) };
}

function isMatch({ text, producer }) {
  const wanted = find("find").value.toLowerCase();
  return text.toLowerCase().includes(wanted) || producer.includes(wanted);
}

// Show only what has the text that is looked for.
export function search() {
  let found = 0;
  for (const { row, message } of shown.values()) {
    const matches = isMatch(message);
    row.classList.toggle("unmatched", !matches);
    if (matches) found += 1;
  }
  find("found").textContent = find("find").value ? `${count(found)} of ${count(shown.size)}` : "";
}

function forget(begin) {
  const { row } = shown.get(begin);
  tally(row.dataset.state, -1);
  row.remove();
  shown.delete(begin);
}

export function settle(settled) {
  for (const [begin, state] of settled) {
    const row = shown.get(begin)?.row;
    if (!row || row.dataset.state === state) continue;
    tally(row.dataset.state, -1);
    tally(state, 1);
    mark(row, state);
  }
  showCounts();
}

// Add messages after those which are shown, or before them.
export function add(messages, { before = false } = {}) {
  const made = messages.map((message) => [message.begin, { message, row: drawn(message) }]);
  for (const { state } of messages) tally(state, 1);
  shown = new Map(before ? [...made, ...shown] : [...shown, ...made]);
  const rows = made.map(([, { row }]) => row);
  if (before) find("feed").prepend(...rows);
  else find("feed").append(...rows);
  const begins = [...shown.keys()];
  const beyond = Math.max(begins.length - KEPT, 0);
  for (const begin of before ? begins.slice(KEPT) : begins.slice(0, beyond)) forget(begin);
  showCounts();
  search();
}

// Bring the first message of a time into sight.
export function reveal(time) {
  for (const { row, message } of shown.values()) {
    if (message.time >= time && message.state !== "acknowledgement") {
      find("feed").scrollTop = row.offsetTop - find("feed").offsetTop;
      return;
    }
  }
  find("feed").scrollTop = find("feed").scrollHeight;
}
