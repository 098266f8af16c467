// Content of a journal: the newest, which may be followed, and parts before and after. It's inserted
// as text, never as markup.

import { events } from "./api.js";
import { element, find, say } from "./dom.js";
import * as feed from "./feed.js";
import { grouped, instant } from "./format.js";

const KEPT = 64 * 1024;
const PART = 32n * 1024n;
const LARGEST = 16n * 1024n * 1024n;
// How far a part reaches into what is shown, whose states it may change.
const AROUND = 1024n * 1024n;
// Those whose messages the console can tell apart.
const FRAMED = ["application/x-ndjson", "application/x-protobuf-fixed", "text/csv"];

let following = new AbortController();
let journal = "";

const isPressed = () => find("follow").getAttribute("aria-pressed") === "true";
const isText = () => find("form").value === "text";
const view = () => find(isText() ? "tail" : "feed");
const least = (one, other) => (one < other ? one : other);
const most = (one, other) => (one > other ? one : other);

function press(on) {
  find("follow").textContent = on ? "Stop" : "Follow";
  find("follow").setAttribute("aria-pressed", String(on));
}

export function stop() {
  following.abort();
  following = new AbortController();
  press(false);
}

function showForm() {
  for (const id of ["feed", "counts", "search"]) find(id).hidden = isText();
  find("tail").hidden = !isText();
}

function clear() {
  find("tail").replaceChildren();
  feed.clear((find("uuid").value.trim() || find("uuid").placeholder).split("."));
  say("place", "");
}

export function reset(name) {
  if (name === journal) return;
  journal = name;
  for (const id of ["goto", "find"]) find(id).value = "";
  stop();
  clear();
}

export function suit(contentType) {
  const isFramed = FRAMED.includes(contentType);
  const option = find("form").options[0];
  if (option.disabled === isFramed) find("form").value = isFramed ? "messages" : "text";
  option.disabled = !isFramed;
  find("uuid").disabled = contentType !== FRAMED[0];
  showForm();
}

const asked = (query) => ({ name: journal, form: find("form").value, uuid: find("uuid").value.trim(), ...query });

function range() {
  if (!isText()) return feed.range();
  const parts = find("tail").children;
  if (parts.length === 0) return null;
  return { begin: BigInt(parts[0].dataset.begin), end: BigInt(parts[parts.length - 1].dataset.end) };
}

function addText({ begin, end, text }, before) {
  const tail = find("tail");
  const part = element("span", { textContent: text });
  Object.assign(part.dataset, { begin, end });
  if (before === undefined) tail.append(part);
  else tail.insertBefore(part, before);
  while (tail.textContent.length > KEPT && tail.children.length > 1) {
    tail[before === undefined ? "firstChild" : "lastChild"].remove();
  }
}

// Ask for a part, and show it after what is shown, or before.
async function load(query, { before = false } = {}) {
  const { signal } = following;
  const messages = [];
  const next = before ? find("tail").firstChild : undefined;
  for await (const event of events("/api/tail", { query: asked(query), signal })) {
    if (event.messages) {
      messages.push(...event.messages);
      feed.settle(event.settled);
      // A message and its final state may come in one answer.
      const states = new Map(event.settled);
      for (const message of messages) message.state = states.get(message.begin) ?? message.state;
    } else if (event.text !== undefined) addText(event, next);
    else showPlace(event.head);
  }
  if (signal.aborted) return;
  if (messages.length > 0) feed.add(messages, { before });
}

let head = "0";

function showPlace(known = head) {
  head = known;
  const part = range();
  const text = part ? `${grouped(part.begin)} to ${grouped(part.end)} of ${grouped(head)}` : "nothing here";
  say("place", text);
}

// Ask for a part, and for larger ones until it has something, and bring its edge into sight.
async function extend(query, { before = false } = {}) {
  stop();
  const shown = range();
  if (!shown) return newest();
  const { scrollHeight, clientHeight } = view();
  for (let size = PART; size <= LARGEST; size *= 4n) {
    const { wanted, isLast } = query(shown, size);
    if (wanted) await load(wanted, { before });
    const now = range();
    if (now.begin !== shown.begin || now.end !== shown.end || isLast) break;
  }
  // A message that is too large, or content that was pruned.
  if (before && shown.begin > 0n && range().begin === shown.begin) {
    throw new Error("There is nothing to show right before this. Go to an earlier offset, or to a time.");
  }
  view().scrollTop = before ? view().scrollHeight - scrollHeight - clientHeight : scrollHeight - clientHeight / 2;
  showPlace();
}

function earlier() {
  return extend(
    ({ begin, end }, size) => {
      const from = most(begin - size, 0n);
      const until = isText() ? begin : least(end, begin + AROUND);
      return {
        wanted: begin > 0n && { begin: from, bytes: until - from, from, to: begin },
        isLast: from === 0n,
      };
    },
    { before: true },
  );
}

function later() {
  return extend(({ begin, end }, size) => {
    const from = isText() ? end : most(begin, end - AROUND);
    return { wanted: { begin: from, bytes: end + size - from, from: end }, isLast: end + size >= BigInt(head) };
  });
}

async function newest() {
  stop();
  clear();
  await load({ bytes: PART });
  view().scrollTop = view().scrollHeight;
  showPlace();
}

export async function begin() {
  if (journal && !isPressed() && range() === null) await newest();
}

async function goTo() {
  const text = find("goto").value.trim();
  if (text === "") return newest();
  stop();
  const offset = /^[\d,_ ]+$/.test(text) ? text.replace(/[,_ ]/g, "") : "";
  const time = offset ? null : instant(text);
  if (time === "") throw new Error("Expected an offset such as 1024, or a time such as 2026-05-01 12:30Z.");
  clear();
  await load(offset ? { begin: offset, bytes: PART } : { time: Math.floor(Date.parse(time) / 1000), bytes: 2n * PART });
  if (time === null || isText()) view().scrollTop = 0;
  else feed.reveal(time);
  showPlace();
}

async function toggle() {
  if (isPressed()) {
    stop();
    return;
  }
  stop();
  const { signal } = following;
  clear();
  press(true);
  try {
    for await (const event of events("/api/tail", { query: asked({}), signal })) {
      const { scrollTop, clientHeight, scrollHeight } = view();
      if (event.messages) {
        feed.add(event.messages);
        feed.settle(event.settled);
      } else addText(event);
      if (scrollTop + clientHeight >= scrollHeight - 8) view().scrollTop = view().scrollHeight;
    }
  } finally {
    if (!signal.aborted) stop();
  }
}

// Calls `attempt` with the work of each command.
export function listen(attempt) {
  const commands = { follow: toggle, earlier, later };
  for (const [id, command] of Object.entries(commands)) find(id).addEventListener("click", () => attempt(command));
  find("position").addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(goTo);
  });
  find("find").addEventListener("input", feed.search);
  find("acks").addEventListener("change", () => find("feed").classList.toggle("no-acks", !find("acks").checked));
  for (const id of ["form", "uuid"]) {
    find(id).addEventListener("change", () => {
      const was = isPressed();
      stop();
      showForm();
      attempt(was ? toggle : newest);
    });
  }
}
