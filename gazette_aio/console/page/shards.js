// The page of shards: a part of the list at a time.

import { ask } from "./api.js";
import { cell, element, find } from "./dom.js";

const PERIOD_MS = 3000;
const TYPING_MS = 200;
const PAGE = 100;

let offset = 0;
let typing;
let asked = new AbortController();

function drawn(row) {
  return element(
    "tr",
    {},
    cell(row.id),
    cell(row.status.toLowerCase()),
    cell(row.members.join(", ") || "none"),
    cell(row.sources.join(", ") || "none"),
    cell(row.problems.join("; ")),
  );
}

async function look() {
  asked.abort();
  asked = new AbortController();
  const query = { text: find("text").value, selector: find("selector").value.trim(), offset, limit: PAGE };
  try {
    const page = await ask("/api/shards", { query, signal: asked.signal });
    find("rows").tBodies[0].replaceChildren(...page.rows.map(drawn));
    const status = `${page.matched.toLocaleString("en")} of ${page.total.toLocaleString("en")} shards`;
    if (find("status").textContent !== status) find("status").textContent = status;
    find("previous").disabled = offset === 0;
    find("next").disabled = offset + PAGE >= page.matched;
    find("problem").hidden = true;
  } catch (error) {
    if (error.name === "AbortError") return;
    find("problem").textContent = error.message;
    find("problem").hidden = false;
  }
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
find("previous").addEventListener("click", () => turn(-PAGE));
find("next").addEventListener("click", () => turn(PAGE));
await again();
