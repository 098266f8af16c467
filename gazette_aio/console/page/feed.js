// Messages of a journal with their states: a shape and a word for each, besides its colour.

import { element, find } from "./dom.js";
import { count, grouped } from "./format.js";

const KEPT = 500;
const SHAPES = {
  committed: "●",
  pending: "○",
  "rolled-back": "✕",
  acknowledgement: "◆",
  duplicate: "≡",
  plain: "·",
  unreadable: "!",
};

let shown = new Map();
let counts = {};

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
  row.firstChild.className = `state ${state}`;
  row.firstChild.textContent = `${SHAPES[state]} ${word(state)}`;
}

function drawn(message) {
  const row = element(
    "li",
    {},
    element("span"),
    element("span", { className: "number", textContent: grouped(message.begin) }),
    element("time", { textContent: message.time.slice(11, 23), title: message.time }),
    element("span", { className: "producer", textContent: message.producer, title: "Producer" }),
    element("code", { textContent: message.text.trimEnd() + (message.isCut ? " …" : "") }),
  );
  mark(row, message.state);
  return row;
}

export function clear() {
  shown = new Map();
  counts = {};
  find("feed").replaceChildren();
  showCounts();
}

export function add({ messages, settled }) {
  const list = find("feed");
  const isAtEnd = list.scrollTop + list.clientHeight >= list.scrollHeight - 8;
  for (const message of messages) {
    const row = drawn(message);
    shown.set(message.begin, row);
    tally(message.state, 1);
    list.append(row);
  }
  for (const [begin, state] of settled) {
    const row = shown.get(begin);
    if (!row) continue;
    tally(row.dataset.state, -1);
    tally(state, 1);
    mark(row, state);
  }
  for (const [begin, row] of shown) {
    if (shown.size <= KEPT) break;
    tally(row.dataset.state, -1);
    row.remove();
    shown.delete(begin);
  }
  showCounts();
  if (isAtEnd) list.scrollTop = list.scrollHeight;
}
