// The page of shards: a part of the list at a time.

import * as access from "./access.js";
import { ask } from "./api.js";
import { attempt, cell, element, find, say } from "./dom.js";
import { bytes, count } from "./format.js";
import { address } from "./path.js";

const PERIOD_MS = 3000;
const TYPING_MS = 200;
const PAGE = 100;
const SHAPES = { PRIMARY: "●", STANDBY: "◐", BACKFILL: "○", IDLE: "○", FAILED: "✕" };

let offset = 0;
let typing;
let asked = new AbortController();
const lags = new Map();

const shownLag = (digits) => (digits ? bytes(digits) : "not served");

function lagCell(id) {
  const lag = lags.get(id);
  return lag?.bytes ? cell(bytes(lag.bytes), lag.bytes === "0" ? "number quiet" : "number live") : cell("–", "number quiet");
}

function sourcesCell(row) {
  const known = new Map(lags.get(row.id)?.sources.map((source) => [source.journal, source.bytes]));
  const made = element("td", { className: "sources" });
  for (const source of row.sources) {
    // Metadata of a reader may follow the name.
    const name = source.split(";")[0];
    const lag = known.has(source) ? ` ${shownLag(known.get(source))}` : "";
    made.append(
      element("span", {}, element("a", { href: `/${address(name)}`, textContent: source }), element("span", { className: "quiet", textContent: lag })),
    );
  }
  made.title = row.sources.map((source) => `${source}: ${known.has(source) ? shownLag(known.get(source)) : "unknown"}`).join("\n");
  return made;
}

function membersCell(row) {
  const [primary, ...others] = row.members;
  if (!primary) return cell("none", "bad");
  const made = cell(primary.split(" ")[0] + (others.length ? ` +${others.length}` : ""));
  made.title = row.members.join("\n").toLowerCase();
  return made;
}

const COMMANDS = {
  unassign: {
    name: "Unassign",
    what: (id) => `Unassign the primary and the failed replicas of ${id}? They are assigned again, to the same members or to others.`,
  },
  reset: {
    name: "Reset errors",
    what: (id) => `Reset the errors of ${id}? Its failed replicas are assigned again, and start where the shard has stopped.`,
  },
};

// Ask whether to do it, then do it.
function command(kind, row) {
  const { name, what } = COMMANDS[kind];
  const made = element("button", { type: "button", textContent: name, ariaLabel: `${name}: ${row.id}` });
  made.dataset.key = `${kind} ${row.id}`;
  made.addEventListener("click", () => {
    say("confirm-what", what(row.id));
    find("confirm-yes").textContent = name;
    find("confirm-yes").onclick = async () => {
      find("confirm").close();
      const body = { shard: row.id, failed: kind === "reset" };
      if (await attempt(() => ask("/api/unassign", { body }))) await look();
    };
    find("confirm").showModal();
  });
  return made;
}

function drawn(row) {
  const status = element("span", {
    className: `state ${row.status.toLowerCase()}`,
    textContent: `${SHAPES[row.status] ?? "·"} ${row.status.toLowerCase()}`,
  });
  const commands = [];
  if (row.members.some((member) => member.endsWith(" FAILED"))) commands.push(command("reset", row));
  if (row.members.length) commands.push(command("unassign", row));
  const made = element(
    "tr",
    {},
    cell(row.id),
    element("td", {}, status),
    lagCell(row.id),
    membersCell(row),
    sourcesCell(row),
    element("td", { className: "commands" }, ...commands),
  );
  if (row.problems.length === 0) return [made];
  made.className = "has-problems";
  const problems = cell(row.problems.join("; "), "bad");
  problems.colSpan = 6;
  return [made, element("tr", { className: "problems" }, problems)];
}

function showStatus(page) {
  const statuses = Object.entries(page.statuses).map(([status, number]) => `${count(number)} ${status.toLowerCase()}`);
  const known = page.rows.map((row) => lags.get(row.id)?.bytes).filter(Boolean);
  const total = known.reduce((sum, digits) => sum + BigInt(digits), 0n);
  const lag = known.length ? [`lag ${bytes(total)}`] : [];
  say("status", [`${count(page.matched)} of ${count(page.total)} shards`, ...statuses, ...lag].join(" · "));
}

async function look() {
  asked.abort();
  asked = new AbortController();
  const { signal } = asked;
  const query = { text: find("text").value, selector: find("selector").value.trim(), offset, limit: PAGE };
  await attempt(async () => {
    const page = await ask("/api/shards", { query, signal });
    const draw = () => {
      const focused = document.activeElement?.dataset?.key;
      find("rows").tBodies[0].replaceChildren(...page.rows.flatMap(drawn));
      if (focused) [...find("rows").querySelectorAll("button")].find((each) => each.dataset.key === focused)?.focus();
      showStatus(page);
    };
    draw();
    find("previous").disabled = offset === 0;
    find("next").disabled = offset + PAGE >= page.matched;
    if (page.rows.length === 0) return;
    const ids = page.rows.map((row) => row.id);
    const found = await ask("/api/lags", { body: { names: ids }, signal });
    lags.clear();
    for (const lag of found) lags.set(lag.id, lag);
    draw();
  }, "list");
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
find("confirm-no").addEventListener("click", () => find("confirm").close());
access.ask(look);
await again();
