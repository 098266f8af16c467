// The page of shards: a part of the list at a time.

import * as access from "./access.js";
import { ask } from "./api.js";
import { attempt, cell, element, find, say } from "./dom.js";
import { bytes, count } from "./format.js";

const PERIOD_MS = 3000;
const TYPING_MS = 200;
const PAGE = 100;
const SHAPES = { PRIMARY: "●", STANDBY: "◐", BACKFILL: "○", IDLE: "○", FAILED: "✕" };

let offset = 0;
let typing;
let asked = new AbortController();
const lags = new Map();

function lagCell(id) {
  const lag = lags.get(id);
  if (!lag?.bytes) return cell("–", "number quiet");
  const made = cell(bytes(lag.bytes), lag.bytes === "0" ? "number quiet" : "number live");
  made.title = lag.sources
    .map((source) => `${source.journal}: ${source.bytes ? bytes(source.bytes) : "not served"}`)
    .join("\n");
  return made;
}

function drawn(row) {
  const status = element("span", {
    className: `state ${row.status.toLowerCase()}`,
    textContent: `${SHAPES[row.status] ?? "·"} ${row.status.toLowerCase()}`,
  });
  return element(
    "tr",
    {},
    cell(row.id),
    element("td", {}, status),
    lagCell(row.id),
    cell(row.members.join(", ").toLowerCase() || "none", row.members.length ? "" : "bad"),
    cell(row.sources.join(", ") || "none"),
    cell(row.problems.join("; "), "bad"),
  );
}

async function look() {
  asked.abort();
  asked = new AbortController();
  const { signal } = asked;
  const query = { text: find("text").value, selector: find("selector").value.trim(), offset, limit: PAGE };
  await attempt(async () => {
    const page = await ask("/api/shards", { query, signal });
    const draw = () => find("rows").tBodies[0].replaceChildren(...page.rows.map(drawn));
    draw();
    say("status", `${count(page.matched)} of ${count(page.total)} shards`);
    find("previous").disabled = offset === 0;
    find("next").disabled = offset + PAGE >= page.matched;
    if (page.rows.length === 0) return;
    const ids = page.rows.map((row) => row.id);
    const found = await ask("/api/lags", { body: { names: ids }, signal });
    lags.clear();
    for (const lag of found) lags.set(lag.id, lag);
    draw();
  });
}

async function again() {
  if (!document.hidden) await look();
  setTimeout(again, PERIOD_MS);
}

function turn(by) {
  offset = Math.max(offset + by, 0);
  look();
}

find("filter").addEventListener("submit", (event) => event.preventDefault());
find("filter").addEventListener("input", () => {
  clearTimeout(typing);
  offset = 0;
  typing = setTimeout(look, TYPING_MS);
});
addEventListener("keydown", (event) => {
  if (event.key !== "/" || /^input$/i.test(event.target.tagName)) return;
  event.preventDefault();
  find("text").focus();
});
find("previous").addEventListener("click", () => turn(-PAGE));
find("next").addEventListener("click", () => turn(PAGE));
access.ask(look);
await again();
